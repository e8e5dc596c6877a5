"""The EvoNorms compared with plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.models import evonorm
from resnet_tpu.models.evonorm import EvoNorm
from tests.models.nets import TRAINING, Part, architecture, random

# Compiled as a whole: operation by operation takes many times as long.
evonorm_s0, evonorm_b0 = jax.jit(evonorm.evonorm_s0), jax.jit(evonorm.evonorm_b0)
evonorm_b0_by_batch = jax.jit(evonorm.evonorm_b0_by_batch, static_argnums=2)


def arrays(features: int) -> EvoNorm:
    return EvoNorm(*(jnp.asarray(random(1, 1, 1, features, seed=seed)) for seed in (1, 2, 3)))


def by_hand_s0(x: np.ndarray, norm: EvoNorm, groups: int) -> np.ndarray:
    x = x.astype(np.float64)
    n, height, width, features = x.shape
    parts = x.reshape(n, height, width, groups, features // groups)
    deviation = np.sqrt(parts.var((1, 2, 4), keepdims=True) + 1e-5)
    deviation = np.broadcast_to(deviation, parts.shape).reshape(x.shape)
    return x / (1 + np.exp(-norm.v * x)) / deviation * norm.scale + norm.bias


@pytest.mark.parametrize(
    ("features", "groups"),
    [(64, 32), (40, 20), (37, 1), *(pytest.param(n, n, marks=pytest.mark.long) for n in (32, 8, 3))],
)
def test_evonorm_s0_by_hand(features: int, groups: int) -> None:
    x, norm = random(3, 4, 5, features) + 0.3, arrays(features)
    np.testing.assert_allclose(evonorm_s0(jnp.asarray(x), norm), by_hand_s0(x, norm, groups), rtol=2e-5, atol=1e-5)


def by_hand_b0(x: np.ndarray, var: np.ndarray, norm: EvoNorm) -> np.ndarray:
    x = x.astype(np.float64)
    image = np.sqrt(x.var((1, 2), keepdims=True) + 1e-5)
    return x / np.maximum(np.sqrt(var + 1e-5), norm.v * x + image) * norm.scale + norm.bias


def test_evonorm_b0_by_hand() -> None:
    x, norm = random(4, 5, 3, 6) + 0.3, arrays(6)
    batch = x.astype(np.float64).var((0, 1, 2), keepdims=True)
    y, var = evonorm_b0_by_batch(jnp.asarray(x), norm, 1)
    np.testing.assert_allclose(y, by_hand_b0(x, batch, norm), rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(var, batch, rtol=1e-5)
    given = evonorm_b0(jnp.asarray(x), norm, jnp.asarray(2 * batch, jnp.float32))
    np.testing.assert_allclose(given, by_hand_b0(x, 2 * batch, norm), rtol=2e-5, atol=1e-5)


def test_evonorm_b0_knows_the_batch_by_groups() -> None:
    x = jnp.asarray(random(6, 4, 4, 5) * np.repeat([1, 2, 3], 2)[:, None, None, None].astype(np.float32))
    y, var = evonorm_b0_by_batch(x, arrays(5), 3)
    parts = [evonorm_b0_by_batch(x[2 * i : 2 * i + 2], arrays(5), 1) for i in range(3)]
    np.testing.assert_allclose(y, jnp.concatenate([y for y, _ in parts]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(var, np.mean([var for _, var in parts], axis=0), rtol=1e-5)


@pytest.mark.parametrize("frozen", [False, True])
def test_the_variance_moves_a_tenth_of_the_way_unless_it_is_frozen(frozen: bool) -> None:
    x = random(4, 4, 4, 5)
    settings = architecture(norm_act_layer="evonorm_b0", pre_activation=True, freeze_batch_norm=frozen, bn_momentum=0.5)
    part = Part(lambda net, x: net.norm_act("norm", x), settings, x)
    np.testing.assert_array_equal(part.batch_stats["norm"]["var"], np.ones((1, 1, 1, 5)))
    _, moved = part.step(part.params, x, TRAINING)
    batch = x.astype(np.float64).var((0, 1, 2), keepdims=True)
    # towards the biased variance, whatever bn_momentum is
    np.testing.assert_allclose(moved["norm"]["var"], 1 if frozen else 0.9 + 0.1 * batch, rtol=1e-5)
    assert np.array_equal(part(x, TRAINING), part(x)) == frozen


@pytest.mark.parametrize("kind", ["evonorm_s0", "evonorm_b0"])
def test_evonorms_start_neutral_and_are_finite_on_maps_of_one_value(kind: str) -> None:
    x = jnp.ones((2, 1, 1, 4))
    part = Part(lambda net, x: net.norm_act("norm", x), architecture(norm_act_layer=kind, pre_activation=True), x)
    neutral = {"scale": np.ones((1, 1, 1, 4)), "bias": np.zeros((1, 1, 1, 4)), "v": np.ones((1, 1, 1, 4))}
    jax.tree.map(np.testing.assert_array_equal, part.params["norm"], neutral)
    assert np.isfinite(jax.jit(jax.grad(lambda x: part(x, TRAINING).sum()))(x)).all()


def test_evonorms_of_half_precision_keep_float32_statistics() -> None:
    half, norm = jnp.asarray(random(4, 6, 6, 8), jnp.bfloat16), EvoNorm(jnp.ones(8), jnp.zeros(8), jnp.ones(8))
    wide = half.astype(jnp.float32)
    y, var = evonorm_b0_by_batch(half, norm, 1)
    exact, exact_var = evonorm_b0_by_batch(wide, norm, 1)
    assert var.dtype == jnp.float32
    np.testing.assert_allclose(var, exact_var, rtol=1e-6)
    for own, other in ((y, exact), (evonorm_s0(half, norm), evonorm_s0(wide, norm))):
        assert own.dtype == jnp.bfloat16
        np.testing.assert_allclose(own.astype(jnp.float32), other, rtol=2**-6)  # a few roundings of 2**-9 each
