"""The loss that training minimises: cross-entropy, and the L2 penalty on the weights."""

import jax
import jax.numpy as jnp
import optax

from resnet_tpu.models.arrays import Arrays


def cross_entropy(logits: jax.Array, labels: jax.Array, label_smoothing: float = 0.0) -> jax.Array:
    """Softmax cross-entropy of each example: logits float32 [n, c], labels int32 [n] -> float32 [n].

    The target gives the label 1 - label_smoothing and spreads the rest evenly over all c classes.
    Source: arXiv:1512.00567, section 7.
    """
    target = optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[-1]), label_smoothing)
    return optax.softmax_cross_entropy(logits, target)  # its form for integers reads -1 (no label) as the last class


def l2(params: Arrays, *, norms: bool = False) -> jax.Array:
    """Half the sum of squares of all parameters that decay; with `norms`, those of norm layers too: float32 []."""
    counted = decaying(params)
    squares = jax.tree.map(lambda leaf, decays: jnp.square(leaf).sum() if decays or norms else 0.0, params, counted)
    return 0.5 * jnp.asarray(sum(jax.tree.leaves(squares)), jnp.float32)


def decaying(params: Arrays) -> Arrays:
    """For each leaf, whether it decays: all but those of norm layers (other layers' biases decay too)."""
    return jax.tree_util.tree_map_with_path(lambda path, _: not any(key.key.startswith("norm") for key in path), params)
