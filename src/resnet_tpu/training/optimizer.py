"""From gradients to new parameters. Every optimizer takes the learning rate of the step as `learning_rate=`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from resnet_tpu.options.config import OptimizerConfig

LARS_COEFFICIENT = 0.001


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformationExtraArgs:
    """The optimizer that the options ask for."""
    if config.enable_lars:
        return optax.chain(_scale_by_lars(config.weight_decay), optax.trace(config.momentum), optax.scale(-1.0))
    return optax.chain(optax.trace(config.momentum, nesterov=config.nesterov), _scale_by_learning_rate())


def _stateless(update: Callable[[Any, Any, jax.Array], Any]) -> optax.GradientTransformationExtraArgs:
    def init_fn(params: Any) -> optax.EmptyState:
        del params
        return optax.EmptyState()

    def update_fn(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        return update(updates, params, extra["learning_rate"]), state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _scale_by_learning_rate() -> optax.GradientTransformationExtraArgs:
    # after the momentum, so that momentum does not remember old rates: the original's order
    return _stateless(lambda updates, _, rate: jax.tree.map(lambda update: -rate * update, updates))


def _scale_by_lars(weight_decay: float) -> optax.GradientTransformationExtraArgs:
    """Gradients times the local rate of each kernel, in the form of TensorFlow 1.15.

    With weights w and gradient g of one kernel, weight decay d and the learning rate r:
    trust = 0.001 |w| / (|g| + d |w|), or 1 where either norm is 0; momentum a <- mu a + r trust (g + d w); w <- w - a.
    TensorFlow 1.13 left d w out, for the loss still held it, and the rate outside: a <- mu a + g; w <- w - r trust a.
    Source: arXiv:1708.03888, equation 6 and algorithm 1.
    """

    def scale(path: Any, gradient: jax.Array, param: jax.Array, rate: jax.Array) -> jax.Array:
        if path[-1].key != "kernel":  # batch norm and biases: plain momentum, no decay
            return rate * gradient
        param_norm, gradient_norm = jnp.linalg.norm(param), jnp.linalg.norm(gradient)
        trust = LARS_COEFFICIENT * param_norm / (gradient_norm + weight_decay * param_norm)
        trust = jnp.where((param_norm > 0) & (gradient_norm > 0), trust, 1.0)
        return rate * trust * (gradient + weight_decay * param)

    return _stateless(
        lambda updates, params, rate: jax.tree_util.tree_map_with_path(
            lambda path, gradient, param: scale(path, gradient, param, rate), updates, params
        )
    )
