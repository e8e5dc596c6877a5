"""One step of training, evaluation and prediction: pure functions on the device."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from resnet_tpu.config import OptimizerConfig
from resnet_tpu.models.network import Arrays, Network
from resnet_tpu.train.loss import cross_entropy, l2
from resnet_tpu.train.schedule import Schedule
from resnet_tpu.train.state import TrainState

DeviceBatch = dict[str, jax.Array]
"""image uint8 [n, s, s, 3], label int32 [n], weight float32 [n] (0 for padding)."""

MEAN_RGB = (0.485 * 255, 0.456 * 255, 0.406 * 255)
STDDEV_RGB = (0.229 * 255, 0.224 * 255, 0.225 * 255)
"""Statistics of the ImageNet training images, by which the original normalises whatever the data."""


def normalize(images: jax.Array) -> jax.Array:
    """Pixels 0..255 of any type -> float32 of mean 0 and deviation 1 over ImageNet."""
    return (images.astype(jnp.float32) - jnp.asarray(MEAN_RGB)) / jnp.asarray(STDDEV_RGB)


def make_train_step(
    network: Network,
    optimizer: optax.GradientTransformationExtraArgs,
    schedule: Schedule,
    config: OptimizerConfig,
) -> Callable[[TrainState, DeviceBatch], tuple[TrainState, dict[str, jax.Array]]]:
    """(state, batch) -> (next state, metrics), jitted; the given state's memory is reused.

    Metrics, float32 []: `loss` (cross-entropy and L2 of the whole batch, before the update), `learning_rate` of this
    update, `top_1_accuracy` on the batch.
    """
    # LARS adds the decay itself
    weight_decay = 0.0 if config.enable_lars else config.weight_decay

    def loss_of(params: Arrays, batch_stats: Arrays, batch: DeviceBatch) -> tuple[jax.Array, Any]:
        logits, batch_stats = network.apply(params, batch_stats, normalize(batch["image"]), train=True)
        loss = cross_entropy(logits, batch["label"], config.label_smoothing).mean()
        return loss + weight_decay * l2(params), (logits, batch_stats)

    def train_step(state: TrainState, batch: DeviceBatch) -> tuple[TrainState, dict[str, jax.Array]]:
        gradient_of = jax.value_and_grad(loss_of, has_aux=True)
        (loss, (logits, batch_stats)), gradients = gradient_of(state.params, state.batch_stats, batch)
        rate = schedule(state.step)
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params, learning_rate=rate)
        params: Any = optax.apply_updates(state.params, updates)
        correct = (logits.argmax(-1) == batch["label"]).mean()
        metrics = {"loss": loss, "learning_rate": rate, "top_1_accuracy": correct}
        return TrainState(state.step + 1, params, batch_stats, opt_state), metrics

    return jax.jit(train_step, donate_argnums=0)


def make_eval_step(
    network: Network, config: OptimizerConfig
) -> Callable[[Arrays, Arrays, DeviceBatch], dict[str, jax.Array]]:
    """(params, batch_stats, batch) -> sums over the examples of weight 1, float32 [], jitted.

    `examples`, `cross_entropy`, `top_1`, `top_5`; a label that ties with the fifth largest logit counts as in.
    """

    def eval_step(params: Arrays, batch_stats: Arrays, batch: DeviceBatch) -> dict[str, jax.Array]:
        logits, _ = network.apply(params, batch_stats, normalize(batch["image"]), train=False)
        own = jnp.take_along_axis(logits, jnp.maximum(batch["label"], 0)[:, None], axis=1)
        per_example = {
            "examples": jnp.ones_like(batch["weight"]),
            "cross_entropy": cross_entropy(logits, batch["label"], config.label_smoothing),
            "top_1": (logits.argmax(-1) == batch["label"]).astype(jnp.float32),
            "top_5": ((logits > own).sum(-1) < 5).astype(jnp.float32),
        }
        return {name: (values * batch["weight"]).sum() for name, values in per_example.items()}

    return jax.jit(eval_step)


def make_predict_step(network: Network) -> Callable[[Arrays, Arrays, jax.Array], jax.Array]:
    """(params, batch_stats, images uint8 [n, s, s, 3]) -> probabilities float32 [n, num_classes], jitted."""

    def predict_step(params: Arrays, batch_stats: Arrays, images: jax.Array) -> jax.Array:
        logits, _ = network.apply(params, batch_stats, normalize(images), train=False)
        return jax.nn.softmax(logits)

    return jax.jit(predict_step)
