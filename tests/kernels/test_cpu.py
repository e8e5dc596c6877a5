"""The layers in C, with oneDNN's convolutions, compared with the plain ones."""

import dataclasses
import functools
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.kernels import cpu, native
from resnet_tpu.kernels.cpu import CPU, Deferred
from resnet_tpu.kernels.native.build import build, locate_headers
from resnet_tpu.kernels.norm import Norm
from resnet_tpu.models import layers
from resnet_tpu.models.architecture import ARCHITECTURES
from resnet_tpu.models.from_options import create_network
from resnet_tpu.models.kernel_table import PLAIN, Kernels
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import Config
from resnet_tpu.system.c_libraries import SWITCH
from resnet_tpu.training.maths.schedule import make_schedule
from resnet_tpu.training.maths.state import create_state
from resnet_tpu.training.maths.step import make_train_step

TYPES = [jnp.float32, jnp.bfloat16]
needs_library = pytest.mark.skipif("float32" not in native.load(), reason="needs the library in C, and oneDNN")
needs_bfloat16 = pytest.mark.skipif("bfloat16" not in native.load(), reason="needs a processor with AVX-512")


def random(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def distance(actual: Any, expected: Any) -> float:
    """The largest distance in any leaf, relative to the leaf's largest value."""
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    wide = [(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in pairs]
    return max(float(np.abs(a - b).max() / (np.abs(b).max() or 1)) for a, b in wide)


def plain_norm(x: jax.Array, norm: Norm) -> jax.Array:
    return ((x.astype(jnp.float32) - norm.mean) * norm.slope + norm.bias).astype(x.dtype)


def random_norm(features: int, seed: int) -> Norm:
    """A norm whose scales have both signs."""
    return Norm(*(random(features, seed=seed + i) for i in range(3)))


def all_gradients(function: Callable[..., Any], *arguments: Any) -> Any:
    """(results, gradients with respect to all arguments) of the sum of the results, each weighted by random numbers."""

    def total(*arguments: Any) -> tuple[jax.Array, Any]:
        results = function(*arguments)
        weighted = [(leaf * random(*leaf.shape, seed=90 + i)).sum() for i, leaf in enumerate(jax.tree.leaves(results))]
        return sum(weighted, jnp.zeros(())), results

    gradients, results = jax.jit(jax.grad(total, argnums=tuple(range(len(arguments))), has_aux=True))(*arguments)
    return results, gradients


GEOMETRIES = [
    # images, height, width, input and output channels, kernel, stride
    (3, 9, 12, 16, 32, 1, 1),
    (4, 9, 12, 24, 7, 3, 1),
    (6, 11, 8, 32, 16, 3, 2),
    (2, 11, 10, 8, 40, 1, 2),
    (5, 21, 20, 3, 16, 7, 2),
]


@needs_library
@pytest.mark.parametrize(
    ("geometry", "is_deferred"),
    [
        *((geometry, True) for geometry in GEOMETRIES),
        (GEOMETRIES[0], False),
        *(pytest.param(geometry, False, marks=pytest.mark.long) for geometry in GEOMETRIES[1:]),
    ],
)
def test_convolution_and_all_its_gradients_are_the_plain_ones(geometry: tuple[int, ...], is_deferred: bool) -> None:
    n, height, width, before, after, size, stride = geometry

    def ours(x: jax.Array, kernel: jax.Array, norm: Norm) -> Any:
        return cpu.convolve(Deferred(x, norm) if is_deferred else x, kernel, stride)

    def plain(x: jax.Array, kernel: jax.Array, norm: Norm) -> Any:
        y = layers.conv(jax.nn.relu(plain_norm(x, norm)) if is_deferred else x, kernel, stride)
        return y, y.mean((0, 1, 2)), y.var((0, 1, 2)), x

    arguments = random(n, height, width, before), random(size, size, before, after), random_norm(before, 1)
    expected, actual = (all_gradients(function, *arguments) for function in (plain, ours))
    if not is_deferred:  # nothing is normalised, so the norm has no gradient
        assert not any(leaf.any() for leaf in actual[1][2])
        expected, actual = ((results, gradients[:2]) for results, gradients in (expected, actual))
    assert distance(actual, expected) < 3e-6


@needs_library
@pytest.mark.parametrize("is_deferred", [False, True])
@pytest.mark.parametrize("dtype", [jnp.float32, pytest.param(jnp.bfloat16, marks=needs_bfloat16)])
def test_what_onednn_refuses_xla_computes(dtype: Any, is_deferred: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    n, height, width, before, after, size, stride = GEOMETRIES[2]
    x, norm = random(n, height, width, before).astype(dtype), random_norm(before, 1)
    arguments = Deferred(x, norm) if is_deferred else x, random(size, size, before, after)

    def convolved() -> Any:
        return all_gradients(lambda x, kernel: cpu.convolve(x, kernel, stride), *arguments)

    expected = convolved()
    monkeypatch.setattr(native, "has_convolution", lambda *_: False)
    assert distance(convolved(), expected) < (3e-6 if dtype == jnp.float32 else 0.02)


@needs_library
def test_a_refusal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def ask(*image: int) -> bool:
        return native.has_convolution((4, *image), (4, *image[:2], 8), 3, 1, "float32")

    with caplog.at_level(logging.WARNING):
        assert ask(224, 224, 3)
        assert not caplog.records
        assert [ask(65536, 65536, 3) for _ in range(3)] == [False] * 3
    (record,) = caplog.records
    assert "oneDNN has no convolution from [4, 65536, 65536, 3] to [4, 65536, 65536, 8]" in record.getMessage()


@pytest.mark.long
@needs_library
def test_a_library_for_another_version_of_xla_s_interface_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """XLA asks for the version and calls the library accordingly, so it must be the version compiled against."""
    headers = tmp_path / "xla" / "ffi" / "api"
    headers.mkdir(parents=True)
    own = (locate_headers() / "xla" / "ffi" / "api" / "c_api.h").read_text()
    other, count = re.subn(r"(?<=#define XLA_FFI_API_MINOR )\d+", "999", own)
    assert count == 1
    (headers / "c_api.h").write_text(other)
    monkeypatch.setattr(native, "LIBRARY", build(tmp_path / "layers.so", headers=tmp_path))
    native.load.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            assert native.load() == frozenset()
        assert "999" in caplog.text
    finally:
        native.load.cache_clear()


@needs_library
def test_mean_and_variance_of_values_far_from_zero() -> None:
    """The variance is computed around the mean; at 1000 with a deviation of 0.1, float32 leaves it three digits."""
    x = 1000 + 0.1 * random(8, 16, 16, 16)
    _, mean, var, _ = cpu.convolve(x, jnp.eye(16)[None, None], 1)
    wide = np.asarray(x, np.float64)
    np.testing.assert_allclose(mean, wide.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(var, wide.var((0, 1, 2)), rtol=1e-3)


@needs_library
@pytest.mark.parametrize("has_norm", [False, True])
def test_end_of_a_block_is_the_plain_one(has_norm: bool) -> None:
    def ours(x: jax.Array, norm: Norm, beside: jax.Array, other: Norm) -> jax.Array:
        return cpu.residual_add(Deferred(x, norm), Deferred(beside, other) if has_norm else beside)

    def plain(x: jax.Array, norm: Norm, beside: jax.Array, other: Norm) -> jax.Array:
        return jax.nn.relu(plain_norm(x, norm) + (plain_norm(beside, other) if has_norm else beside))

    shape = 3, 20, 20, 300  # several blocks of rows for the threads
    arguments = random(*shape), random_norm(300, 1), random(*shape, seed=5), random_norm(300, 6)
    expected, actual = (all_gradients(function, *arguments) for function in (plain, ours))
    if not has_norm:
        expected, actual = ((results, gradients[:3]) for results, gradients in (expected, actual))
    assert distance(actual, expected) < 3e-6


@needs_library
@pytest.mark.parametrize("side", [pytest.param(8, marks=pytest.mark.long), 9])
@pytest.mark.parametrize("padding", ["same", "symmetric"])
def test_pool_is_the_plain_one(padding: Any, side: int) -> None:
    def ours(x: jax.Array, norm: Norm) -> jax.Array:
        return cpu.max_pool(Deferred(x, norm), padding)

    def plain(x: jax.Array, norm: Norm) -> jax.Array:
        return layers.max_pool(jax.nn.relu(plain_norm(x, norm)), padding)

    arguments = random(3, side, side, 20), random_norm(20, 1)
    expected, actual = (all_gradients(function, *arguments) for function in (plain, ours))
    assert distance(actual, expected) < 3e-6


@needs_library
def test_nan_passes_through() -> None:
    x = random(2, 8, 8, 16).at[1, 2, 3, 4].set(jnp.nan)
    deferred, kernel = Deferred(x, random_norm(16, 1)), random(1, 1, 16, 8)
    pooled = jax.jit(functools.partial(cpu.max_pool, padding="same"))(deferred)
    added = jax.jit(cpu.residual_add)(deferred, x)
    _, mean, _, _ = jax.jit(cpu.convolve, static_argnums=2)(deferred, kernel, 1)
    for y in (pooled, added):
        assert np.isnan(y[1, ..., 4]).any()
        assert not np.isnan(y[0]).any()
    assert np.isnan(mean).all()


def network_of(kernels: Kernels, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Network, Config]:
    for depth in (18, 50):  # each kind of block, and one that follows another of its kind
        monkeypatch.setitem(
            ARCHITECTURES, depth, dataclasses.replace(ARCHITECTURES[depth], blocks_per_group=(2, 1, 1, 1))
        )
    config = Config().replace(
        resnet_width=8, stem="imagenet", train_batch_size=8, num_train_images=64, base_learning_rate=0.1,
        learning_rate_schedule="constant", **options,
    )  # fmt: skip
    return create_network(config.model, num_classes=10, image_size=64).with_kernels(kernels), config


def perturbed(params: Any) -> Any:
    """Changes scales and biases: the last norm of a branch starts at zero, which would hide the branch's gradients."""
    return jax.tree.map(lambda leaf: leaf + 0.2 * random(*leaf.shape) if leaf.ndim == 1 else leaf, params)


def gradients_of(network: Network) -> Callable[[jax.Array], Any]:
    """A function from images to a network's gradients, logits and statistics."""
    params, batch_stats = network.init(0)

    def forward(params: Any, images: jax.Array) -> Any:
        logits, moved = network.apply(params, batch_stats, images, train=True, key=jax.random.key(0), progress=0.5)
        return (logits * jnp.arange(10)).sum(), (logits, moved)

    return functools.partial(jax.jit(jax.grad(forward, has_aux=True)), perturbed(params))


VARIANTS: list[dict[str, Any]] = [
    {"resnet_depth": 18},
    {"resnet_depth": 50},
    {"resnet_depth": 18, "freeze_batch_norm": True},
    {"resnet_depth": 18, "use_resnetd_stem": True, "dropout_rate": 0.2},
    {"resnet_depth": 18, "replace_stem_max_pool": True, "pool_padding": "symmetric"},
]
SLOW_VARIANTS: list[dict[str, Any]] = [
    {"resnet_depth": 50, "resnetd_shortcut": True, "se_ratio": 0.25, "drop_connect_rate": 0.2},
    {"resnet_depth": 50, "dropblock_groups": "3,4", "dropblock_keep_prob": 0.9},
]


@needs_library
@pytest.mark.parametrize(
    "options",
    [
        VARIANTS[0],
        *(pytest.param(options, marks=pytest.mark.long) for options in VARIANTS[1:]),
        *(pytest.param(options, marks=pytest.mark.slow) for options in SLOW_VARIANTS),
    ],
)
def test_a_whole_network_gives_the_same_by_both_kernels(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    images = random(8, 64, 64, 3)
    plain, ours = (
        gradients_of(network_of(kernels, monkeypatch, precision="float32", **options)[0])(images)
        for kernels in (PLAIN, CPU)
    )
    assert distance(ours, plain) < 1e-4


@pytest.mark.long
@needs_bfloat16
def test_a_network_in_bfloat16_is_as_near_to_float32_as_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for kernels, precision in ((PLAIN, "float32"), (PLAIN, "bfloat16"), (CPU, "bfloat16")):
        gradients = gradients_of(network_of(kernels, monkeypatch, precision=precision, resnet_depth=18)[0])
        # a single batch may be off by 20 %, the mean over batches by 1 %
        found.append(
            [leaf for seed in range(16) for leaf in jax.tree.leaves(gradients(random(8, 64, 64, 3, seed=seed)))]
        )
    exact, plain, ours = found
    errors = [
        np.mean([np.linalg.norm(leaf - right) / np.linalg.norm(right) for leaf, right in zip(own, exact, strict=True)])
        for own in (plain, ours)
    ]
    assert errors[1] <= 1.1 * errors[0]


@pytest.mark.long
@needs_library
def test_losses_of_fifty_steps_are_those_of_the_plain_step(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    batch = {
        "image": jnp.asarray(rng.integers(0, 256, (8, 64, 64, 3), np.uint8)),
        "label": jnp.arange(8),
        "weight": jnp.ones(8),
    }
    losses = []
    for kernels in (PLAIN, CPU):
        network, config = network_of(kernels, monkeypatch, precision="float32", resnet_depth=18)
        state = create_state(network, config.optimizer, seed=0)
        step = make_train_step(network, make_schedule(config), config.optimizer)
        own = []
        for _ in range(50):
            state, metrics = step(state, batch)
            own.append(float(metrics["loss"]))
        losses.append(own)
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-3)
    assert losses[0][-1] < losses[0][0]


def test_library_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "0")
    native.load.cache_clear()
    try:
        assert native.load() == frozenset()
    finally:
        native.load.cache_clear()


@needs_library
def test_several_groups_are_left_to_the_plain_layers() -> None:
    layer = layers.ConvNorm(random(3, 3, 4, 8), jnp.ones(8), jnp.zeros(8))
    x = random(4, 8, 8, 4)
    assert cpu.conv_norm(x, layer, stride=1, num_groups=2, relu=True, pool=None) is None
    assert cpu.block(x, [layer, layer], None, stride=1, num_groups=2) is None
