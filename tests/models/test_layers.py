"""Each layer against its formula, computed by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.models.layers import Conv, Dense, average_pool, draw_kernel, global_average, max_pool


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


@pytest.mark.parametrize("size", [6, 7])
def test_symmetric_max_pool_pads_both_sides(size: int) -> None:
    x = random(1, size, size, 2)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::2, ::2]
    np.testing.assert_array_equal(max_pool(jnp.asarray(x), "symmetric"), windows.max((-1, -2)))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("size", [1, 6, 7])
def test_average_pool_counts_only_what_lies_on_the_map(size: int, dtype: jnp.dtype) -> None:
    x = jnp.asarray(random(1, size, size, 2), dtype)
    padded = np.pad(np.asarray(x, np.float64), ((0, 0), (0, size % 2), (0, size % 2), (0, 0)), constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (2, 2), (1, 2))[:, ::2, ::2]
    y = average_pool(x)
    assert y.dtype == dtype
    tolerance = 1e-6 if dtype == jnp.float32 else 2**-7
    np.testing.assert_allclose(np.asarray(y, np.float64), np.nanmean(windows, (-1, -2)), rtol=tolerance, atol=tolerance)


def test_conv_adds_its_bias() -> None:
    conv = Conv(2, 3, 1, 1, dtype=jnp.bfloat16, rng=np.random.default_rng(0), bias=True)
    x = jnp.asarray(random(2, 4, 4, 2))
    without = conv(x)
    assert conv.bias is not None
    np.testing.assert_array_equal(conv.bias[...], 0)
    conv.bias[...] = jnp.array([1.0, 2.0, 4.0])
    y = conv(x)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_array_equal(y, without + jnp.array([1, 2, 4], jnp.bfloat16))


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
