"""Optimizers step by step: numbers from TensorFlow and from the formulas."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from resnet_tpu.checkpoints.tf1_names import tf_names
from resnet_tpu.models.arrays import leaf_at
from resnet_tpu.models.from_options import create_network
from resnet_tpu.options.config import Config
from resnet_tpu.training.maths.optimizer import make_optimizer


def run(params: Any, gradients: Any, rates: list[float], **options: Any) -> list[Any]:
    """The parameters after each step with the same gradients."""
    optimizer = make_optimizer(Config().replace(**options).optimizer)

    @jax.jit
    def step(params: Any, state: Any, rate: jax.Array) -> tuple[Any, Any]:
        updates, state = optimizer(rate).update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    state, history = optimizer(0.0).init(params), []
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
    # the first step has rate 0 and moves nothing, yet its gradient counts in the second
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


def lars_by_hand(weights: Any, gradients: Any, rates: list[float], *, decay: float, momentum: float) -> np.ndarray:
    """The weights of one kernel after steps of LARS, from the formula, in float64."""
    weights, gradients = np.asarray(weights, np.float64), np.asarray(gradients, np.float64)
    velocity = np.zeros_like(weights)
    for rate in rates:
        weight_norm, gradient_norm = np.sqrt((weights**2).sum()), np.sqrt((gradients**2).sum())
        trust = 1.0
        if weight_norm > 0 and gradient_norm > 0:
            trust = 0.001 * weight_norm / (gradient_norm + decay * weight_norm)
        velocity = momentum * velocity + rate * trust * (gradients + decay * weights)
        weights = weights - velocity
    return weights


@pytest.mark.parametrize("shape", [(7, 7, 3, 8), (1, 1, 16, 4), (64, 10), (3,)])
def test_lars_step_by_step(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(shape))
    weights, gradients = rng.normal(size=shape).astype(np.float32), rng.normal(size=shape).astype(np.float32)
    rates = [0.0, 12.5, 25.0, 3.0, 0.0001]
    options = {"enable_lars": True, "weight_decay": 0.01, "momentum": 0.85}
    history = run({"kernel": jnp.asarray(weights)}, {"kernel": jnp.asarray(gradients)}, rates, **options)
    for number, step in enumerate(history, 1):
        expected = lars_by_hand(weights, gradients, rates[:number], decay=0.01, momentum=0.85)
        assert step["kernel"].shape == shape
        np.testing.assert_allclose(step["kernel"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(history[0]["kernel"], weights)  # the first step of the warm-up moves nothing


def test_lars_momentum_remembers_old_rates() -> None:
    # unlike plain momentum, where the rate is applied afterwards: a step at rate 0 still moves by the present velocity
    params, gradients = {"kernel": jnp.array([3.0, 4.0])}, {"kernel": jnp.array([1.0, 0.0])}
    history = run(params, gradients, [10.0, 0.0], enable_lars=True, weight_decay=0.0)
    np.testing.assert_allclose(history[0]["kernel"], [2.95, 4.0], rtol=1e-6)
    np.testing.assert_allclose(history[1]["kernel"], [2.95 - 0.9 * 0.05, 4.0], rtol=1e-6)


def test_lars_gives_each_kernel_a_rate_of_its_own() -> None:
    params = {"a": {"kernel": jnp.array([3.0, 4.0])}, "b": {"kernel": jnp.array([0.3, 0.4])}}
    gradients = {"a": {"kernel": jnp.array([1.0, 0.0])}, "b": {"kernel": jnp.array([100.0, 0.0])}}
    (step,) = run(params, gradients, [10.0], enable_lars=True, weight_decay=0.0)
    for name, start in params.items():  # a step has length rate * 0.001 * |w|, however large the gradient
        moved = np.linalg.norm(step[name]["kernel"] - start["kernel"])
        np.testing.assert_allclose(moved, 10 * 0.001 * np.linalg.norm(start["kernel"]), rtol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"resnet_depth": 8},
        pytest.param({"resnet_depth": 50, "se_ratio": 0.25, "use_resnetd_stem": True}, marks=pytest.mark.long),
        pytest.param(
            {"resnet_depth": 50, "norm_act_layer": "evonorm_s0", "pre_activation": True}, marks=pytest.mark.long
        ),
    ],
)
def test_lars_skips_what_the_original_skips_by_name(options: dict[str, Any]) -> None:
    """Plain momentum for variables with `batch_normalization`, `evonorm` or `bias` in their TensorFlow name."""
    config = Config().replace(resnet_width=4, image_size=64, enable_lars=True, **options)
    network = create_network(config.model, num_classes=5, image_size=64)
    params = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 2.0), network.shapes()[0])
    (step,) = run(params, jax.tree.map(jnp.ones_like, params), [1.0], **config.flat())
    for name, (collection, path) in tf_names(network).items():
        if collection == "params":
            is_plain = any(part in name for part in ("batch_normalization", "evonorm", "bias"))
            moved = float(2 - leaf_at({"params": step}, ("params", path)).ravel()[0])
            assert (moved == 1.0) == is_plain, name
            assert is_plain or moved == pytest.approx(0.001 * 2 / (1 + 2e-4) * (1 + 2e-4), rel=1e-3), name


@pytest.mark.parametrize(("param", "gradient"), [(0.0, 2.0), (2.0, 0.0)])
def test_lars_trusts_fully_where_a_norm_is_zero(param: float, gradient: float) -> None:
    history = run({"kernel": jnp.array([param])}, {"kernel": jnp.array([gradient])}, [0.5], enable_lars=True)
    np.testing.assert_allclose(history[0]["kernel"], [param - 0.5 * (gradient + 1e-4 * param)], rtol=1e-6)


@pytest.mark.parametrize("enable_lars", [False, True])
def test_a_state_from_a_checkpoint_needs_only_the_momentum(enable_lars: bool) -> None:
    params = {"kernel": jnp.array([1.0, 2.0]), "bias": jnp.array([0.5])}
    state = make_optimizer(Config().replace(enable_lars=enable_lars).optimizer)(0.0).init(params)
    momentum = jax.tree.map(lambda leaf: leaf + 1, params)
    restored = optax.tree.set(state, trace=momentum)
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    assert [leaf.shape for leaf in jax.tree.leaves(restored)] == [leaf.shape for leaf in jax.tree.leaves(momentum)]
