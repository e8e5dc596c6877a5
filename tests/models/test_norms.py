"""Normalisations against plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resnet_tpu.models.norms import BatchNorm, EvoNormB0, EvoNormS0
from resnet_tpu.models.training import Training


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


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
    y = norm(jnp.asarray(x), Training())
    np.testing.assert_allclose(y, (x - batch_mean) / np.sqrt(batch_var + 1e-5) * scale + bias, atol=1e-5)
    np.testing.assert_allclose(norm.mean[...], 0.8 * mean + 0.2 * batch_mean, rtol=1e-5, atol=1e-6)
    # the running variance takes the unbiased one: n/(n-1), n = 4 * 5 * 6
    np.testing.assert_allclose(norm.var[...], 0.8 * var + 0.2 * batch_var * 120 / 119, rtol=1e-5)


def test_batch_norm_in_evaluation_by_hand() -> None:
    norm, x = make_norm(), random(4, 5, 6, 3)
    scale, bias, mean, var = (np.asarray(value[...]) for value in (norm.scale, norm.bias, norm.mean, norm.var))
    y = norm(jnp.asarray(x), None)
    np.testing.assert_allclose(y, (x - mean) / np.sqrt(var + 1e-5) * scale + bias, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(norm.mean[...], mean)
    np.testing.assert_array_equal(norm.var[...], var)


def test_groups_are_normalised_apart_and_their_statistics_averaged() -> None:
    x = random(8, 3, 3, 3) + np.repeat(np.arange(4), 2)[:, None, None, None].astype(np.float32)
    norm = make_norm(num_groups=4)
    y = norm(jnp.asarray(x), Training())
    apart = [make_norm() for _ in range(4)]
    parts = [one(jnp.asarray(x[2 * i : 2 * i + 2]), Training()) for i, one in enumerate(apart)]
    np.testing.assert_allclose(y, np.concatenate(parts), atol=1e-5)
    for statistic in ("mean", "var"):
        each = [getattr(one, statistic)[...] for one in apart]
        np.testing.assert_allclose(getattr(norm, statistic)[...], np.mean(each, axis=0), rtol=1e-5)


def test_batch_norm_of_one_value_per_channel_is_finite() -> None:
    norm = BatchNorm(2, momentum=0.5, num_groups=2)
    y = norm(jnp.ones((2, 1, 1, 2)), Training())
    np.testing.assert_array_equal(y, 0)
    np.testing.assert_array_equal(norm.var[...], 0.5)


def test_float32_variance_survives_a_large_mean() -> None:
    x = random(8, 16, 16, 1) + 1000
    norm = BatchNorm(1, momentum=0.0, num_groups=1)
    norm(jnp.asarray(x), Training())
    exact = x.astype(np.float64).var(ddof=1)
    np.testing.assert_allclose(norm.var[...], exact, rtol=1e-5)  # E[x^2] - E[x]^2 would be off by a tenth


def test_bfloat16_activations_keep_float32_statistics() -> None:
    norm, x = make_norm(), jnp.asarray(random(8, 4, 4, 3), jnp.bfloat16)
    exact = make_norm()
    y = norm(x, Training())
    wide = exact(x.astype(jnp.float32), Training())
    assert y.dtype == jnp.bfloat16
    assert norm.mean[...].dtype == norm.var[...].dtype == jnp.float32
    np.testing.assert_allclose(norm.var[...], exact.var[...], rtol=1e-5)
    np.testing.assert_allclose(y.astype(jnp.float32), wide, rtol=2**-8)  # half a unit in bfloat16's last place


def test_a_frozen_batch_norm_normalises_by_its_running_statistics_and_keeps_them() -> None:
    norm = BatchNorm(3, momentum=0.9, num_groups=2, frozen=True)
    norm.mean[...], norm.var[...] = jnp.array([1.0, 2.0, 3.0]), jnp.array([1.0, 4.0, 9.0])
    x = jnp.asarray(random(4, 5, 5, 3))
    np.testing.assert_array_equal(norm(x, Training()), norm(x, None))
    np.testing.assert_array_equal(norm.mean[...], [1, 2, 3])
    np.testing.assert_array_equal(norm.var[...], [1, 4, 9])


def test_batch_norm_without_momentum_keeps_the_statistics_of_the_last_batch() -> None:
    norm = make_norm(momentum=0.0)
    for seed in (1, 2):
        x = random(4, 5, 5, 3, seed=seed)
        norm(jnp.asarray(x), Training())
    np.testing.assert_allclose(norm.mean[...], x.mean((0, 1, 2)), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(norm.var[...], x.var((0, 1, 2), ddof=1), rtol=1e-5)


def test_batch_norm_with_relu_cuts_off_what_is_negative() -> None:
    plain, relu = (BatchNorm(3, momentum=0.9, num_groups=1, relu=relu) for relu in (False, True))
    x = jnp.asarray(random(4, 5, 5, 3))
    y = plain(x, Training())
    assert (y < 0).any()
    np.testing.assert_array_equal(relu(x, Training()), jnp.maximum(y, 0))


def set_parameters(norm: EvoNormB0 | EvoNormS0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gives the norm other parameters than its first ones: (scale, bias, v)."""
    scale, bias, v = (random(*norm.v[...].shape, seed=seed) for seed in (1, 2, 3))
    norm.scale[...], norm.bias[...], norm.v[...] = jnp.asarray(scale), jnp.asarray(bias), jnp.asarray(v)
    return scale, bias, v


def by_hand_s0(x: np.ndarray, scale: np.ndarray, bias: np.ndarray, v: np.ndarray, groups: int) -> np.ndarray:
    x = x.astype(np.float64)
    n, height, width, features = x.shape
    parts = x.reshape(n, height, width, groups, features // groups)
    deviation = np.sqrt(parts.var((1, 2, 4), keepdims=True) + 1e-5)
    deviation = np.broadcast_to(deviation, parts.shape).reshape(x.shape)
    return x / (1 + np.exp(-v * x)) / deviation * scale + bias


@pytest.mark.parametrize(("features", "groups"), [(64, 32), (32, 32), (8, 8), (40, 20), (37, 1), (3, 3)])
def test_evonorm_s0_by_hand(features: int, groups: int) -> None:
    norm, x = EvoNormS0(features), random(3, 4, 5, features) + 0.3
    parameters = set_parameters(norm)
    y = norm(jnp.asarray(x), Training())
    np.testing.assert_allclose(y, by_hand_s0(x, *parameters, groups), rtol=2e-5, atol=1e-5)
    np.testing.assert_array_equal(y, norm(jnp.asarray(x), None))


def by_hand_b0(x: np.ndarray, var: np.ndarray, scale: np.ndarray, bias: np.ndarray, v: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    image = np.sqrt(x.var((1, 2), keepdims=True) + 1e-5)
    return x / np.maximum(np.sqrt(var + 1e-5), v * x + image) * scale + bias


def test_evonorm_b0_by_hand() -> None:
    norm, x = EvoNormB0(6, num_groups=1), random(4, 5, 3, 6) + 0.3
    parameters = set_parameters(norm)
    batch = x.astype(np.float64).var((0, 1, 2), keepdims=True)
    y = norm(jnp.asarray(x), Training())
    np.testing.assert_allclose(y, by_hand_b0(x, batch, *parameters), rtol=2e-5, atol=1e-5)
    # towards the biased variance, a tenth of the way
    np.testing.assert_allclose(norm.var[...], 0.9 + 0.1 * batch, rtol=1e-5)
    evaluated = norm(jnp.asarray(x), None)
    np.testing.assert_allclose(evaluated, by_hand_b0(x, 0.9 + 0.1 * batch, *parameters), rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(norm.var[...], 0.9 + 0.1 * batch, rtol=1e-5)


def test_evonorm_b0_knows_the_batch_by_groups() -> None:
    x = jnp.asarray(random(6, 4, 4, 5) * np.repeat([1, 2, 3], 2)[:, None, None, None].astype(np.float32))
    norm = EvoNormB0(5, num_groups=3)
    y = norm(x, Training())
    apart = [EvoNormB0(5, num_groups=1) for _ in range(3)]
    parts = [one(x[2 * i : 2 * i + 2], Training()) for i, one in enumerate(apart)]
    np.testing.assert_allclose(y, jnp.concatenate(parts), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(norm.var[...], np.mean([one.var[...] for one in apart], axis=0), rtol=1e-5)


def test_a_frozen_evonorm_b0_keeps_its_variance() -> None:
    norm, x = EvoNormB0(5, num_groups=1, frozen=True), jnp.asarray(random(4, 4, 4, 5))
    np.testing.assert_array_equal(norm(x, Training()), norm(x, None))
    np.testing.assert_array_equal(norm.var[...], 1)


@pytest.mark.parametrize("make", [EvoNormS0, lambda features: EvoNormB0(features, num_groups=1)])
def test_evonorms_start_neutral_and_are_finite_on_maps_of_one_value(make: type[EvoNormS0]) -> None:
    norm = make(4)
    np.testing.assert_array_equal(norm.scale[...], np.ones((1, 1, 1, 4)))
    np.testing.assert_array_equal(norm.bias[...], np.zeros((1, 1, 1, 4)))
    np.testing.assert_array_equal(norm.v[...], np.ones((1, 1, 1, 4)))

    def total(x: jax.Array) -> jax.Array:
        graph, state = nnx.split(norm)
        return nnx.merge(graph, state, copy=True)(x, Training()).sum()

    assert jnp.isfinite(jax.grad(total)(jnp.ones((2, 1, 1, 4)))).all()


def test_evonorms_of_half_precision_keep_float32_statistics() -> None:
    x = random(4, 6, 6, 8)
    half = jnp.asarray(x, jnp.bfloat16)
    for make in (EvoNormS0, lambda features: EvoNormB0(features, num_groups=1)):
        norm, exact = make(8), make(8)
        y = norm(half, Training())
        assert y.dtype == jnp.bfloat16
        # a few roundings of 2**-9 each
        np.testing.assert_allclose(y.astype(jnp.float32), exact(half.astype(jnp.float32), Training()), rtol=2**-6)
        if isinstance(norm, EvoNormB0) and isinstance(exact, EvoNormB0):
            assert norm.var[...].dtype == jnp.float32
            np.testing.assert_allclose(norm.var[...], exact.var[...], rtol=1e-6)


def test_every_kind_of_array_is_what_a_network_splits_on() -> None:
    norm = BatchNorm(2, momentum=0.9, num_groups=1)
    assert {type(norm.scale), type(norm.bias)} == {nnx.Param}
    assert {type(norm.mean), type(norm.var)} == {nnx.BatchStat}
    evonorm = EvoNormB0(2, num_groups=1)
    assert {type(evonorm.scale), type(evonorm.bias), type(evonorm.v)} == {nnx.Param}
    assert type(evonorm.var) is nnx.BatchStat
