"""Batch norms computed with the layers beside them, in pairs of columns and in whole blocks, against each by itself."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resnet_tpu import distributed
from resnet_tpu.config import ModelConfig
from resnet_tpu.models import registry
from resnet_tpu.models.architecture import Architecture, LayerForm
from resnet_tpu.models.blocks import BottleneckBlock, ConvNorm, Maker
from resnet_tpu.models.fused import relu as fused_relu
from resnet_tpu.models.layers import Conv, choose_form
from resnet_tpu.models.network import Network
from resnet_tpu.models.norms import BatchNorm
from resnet_tpu.models.training import Training

Module = ConvNorm | BottleneckBlock
FEATURES = 24
FORMS: tuple[LayerForm, LayerForm] = ("plain", "tpu")
BLOCKS = {"block": (24, 1, False), "first block": (8, 1, True), "halving block": (8, 2, True)}
"""(channels in, stride, whether there is a projection)."""
KINDS = ["widening", "strided", "stem", "paired stem", *BLOCKS]


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def make(kind: str, *, fused: bool, groups: int, dtype: Any = jnp.float32) -> Module:
    """A 1x1 convolution that widens, one of stride 2, or a stem of 7x7, with scales of both signs and one of zero.

    Or a whole block.
    """
    if kind in BLOCKS:
        return make_block(kind, fused=fused, groups=groups, dtype=dtype)
    size, stride, inputs = {"widening": (1, 1, 8), "strided": (1, 2, 8)}.get(kind, (7, 2, 3))
    is_stem = "stem" in kind
    norm = BatchNorm(FEATURES, momentum=0.8, num_groups=groups, form=FORMS[fused], relu=is_stem)
    scale = random(FEATURES, seed=1)
    scale[3] = 0
    norm.scale[...], norm.bias[...] = jnp.array(scale), jnp.array(random(FEATURES, seed=2))
    rng, paired_images = np.random.default_rng(3), 3 if kind == "paired stem" else 0
    conv = Conv(inputs, FEATURES, size, stride, dtype=dtype, rng=rng, paired_images=paired_images)
    return ConvNorm(conv, norm, "same" if is_stem else None)


def make_block(kind: str, *, fused: bool, groups: int, dtype: Any) -> BottleneckBlock:
    architecture = Architecture(
        (1,),
        bottleneck=True,
        width=6,
        form=FORMS[fused],
        joined_images=3 * fused,
        pairs_columns=kind != "block",
        batch_norm_groups=groups,
    )
    maker = Maker(architecture, dtype, np.random.default_rng(3))
    features, stride, is_first = BLOCKS[kind]
    block = BottleneckBlock(features, 6, stride, inner=(6, 5), group=1, is_first=is_first, make=maker)
    for conv in (block.conv1, block.conv2, block.conv3, block.projection):
        if conv is not None:
            norm = conv.batch_norm
            norm.scale[...], norm.bias[...] = (jnp.array(random(*norm.scale.shape, seed=seed)) for seed in (1, 2))
    return block


def run(module: Module, xs: Iterable[jax.Array]) -> Any:
    """For every x: (result, gradients of x and of the parameters, running statistics) of a step of training."""
    graph, params, stats = nnx.split(module, nnx.Param, nnx.BatchStat)

    @jax.jit
    def step(x: jax.Array, params: Any) -> Any:
        def forward(x: jax.Array, params: Any) -> tuple[jax.Array, Any]:
            own = nnx.merge(graph, params, stats, copy=True)
            return own(x, Training()), nnx.state(own, nnx.BatchStat)

        y, backward, moved = jax.vjp(forward, x, params, has_aux=True)
        return y, backward(jnp.asarray(random(*y.shape, seed=5), y.dtype)), moved

    return [step(x, params) for x in xs]


def images(kind: str, dtype: Any = jnp.float32, *, seed: int = 4) -> jax.Array:
    x = random(6, 12, 12, 3 if "stem" in kind else BLOCKS.get(kind, (8,))[0], seed=seed)
    return jnp.asarray(x if "stem" in kind else np.maximum(x, 0), dtype)  # as after a ReLU, whose mean is no zero


def distance(actual: jax.Array, expected: jax.Array) -> float:
    """Of the farthest values, in shares of the largest."""
    wide = np.asarray(expected, np.float64)
    return float(np.abs(np.asarray(actual, np.float64) - wide).max() / np.abs(wide).max())


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_fused_forms_in_float32_are_the_plain_ones(kind: str, groups: int) -> None:
    plain, fused = (run(make(kind, fused=fused, groups=groups), [images(kind)]) for fused in (False, True))
    for expected, actual in zip(jax.tree.leaves(plain), jax.tree.leaves(fused), strict=True):
        assert actual.shape == expected.shape
        assert distance(actual, expected) < 3e-6  # 1e-6 seen


def root_mean_squares(actual: Any, expected: Any) -> list[float]:
    """Of the differences of each array, in shares of the largest value."""

    def of(actual: jax.Array, expected: jax.Array) -> float:
        wide = np.asarray(expected, np.float64)
        return float(np.sqrt(np.square(np.asarray(actual, np.float64) - wide).mean()) / np.abs(wide).max())

    return jax.tree.leaves(jax.tree.map(of, actual, expected))


@pytest.mark.parametrize("kind", KINDS)
def test_fused_forms_in_bfloat16_are_as_near_to_float32_as_the_plain_ones(kind: str) -> None:
    xs = [images(kind, jnp.bfloat16, seed=seed) for seed in range(32)]
    exact = run(make(kind, fused=False, groups=2), [x.astype(jnp.float32) for x in xs])
    plain, fused = (run(make(kind, fused=fused, groups=2, dtype=jnp.bfloat16), xs) for fused in (False, True))
    assert fused[0][0].dtype == jnp.bfloat16
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(fused[0][2]))
    # the median, for by chance a ReLU lets through what that of the other stops, and then that batch is all that counts
    errors = [np.median(list(map(root_mean_squares, found, exact)), axis=0) for found in (plain, fused)]
    for by_layer, by_both in zip(*errors, strict=True):
        assert by_both <= 1.15 * by_layer  # up to 1.08 seen


def test_a_frozen_norm_is_never_fused() -> None:
    module = make("widening", fused=True, groups=1)
    assert isinstance(module, ConvNorm)
    module.norm = BatchNorm(FEATURES, momentum=0.8, num_groups=1, frozen=True, form="tpu")
    x = images("widening")
    np.testing.assert_array_equal(module(x, Training()), module(x, None))


def test_only_half_precision_on_a_tpu_fuses() -> None:
    assert choose_form("TPU v2", "bfloat16") == "tpu"
    assert choose_form("TPU v5 lite", jnp.bfloat16, num_devices=8) == "tpu"
    assert choose_form("TPU v2", "float32") == "plain"
    assert choose_form("NVIDIA H200", "bfloat16") == "plain"


@pytest.mark.parametrize(
    ("device_kind", "options", "images"),
    [
        ("TPU v2", {"kernels": "block"}, 512),
        ("TPU v2", {}, 0),
        ("TPU v3", {"kernels": "block"}, 512),
        ("TPU v3", {"kernels": "block", "precision": "float32"}, 0),
        ("TPU v3", {"kernels": "block", "freeze_batch_norm": True}, 0),
        ("TPU v5 lite", {"kernels": "block"}, 512),
        ("TPU v5 lite", {}, 0),
        ("NVIDIA H200", {"kernels": "block"}, 0),
    ],
)
def test_tpus_join_blocks_where_that_is_asked_for_and_the_first_generations_pair_columns(
    device_kind: str, options: dict[str, Any], images: int
) -> None:
    model = ModelConfig(**options)
    found = registry.find_architecture(model, image_size=224, device_kind=device_kind, num_devices=4)
    assert found.joined_images == images
    assert found.pairs_columns == (device_kind in ("TPU v2", "TPU v3"))


@pytest.mark.parametrize(
    ("shape", "features", "size", "pairs"),
    [
        ((4, 8, 56, 3), 64, 3, True),
        ((4, 8, 57, 3), 64, 3, False),
        ((5, 8, 56, 3), 64, 3, False),
        ((4, 8, 56, 3), 65, 3, False),
        ((4, 8, 56, 3), 64, 2, False),
    ],
)
def test_narrow_convolutions_of_full_batches_pair_columns(
    shape: tuple[int, ...], features: int, size: int, pairs: bool
) -> None:
    for paired_images in (2, 0):
        conv = Conv(3, features, size, 1, dtype=jnp.bfloat16, rng=None, paired_images=paired_images)
        assert conv.can_pair(jnp.zeros(shape)) == (pairs and paired_images > 0)


def gradients_of(network: Network) -> Callable[..., Any]:
    @jax.jit
    def gradients(params: Any, batch_stats: Any, x: jax.Array) -> Any:
        def forward(params: Any) -> Any:
            logits, moved = network.apply(params, batch_stats, x, train=True)
            return (logits * jnp.arange(5)).sum(), (logits, moved)

        return jax.grad(forward, has_aux=True)(params)

    return gradients


@pytest.mark.parametrize(
    ("device_kind", "options"),
    [
        ("TPU v2", {"kernels": "block"}),
        ("TPU v5 lite", {}),
        ("TPU v6 lite", {"use_resnetd_stem": True, "resnetd_shortcut": True, "se_ratio": 0.25}),
    ],
)
def test_a_whole_network_gives_the_same_in_both_forms(
    device_kind: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # each kind of block, and some that follow their like
    monkeypatch.setitem(registry._IMAGENET_BLOCKS, 50, (2, 2, 1, 1))
    monkeypatch.setattr(registry, "LANES", 2)
    model = ModelConfig(resnet_depth=50, resnet_width=4, stem="imagenet", precision="float32", **options)
    x = random(4, 64, 64, 3)
    nearly = [np.nextafter(x, random(*x.shape, seed=seed)) for seed in range(1, 9)]
    found = []
    for form, inputs in (("plain", [x, *nearly]), ("tpu", [x])):
        monkeypatch.setattr(registry, "choose_form", lambda *_, form=form, **__: form)  # in float32 too
        network = Network.create(model, num_classes=5, image_size=64, batch_norm_groups=2, device_kind=device_kind)
        params, batch_stats = network.init(0)
        # last norms of branches begin at zero and would hide theirs
        params = jax.tree.map(lambda leaf: leaf + 0.1 * random(*leaf.shape) if leaf.ndim == 1 else leaf, params)
        gradients = gradients_of(network)
        found += [jax.tree.leaves(gradients(params, batch_stats, jnp.asarray(images))) for images in inputs]
    plain, *noisy, fused = found
    differences, *noise = ([distance(*pair) for pair in zip(other, plain, strict=True)] for other in (fused, *noisy))
    # up to twice what the last bits of the images make, more or less by the processor
    assert max(differences) < 3 * np.max(noise) < 1e-4
    assert np.median(differences) < 3 * np.median(noise) < 1e-5


@pytest.mark.parametrize("kind", ["paired stem", "first block", "halving block"])
def test_fused_forms_on_three_devices_are_those_on_one(kind: str) -> None:
    module, x = make(kind, fused=True, groups=3), images(kind)
    everywhere = jax.device_put(x, distributed.split_batch(distributed.mesh_of(jax.devices()[:3])))
    one, three = run(module, [x, everywhere])
    assert len(three[0].sharding.device_set) == 3
    for expected, actual in zip(jax.tree.leaves(one), jax.tree.leaves(three), strict=True):
        assert distance(actual, expected) < 3e-6


def test_relu_and_its_gradient_are_the_plain_ones() -> None:
    x = jnp.asarray([-2.0, -0.0, 0.0, 1e-30, 3.0], jnp.bfloat16)

    def both(function: Callable[[jax.Array], jax.Array]) -> list[jax.Array]:
        values, pull_back = jax.vjp(function, x)
        return [values, *pull_back(x)]

    for plain, fused in zip(both(nnx.relu), both(fused_relu), strict=True):
        np.testing.assert_array_equal(plain, fused)
