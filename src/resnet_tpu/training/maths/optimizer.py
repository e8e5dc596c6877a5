"""Optimizers, which turn gradients into new parameters."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from resnet_tpu.options.config import OptimizerConfig

LARS_COEFFICIENT = 0.001

Optimizer = Callable[[jax.Array | float], optax.GradientTransformation]
"""Learning rate -> the optimizer of a step. Its state has the same structure for all rates."""


def make_optimizer(config: OptimizerConfig) -> Optimizer:
    """The optimizer that the options ask for."""

    def lars(rate: jax.Array | float) -> optax.GradientTransformation:
        return optax.chain(_scale_by_lars(rate, config.weight_decay), optax.trace(config.momentum), optax.scale(-1.0))

    def momentum(rate: jax.Array | float) -> optax.GradientTransformation:
        # the rate is applied after the momentum, as in the original, so that the momentum holds no past rates
        return optax.chain(optax.trace(config.momentum, config.nesterov), optax.scale_by_learning_rate(rate))

    return lars if config.enable_lars else momentum


def _scale_by_lars(rate: jax.Array | float, weight_decay: float) -> optax.GradientTransformation:
    """Gradients times the local rate of each kernel, in the form of TensorFlow 1.15.

    With weights w and gradient g of one kernel, weight decay d and the learning rate r:
    trust = 0.001 |w| / (|g| + d |w|), or 1 if either norm is 0; momentum a <- mu a + r trust (g + d w); w <- w - a.
    TensorFlow 1.13 left d w in the loss, and applied the rate outside: a <- mu a + g; w <- w - r trust a.
    Source: arXiv:1708.03888, equation 6 and algorithm 1.
    """

    def scale(path: Any, gradient: jax.Array, param: jax.Array) -> jax.Array:
        if path[-1].key != "kernel":  # batch norm and biases: plain momentum, no decay
            return rate * gradient
        param_norm, gradient_norm = jnp.linalg.norm(param), jnp.linalg.norm(gradient)
        trust = LARS_COEFFICIENT * param_norm / (gradient_norm + weight_decay * param_norm)
        trust = jnp.where((param_norm > 0) & (gradient_norm > 0), trust, 1.0)
        return rate * trust * (gradient + weight_decay * param)

    return optax.stateless(lambda updates, params: jax.tree_util.tree_map_with_path(scale, updates, params))
