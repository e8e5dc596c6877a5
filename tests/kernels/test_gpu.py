"""The GPU kernels compared with the plain layers, on a CPU."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.kernels import gpu
from resnet_tpu.kernels.gpu import GPU
from resnet_tpu.models import layers
from resnet_tpu.models.architecture import PoolPadding
from resnet_tpu.models.kernel_table import PLAIN
from resnet_tpu.models.layers import ConvNorm
from resnet_tpu.parallel import meshes
from tests.kernels.test_fused import distance, images, in_float64, make, root_mean_squares, run
from tests.models.nets import random

__all__ = ["in_float64"]


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize(("kind", "groups"), [("expanding", 3), ("expanding", 1), ("strided", 3), ("stem", 3)])
def test_kernels_equal_the_plain_ones_in_float64(kind: str, groups: int) -> None:
    part = make(kind, groups=groups, dtype=jnp.float64)
    part.params, part.batch_stats = jax.tree.map(np.float64, (part.params, part.batch_stats))
    xs = [jnp.asarray(np.float64(images(kind)))]
    plain, other = (run(part, xs, kernels) for kernels in (PLAIN, GPU))
    for expected, actual in zip(jax.tree.leaves(plain), jax.tree.leaves(other), strict=True):
        assert (actual.shape, actual.dtype) == (expected.shape, jnp.float64)
        assert distance(actual, expected) < 1e-13


@pytest.mark.parametrize(
    "kind", ["expanding", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("strided", "stem"))]
)
def test_kernels_in_bfloat16_are_nearly_as_near_to_float32_as_the_plain_ones(kind: str) -> None:
    xs = [images(kind, jnp.bfloat16, seed=seed) for seed in range(16)]
    exact = run(make(kind, groups=1), [x.astype(jnp.float32) for x in xs], PLAIN)
    half = make(kind, groups=1, dtype=jnp.bfloat16)
    plain, other = (run(half, xs, kernels) for kernels in (PLAIN, GPU))
    errors = [np.median(list(map(root_mean_squares, found, exact)), axis=0) for found in (plain, other)]
    for by_plain, by_other in zip(*errors, strict=True):
        # up to 1.24 seen, as the offset is rounded too; a CPU rounds after each addition, a GPU only at the end
        assert by_other <= 1.3 * by_plain


@pytest.mark.long
def test_the_gradient_of_a_normalised_input_has_no_mean() -> None:
    """As in the test of `fused`."""
    x = jnp.asarray(np.maximum(random(2, 112, 112, 16), 0) + 0.5, jnp.bfloat16)
    arrays = random(16, 64) / 4, random(64, seed=1), np.zeros(64, np.float32)

    @jax.jit
    def gradient(x: jax.Array, *arrays: jax.Array) -> jax.Array:
        normed: Any
        normed, vjp = jax.vjp(lambda x: gpu.expand(x, *arrays, 1), x)
        y, *moments = normed
        return vjp((jnp.asarray(random(*y.shape, seed=5), y.dtype), *map(jnp.zeros_like, moments)))[0]

    wide = np.asarray(gradient(x, *arrays), np.float64)
    assert (np.abs(wide.mean((0, 1, 2))) / np.sqrt(np.square(wide).mean((0, 1, 2)))).max() < 5e-4


@pytest.mark.parametrize("padding", ["same", "symmetric"])
@pytest.mark.parametrize("side", [pytest.param(8, marks=pytest.mark.long), 9])
def test_the_pool_and_its_gradient_are_the_plain_ones_where_values_are_equal_too(
    padding: PoolPadding, side: int
) -> None:
    x = jnp.asarray(np.random.default_rng(0).integers(-2, 3, (2, side, side, 5)), jnp.bfloat16)

    @functools.partial(jax.jit, static_argnums=0)
    def pooled(pool: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The result and the gradient of x."""
        y, vjp = jax.vjp(lambda x: pool(x, padding), x)
        return y, vjp(jnp.asarray(random(*y.shape), y.dtype))[0]

    jax.tree.map(np.testing.assert_array_equal, pooled(gpu.max_pool, x), pooled(layers.max_pool, x))


def test_kernels_agree_on_one_and_three_devices() -> None:
    part, x = make("expanding", groups=3), images("expanding")
    everywhere = jax.device_put(x, meshes.batch_sharding(meshes.mesh_of(jax.devices()[:3])))
    one, three = run(part, [x, everywhere], GPU)
    for expected, actual in zip(jax.tree.leaves(one), jax.tree.leaves(three), strict=True):
        assert distance(actual, expected) < 3e-6


def test_a_frozen_norm_and_a_pool_without_relu_are_left_to_the_plain_layers() -> None:
    x, of = jnp.ones((2, 4, 4, 8)), {"stride": 1, "num_groups": 1}
    layer: Any = ConvNorm(jnp.ones((1, 1, 8, 8)), jnp.ones(8), jnp.zeros(8))
    frozen = layer._replace(frozen=(jnp.zeros(8), jnp.ones(8)))
    assert gpu.conv_norm(x, frozen, **of, relu=True, pool=None) is None
    assert gpu.conv_norm(x, layer, **of, relu=False, pool="same") is None
