"""Each layer against its formula, computed by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.models.layers import (
    average_pool,
    batch_norm,
    batch_statistics,
    conv,
    draw_dense_kernel,
    draw_kernel,
    global_average,
    max_pool,
)
from tests.models.nets import random


@pytest.mark.parametrize("size", [8, 9])
@pytest.mark.parametrize(
    ("kernel_size", "stride", "before", "after"),
    [(7, 2, 3, 3), (3, 2, 1, 1), (1, 2, 0, 0), (3, 1, 1, 1), (1, 1, 0, 0)],
)
def test_conv_pads_the_same_for_even_and_odd_sizes(
    kernel_size: int, stride: int, before: int, after: int, size: int
) -> None:
    kernel, x = random(kernel_size, kernel_size, 2, 3, seed=1), random(2, size, size + 1, 2)
    padded = np.pad(x.astype(np.float64), ((0, 0), (before, after), (before, after), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel_size, kernel_size), (1, 2))
    expected = np.einsum("nyxchw,hwco->nyxo", windows[:, ::stride, ::stride], kernel)
    actual = jax.jit(conv, static_argnums=2)(x, kernel, stride)
    assert actual.shape == (2, -(-size // stride), -(-(size + 1) // stride), 3)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-4)


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


def test_initial_kernels_are_cut_normal_with_variance_one_over_fan_in() -> None:
    kernel = draw_kernel(np.random.default_rng(0), (3, 3, 64, 512))
    deviation = np.sqrt(1 / (3 * 3 * 64))
    assert kernel.dtype == np.float32
    # 294912 draws: standard errors of deviation and mean are below 0.2 % of the deviation; bounds are three times that
    assert abs(kernel.std() / deviation - 1) < 0.005
    assert abs(kernel.mean()) < 0.006 * deviation
    largest = np.abs(kernel).max() / deviation
    assert 2.26 < largest <= 2.27369  # 2 / 0.87962566
    inside = (np.abs(kernel) < deviation / 0.87962566).mean()
    assert abs(inside - 0.7152) < 0.004  # P(|z| < 1) / P(|z| < 2)


def test_the_initial_kernel_of_the_classifier_is_small() -> None:
    kernel = draw_dense_kernel(np.random.default_rng(0), (512, 1000))
    assert kernel.dtype == np.float32
    assert abs(kernel.std() / 0.01 - 1) < 0.005


@pytest.mark.parametrize("num_groups", [1, 4])
def test_batch_norm_by_hand(num_groups: int) -> None:
    x = random(8, 5, 6, 3) + np.repeat(np.arange(4), 2)[:, None, None, None].astype(np.float32)
    scale, bias = jnp.asarray(random(3, seed=1)), jnp.asarray(random(3, seed=2))
    mean, var, positions = batch_statistics(jnp.asarray(x), num_groups)
    assert positions == 8 * 5 * 6 // num_groups
    y = batch_norm(jnp.asarray(x), scale, bias, mean, var)
    for i, part in enumerate(np.split(x, num_groups)):
        of_part = part.mean((0, 1, 2)), part.var((0, 1, 2))
        np.testing.assert_allclose((mean[i], var[i]), of_part, rtol=1e-5)
        expected = (part - of_part[0]) / np.sqrt(of_part[1] + 1e-5) * scale + bias
        np.testing.assert_allclose(np.split(np.asarray(y), num_groups)[i], expected, atol=1e-5)


def test_float32_variance_survives_a_large_mean() -> None:
    x = random(8, 16, 16, 1) + 1000
    _, var, _ = batch_statistics(jnp.asarray(x), 1)
    np.testing.assert_allclose(var[0], x.astype(np.float64).var(), rtol=1e-5)  # E[x^2] - E[x]^2 is off by a tenth


def test_bfloat16_activations_keep_float32_statistics() -> None:
    x = jnp.asarray(random(8, 4, 4, 3), jnp.bfloat16)
    statistics, exact = batch_statistics(x, 1), batch_statistics(x.astype(jnp.float32), 1)
    assert statistics.mean.dtype == statistics.var.dtype == jnp.float32
    np.testing.assert_allclose(statistics.var, exact.var, rtol=1e-5)
    half, wide = (batch_norm(x, jnp.ones(3), jnp.zeros(3), exact.mean, exact.var) for x in (x, x.astype(jnp.float32)))
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(half.astype(jnp.float32), wide, rtol=2**-8)  # half a unit in bfloat16's last place


def test_no_variance_is_negative() -> None:
    """By rounding, the mean square of a channel that hardly varies may lie below the square of its mean."""
    constants = jnp.linspace(100, 1000, 64).astype(jnp.bfloat16)
    x = jnp.broadcast_to(constants, (2, 30, 30, 64)).at[0, 0, 0].multiply(1 + 2**-7)
    assert (batch_statistics(x, 1).var >= 0).all()


def test_global_average_of_half_precision_is_float32() -> None:
    x = jnp.asarray(random(2, 7, 5, 3), jnp.bfloat16)
    y = global_average(x)
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y, np.asarray(x, np.float64).mean((1, 2)), atol=1e-6)
