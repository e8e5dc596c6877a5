"""Optimizers step by step: numbers from TensorFlow and from the formulas."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from resnet_tpu.config import Config
from resnet_tpu.train.optimizer import make_optimizer


def run(params: Any, gradients: Any, rates: list[float], **options: Any) -> list[Any]:
    """The parameters after each step with the same gradients."""
    optimizer = make_optimizer(Config().replace(**options).optimizer)

    @jax.jit
    def step(params: Any, state: Any, rate: jax.Array) -> tuple[Any, Any]:
        updates, state = optimizer.update(gradients, state, params, learning_rate=rate)
        return optax.apply_updates(params, updates), state

    state, history = optimizer.init(params), []
    for rate in rates:
        params, state = step(params, state, jnp.float32(rate))
        history.append(params)
    return history


def test_nesterov_momentum_as_tensorflow() -> None:
    history = run({"kernel": jnp.array(1.0)}, {"kernel": jnp.array(0.5)}, [0.1] * 3)
    np.testing.assert_allclose([step["kernel"] for step in history], [0.905, 0.7695, 0.59755], rtol=1e-6)


def test_plain_momentum() -> None:
    history = run({"kernel": jnp.array(1.0)}, {"kernel": jnp.array(0.5)}, [0.1] * 3, nesterov=False)
    np.testing.assert_allclose([step["kernel"] for step in history], [0.95, 0.855, 0.7195], rtol=1e-6)


def test_momentum_does_not_remember_old_rates() -> None:
    # the first step at rate 0 moves nothing, yet its gradient counts in the second
    history = run({"kernel": jnp.array(1.0)}, {"kernel": jnp.array(0.5)}, [0.0, 0.1], nesterov=False)
    np.testing.assert_allclose([step["kernel"] for step in history], [1, 1 - 0.1 * 0.95], rtol=1e-6)


def test_lars_as_tensorflow() -> None:
    params, gradients = {"kernel": jnp.array([3.0, 4.0])}, {"kernel": jnp.array([1.0, 0.0])}
    history = run(params, gradients, [10.0, 10.0], enable_lars=True, weight_decay=1e-4)
    np.testing.assert_allclose(history[0]["kernel"], [2.95001, 3.99998], rtol=1e-6)
    np.testing.assert_allclose(history[1]["kernel"], [2.8553276, 3.999942], rtol=1e-6)


def test_lars_treats_batch_norm_and_biases_with_plain_momentum() -> None:
    params = {"norm": {"scale": jnp.array([3.0]), "bias": jnp.array([1.0])}, "dense": {"bias": jnp.array([2.0])}}
    gradients = jax.tree.map(jnp.ones_like, params)
    history = run(params, gradients, [0.1, 0.2], enable_lars=True, weight_decay=1.0)
    for leaf, start in zip(jax.tree.leaves(history[1]), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(leaf, start - (0.1 + 0.9 * 0.1 + 0.2), rtol=1e-6)  # a <- 0.9 a + rate g


@pytest.mark.parametrize(("param", "gradient"), [(0.0, 2.0), (2.0, 0.0)])
def test_lars_trusts_fully_where_a_norm_is_zero(param: float, gradient: float) -> None:
    history = run({"kernel": jnp.array([param])}, {"kernel": jnp.array([gradient])}, [0.5], enable_lars=True)
    np.testing.assert_allclose(history[0]["kernel"], [param - 0.5 * (gradient + 1e-4 * param)], rtol=1e-6)


@pytest.mark.parametrize("enable_lars", [False, True])
def test_a_state_from_a_checkpoint_needs_only_the_momentum(enable_lars: bool) -> None:
    params = {"kernel": jnp.array([1.0, 2.0]), "bias": jnp.array([0.5])}
    state = make_optimizer(Config().replace(enable_lars=enable_lars).optimizer).init(params)
    momentum = jax.tree.map(lambda leaf: leaf + 1, params)
    restored = optax.tree.set(state, trace=momentum)
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    assert [leaf.shape for leaf in jax.tree.leaves(restored)] == [leaf.shape for leaf in jax.tree.leaves(momentum)]
