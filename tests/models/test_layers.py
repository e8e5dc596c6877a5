"""Each layer against its formula, computed by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resnet_tpu.models.layers import BatchNorm, Conv, Dense, draw_kernel, global_average, max_pool


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("size", [8, 9])
@pytest.mark.parametrize(
    ("kernel_size", "stride", "before", "after"),
    [(7, 2, 3, 3), (3, 2, 1, 1), (1, 2, 0, 0), (3, 1, 1, 1), (1, 1, 0, 0)],
)
def test_conv_pads_the_same_for_even_and_odd_sizes(
    kernel_size: int, stride: int, before: int, after: int, size: int
) -> None:
    conv = Conv(2, 3, kernel_size, stride, dtype=jnp.float32, rng=np.random.default_rng(0))
    kernel = np.asarray(conv.kernel[...], np.float64)
    x = random(2, size, size + 1, 2)
    padded = np.pad(x.astype(np.float64), ((0, 0), (before, after), (before, after), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel_size, kernel_size), (1, 2))
    expected = np.einsum("nyxchw,hwco->nyxo", windows[:, ::stride, ::stride], kernel)
    actual = jax.jit(conv)(x)
    assert actual.shape == (2, -(-size // stride), -(-(size + 1) // stride), 3)
    np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.parametrize(("size", "before", "after"), [(6, 0, 1), (7, 1, 1)])
def test_max_pool_pads_even_sizes_only_after(size: int, before: int, after: int) -> None:
    x = random(1, size, size, 2)
    padded = np.pad(x, ((0, 0), (before, after), (before, after), (0, 0)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::2, ::2]
    np.testing.assert_array_equal(max_pool(jnp.asarray(x)), windows.max((-1, -2)))


def make_norm(features: int = 3, *, num_groups: int = 1, momentum: float = 0.9) -> BatchNorm:
    norm = BatchNorm(features, momentum=momentum, num_groups=num_groups)
    values = random(4, features, seed=1)
    norm.scale[...], norm.bias[...], norm.mean[...] = jnp.array(values[0]), jnp.array(values[1]), jnp.array(values[2])
    norm.var[...] = jnp.array(np.square(values[3]))
    return norm


def test_batch_norm_in_training_by_hand() -> None:
    norm, x = make_norm(momentum=0.8), random(4, 5, 6, 3)
    scale, bias, mean, var = (np.asarray(value[...]) for value in (norm.scale, norm.bias, norm.mean, norm.var))
    batch_mean, batch_var = x.mean((0, 1, 2)), x.var((0, 1, 2))
    y = norm(jnp.asarray(x), train=True)
    np.testing.assert_allclose(y, (x - batch_mean) / np.sqrt(batch_var + 1e-5) * scale + bias, atol=1e-5)
    np.testing.assert_allclose(norm.mean[...], 0.8 * mean + 0.2 * batch_mean, rtol=1e-5, atol=1e-6)
    # the running variance takes the unbiased one: n/(n-1), n = 4 * 5 * 6
    np.testing.assert_allclose(norm.var[...], 0.8 * var + 0.2 * batch_var * 120 / 119, rtol=1e-5)


def test_batch_norm_in_evaluation_by_hand() -> None:
    norm, x = make_norm(), random(4, 5, 6, 3)
    scale, bias, mean, var = (np.asarray(value[...]) for value in (norm.scale, norm.bias, norm.mean, norm.var))
    y = norm(jnp.asarray(x), train=False)
    np.testing.assert_allclose(y, (x - mean) / np.sqrt(var + 1e-5) * scale + bias, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(norm.mean[...], mean)
    np.testing.assert_array_equal(norm.var[...], var)


def test_groups_are_normalised_apart_and_their_statistics_averaged() -> None:
    x = random(8, 3, 3, 3) + np.repeat(np.arange(4), 2)[:, None, None, None].astype(np.float32)
    norm = make_norm(num_groups=4)
    y = norm(jnp.asarray(x), train=True)
    apart = [make_norm() for _ in range(4)]
    parts = [one(jnp.asarray(x[2 * i : 2 * i + 2]), train=True) for i, one in enumerate(apart)]
    np.testing.assert_allclose(y, np.concatenate(parts), atol=1e-5)
    for statistic in ("mean", "var"):
        each = [getattr(one, statistic)[...] for one in apart]
        np.testing.assert_allclose(getattr(norm, statistic)[...], np.mean(each, axis=0), rtol=1e-5)


def test_batch_norm_of_one_value_per_channel_is_finite() -> None:
    norm = BatchNorm(2, momentum=0.5, num_groups=2)
    y = norm(jnp.ones((2, 1, 1, 2)), train=True)
    np.testing.assert_array_equal(y, 0)
    np.testing.assert_array_equal(norm.var[...], 0.5)


def test_float32_variance_survives_a_large_mean() -> None:
    x = random(8, 16, 16, 1) + 1000
    norm = BatchNorm(1, momentum=0.0, num_groups=1)
    norm(jnp.asarray(x), train=True)
    exact = x.astype(np.float64).var(ddof=1)
    np.testing.assert_allclose(norm.var[...], exact, rtol=1e-5)  # E[x^2] - E[x]^2 would be off by a tenth


def test_bfloat16_activations_keep_float32_statistics() -> None:
    norm, x = make_norm(), jnp.asarray(random(8, 4, 4, 3), jnp.bfloat16)
    exact = make_norm()
    y = norm(x, train=True)
    wide = exact(x.astype(jnp.float32), train=True)
    assert y.dtype == jnp.bfloat16
    assert norm.mean[...].dtype == norm.var[...].dtype == jnp.float32
    np.testing.assert_allclose(norm.var[...], exact.var[...], rtol=1e-5)
    np.testing.assert_allclose(y.astype(jnp.float32), wide, rtol=2**-8)  # half a unit in bfloat16's last place


def test_initial_kernels_are_cut_normal_with_variance_one_over_fan_in() -> None:
    kernel = draw_kernel(np.random.default_rng(0), (3, 3, 64, 512))
    deviation = np.sqrt(1 / (3 * 3 * 64))
    assert kernel.dtype == np.float32
    # 294912 draws: their deviation is known to 0.2 %, their mean to 0.2 % of the deviation, three times over
    assert abs(kernel.std() / deviation - 1) < 0.005
    assert abs(kernel.mean()) < 0.006 * deviation
    largest = np.abs(kernel).max() / deviation
    assert 2.26 < largest <= 2.27369  # 2 / 0.87962566
    inside = (np.abs(kernel) < deviation / 0.87962566).mean()
    assert abs(inside - 0.7152) < 0.004  # P(|z| < 1) / P(|z| < 2)


def test_dense_is_float32_and_starts_small() -> None:
    dense = Dense(512, 1000, rng=np.random.default_rng(0))
    assert abs(float(dense.kernel[...].std()) / 0.01 - 1) < 0.005
    np.testing.assert_array_equal(dense.bias[...], 0)
    x = jnp.asarray(random(2, 512), jnp.bfloat16)
    y = dense(x)
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y, np.asarray(x, np.float64) @ np.asarray(dense.kernel[...]), atol=1e-5)


def test_global_average_of_half_precision_is_float32() -> None:
    x = jnp.asarray(random(2, 7, 5, 3), jnp.bfloat16)
    y = global_average(x)
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y, np.asarray(x, np.float64).mean((1, 2)), atol=1e-6)


def test_every_kind_of_array_is_what_a_network_splits_on() -> None:
    norm = BatchNorm(2, momentum=0.9, num_groups=1)
    assert {type(norm.scale), type(norm.bias)} == {nnx.Param}
    assert {type(norm.mean), type(norm.var)} == {nnx.BatchStat}
