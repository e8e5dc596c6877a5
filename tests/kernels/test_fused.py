"""Batch norms fused with neighbouring layers, compared with the plain ones."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.kernels import fused
from resnet_tpu.kernels.fused import FUSED
from resnet_tpu.models.architecture import ARCHITECTURES
from resnet_tpu.models.from_options import create_network
from resnet_tpu.models.kernel_table import PLAIN, Kernels
from resnet_tpu.models.layers import ConvNorm
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import ModelConfig
from resnet_tpu.parallel import meshes
from resnet_tpu.training.compiler_options import required_options_for
from tests.models.nets import TRAINING, Part, architecture, random

OPTIONS = required_options_for(jax.devices("cpu")[0])
FEATURES = 24
KINDS = ["expanding", "stem"]


def make(kind: str, *, groups: int, dtype: Any = jnp.float32) -> Part:
    """A 1x1 convolution that adds channels, one with stride 2, or a 7x7 stem; scales have both signs."""
    calls: dict[str, Callable[[Any, jax.Array], jax.Array]] = {
        "expanding": lambda net, x: net.conv_norm("conv", x, FEATURES, 1),
        "strided": lambda net, x: net.conv_norm("conv", x, FEATURES, 1, 2),
        "stem": lambda net, x: net.conv_norm("conv", x, FEATURES, 7, 2, relu=True, pool="same"),
    }
    settings = architecture(batch_norm_groups=groups, bn_momentum=0.8)
    part = Part(calls[kind], settings, images(kind), dtype=dtype)
    norm = part.params["conv"]["norm"]
    norm["scale"], norm["bias"] = (random(FEATURES, seed=seed) for seed in (1, 2))
    norm["scale"][3] = 0
    return part


def run(part: Part, xs: Iterable[jax.Array], kernels: Kernels) -> Any:
    """For every x: (result, gradients of x and of the parameters, running statistics) of a training step."""

    def step(x: jax.Array, params: Any) -> Any:
        y, vjp, moved = jax.vjp(lambda x, params: part.step(params, x, TRAINING, kernels), x, params, has_aux=True)
        return y, vjp(jnp.asarray(random(*y.shape, seed=5), y.dtype)), moved

    compiled = jax.jit(step, compiler_options=OPTIONS)
    return [compiled(x, part.params) for x in xs]


def images(kind: str, dtype: Any = jnp.float32, *, seed: int = 4) -> jax.Array:
    x = random(6, 12, 12, 3 if kind == "stem" else 8, seed=seed)
    return jnp.asarray(x if kind == "stem" else np.maximum(x, 0), dtype)  # as after a ReLU, with a non-zero mean


def distance(actual: jax.Array, expected: jax.Array) -> float:
    """The largest difference, as a fraction of the largest value."""
    wide = np.asarray(expected, np.float64)
    return float(np.abs(np.asarray(actual, np.float64) - wide).max() / np.abs(wide).max())


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Computes in float64 wherever the package says float32."""
    with jax.enable_x64(True):
        monkeypatch.setattr(jnp, "float32", jnp.float64)
        yield


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("groups", [pytest.param(1, marks=pytest.mark.long), 3])
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_equal_the_plain_ones_in_float64(kind: str, groups: int) -> None:
    part = make(kind, groups=groups, dtype=jnp.float64)
    part.params, part.batch_stats = jax.tree.map(np.float64, (part.params, part.batch_stats))
    x = np.float64(images(kind))
    plain, other = (run(part, [jnp.asarray(x)], kernels) for kernels in (PLAIN, FUSED))
    assert other[0][0].dtype == jnp.float64
    for expected, actual in zip(jax.tree.leaves(plain), jax.tree.leaves(other), strict=True):
        assert actual.shape == expected.shape
        assert distance(actual, expected) < 1e-13


def root_mean_squares(actual: Any, expected: Any) -> list[float]:
    """The root mean square difference of each array, as a fraction of its largest value."""

    def of(actual: jax.Array, expected: jax.Array) -> float:
        wide = np.asarray(expected, np.float64)
        return float(np.sqrt(np.square(np.asarray(actual, np.float64) - wide).mean()) / np.abs(wide).max())

    return jax.tree.leaves(jax.tree.map(of, actual, expected))


@pytest.mark.parametrize("kind", ["expanding", pytest.param("stem", marks=pytest.mark.long)])
def test_kernels_in_bfloat16_are_as_near_to_float32_as_the_plain_ones(kind: str) -> None:
    xs = [images(kind, jnp.bfloat16, seed=seed) for seed in range(32)]
    exact = run(make(kind, groups=2), [x.astype(jnp.float32) for x in xs], PLAIN)
    half = make(kind, groups=2, dtype=jnp.bfloat16)
    plain, other = (run(half, xs, kernels) for kernels in (PLAIN, FUSED))
    assert other[0][0].dtype == jnp.bfloat16
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(other[0][2]))
    # the median, because a ReLU may let through by chance what the other's stops; that batch would dominate a mean
    errors = [np.median(list(map(root_mean_squares, found, exact)), axis=0) for found in (plain, other)]
    for by_plain, by_other in zip(*errors, strict=True):
        assert by_other <= 1.15 * by_plain  # up to 1.08 seen


@pytest.mark.long
def test_the_gradient_of_a_normalised_input_has_no_mean() -> None:
    """A constant added to the input has no effect after a batch norm; rounding must not make it appear to have one."""
    x = jnp.asarray(np.maximum(random(8, 112, 112, 16), 0) + 0.5, jnp.bfloat16)  # 10^5 positions
    part = Part(lambda net, x: net.conv_norm("conv", x, 64, 1), architecture(), x, dtype=jnp.bfloat16)
    norm = part.params["conv"]["norm"]
    norm["scale"] = random(64, seed=1)
    ((_, (dx, _), _),) = run(part, [x], FUSED)
    wide = np.asarray(dx, np.float64)
    bias = np.abs(wide.mean((0, 1, 2))) / np.sqrt(np.square(wide).mean((0, 1, 2)))
    assert bias.max() < 5e-4  # with unrounded matrices it would be 3e-3 to 3e-2


def test_a_kernel_says_what_it_does_not_do() -> None:
    x, frozen = jnp.ones((6, 4, 4, 8)), (jnp.zeros(16), jnp.ones(16))
    arrays = jnp.ones(16), jnp.zeros(16)
    widening, narrowing = (ConvNorm(jnp.ones((1, 1, before, 16)), *arrays) for before in (8, 32))
    of = {"stride": 1, "num_groups": 1}
    assert fused.conv_norm(x, widening, **of, relu=False, pool=None) is not None
    assert fused.conv_norm(x, widening._replace(frozen=frozen), **of, relu=False, pool=None) is None
    assert fused.conv_norm(x, widening, **of, relu=True, pool=None) is None
    assert fused.conv_norm(x, narrowing, **of, relu=False, pool=None) is None
    assert fused.conv_norm(x, widening, stride=2, num_groups=1, relu=False, pool=None) is None


def gradients_of(network: Network) -> Callable[..., Any]:
    def gradients(params: Any, batch_stats: Any, x: jax.Array) -> Any:
        def forward(params: Any) -> Any:
            logits, moved = network.apply(params, batch_stats, x, train=True)
            return (logits * jnp.arange(5)).sum(), (logits, moved)

        return jax.grad(forward, has_aux=True)(params)

    return jax.jit(gradients, compiler_options=OPTIONS)


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [{}, {"use_resnetd_stem": True, "resnetd_shortcut": True, "se_ratio": 0.25}],
    ids=["ResNet", "ResNet-D with SE"],
)
def test_a_whole_network_gives_the_same(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    # each kind of block, and some that follow another of their kind
    monkeypatch.setitem(ARCHITECTURES, 50, dataclasses.replace(ARCHITECTURES[50], blocks_per_group=(2, 2, 1, 1)))
    model = ModelConfig(resnet_depth=50, resnet_width=4, stem="imagenet", precision="float32", **options)
    plain_network = create_network(model, num_classes=5, image_size=64, batch_norm_groups=2)
    params, batch_stats = plain_network.init(0)
    # the last norm of each branch starts at zero, which would hide the branch's gradients
    params = jax.tree.map(lambda leaf: leaf + 0.1 * random(*leaf.shape) if leaf.ndim == 1 else leaf, params)
    x = random(4, 64, 64, 3)
    nearly = [np.nextafter(x, random(*x.shape, seed=seed)) for seed in range(1, 9)]
    found = []
    for network, inputs in ((plain_network, [x, *nearly]), (plain_network.with_kernels(FUSED), [x])):
        gradients = gradients_of(network)
        found += [jax.tree.leaves(gradients(params, batch_stats, jnp.asarray(images))) for images in inputs]
    plain, *noisy, other = found
    differences, *noise = ([distance(*pair) for pair in zip(each, plain, strict=True)] for each in (other, *noisy))
    # up to twice the effect of changing the last bits of the images, depending on the processor
    assert max(differences) < 3 * np.max(noise) < 1e-4
    assert np.median(differences) < 3 * np.median(noise) < 1e-5


@pytest.mark.parametrize("kind", ["expanding", pytest.param("stem", marks=pytest.mark.long)])
def test_kernels_agree_on_one_and_three_devices(kind: str) -> None:
    part, x = make(kind, groups=3), images(kind)
    everywhere = jax.device_put(x, meshes.batch_sharding(meshes.mesh_of(jax.devices()[:3])))
    one, three = run(part, [x, everywhere], FUSED)
    assert len(three[0].sharding.device_set) == 3
    for expected, actual in zip(jax.tree.leaves(one), jax.tree.leaves(three), strict=True):
        assert distance(actual, expected) < 3e-6


def test_the_end_of_a_block_and_its_gradient_are_the_plain_ones() -> None:
    x = jnp.asarray([-2.0, -0.0, 0.0, 1e-30, 3.0], jnp.bfloat16)

    def both(function: Callable[[jax.Array, jax.Array], jax.Array]) -> list[jax.Array]:
        values, vjp = jax.vjp(function, x, jnp.zeros_like(x))
        return [values, *vjp(x)]

    for plain, other in zip(both(lambda x, y: jax.nn.relu(x + y)), both(fused.add_relu), strict=True):
        np.testing.assert_array_equal(plain, other)
