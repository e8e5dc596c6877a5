"""One step of training, evaluation and prediction: pure functions on the device."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from resnet_tpu.kernels.choose import choose_kernels
from resnet_tpu.models.arrays import Arrays
from resnet_tpu.models.kernel_table import Kernels
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import Config, ModelConfig, OptimizerConfig
from resnet_tpu.parallel.placement import DeviceBatch
from resnet_tpu.training.compiler_options import compiler_options_for, required_options_for
from resnet_tpu.training.maths.lengths import lengths_of
from resnet_tpu.training.maths.loss import cross_entropy, l2
from resnet_tpu.training.maths.masking import apply_masks
from resnet_tpu.training.maths.mixing import mix
from resnet_tpu.training.maths.optimizer import make_optimizer
from resnet_tpu.training.maths.schedule import Schedule, make_schedule
from resnet_tpu.training.maths.state import TrainState, update_average
from resnet_tpu.training.maths.trainable import learning_rate_factors

TrainStep = Callable[[TrainState, DeviceBatch], tuple[TrainState, dict[str, jax.Array]]]
"""(state, batch) -> (next state, metrics), see `make_train_step`."""

EvalStep = Callable[[Arrays, Arrays, DeviceBatch], dict[str, jax.Array]]
"""(params, batch_stats, batch) -> sums over the batch, see `make_eval_step`."""


KEPT = 4
"""How many steps of each kind stay compiled until the program ends, so that its runs, as in `prune`, can share them."""


def normalize(images: jax.Array, model: ModelConfig) -> jax.Array:
    """Pixels 0..255 of any type -> float32, minus `mean_rgb`, divided by `stddev_rgb`."""
    mean, std = (jnp.asarray([255 * value for value in colors]) for colors in (model.mean_rgb, model.stddev_rgb))
    return (images.astype(jnp.float32) - mean) / std


def train_step_of(
    network: Network, config: Config, mesh: Mesh, *, kernels: Kernels | None = None, tuned_compiler: bool = False
) -> TrainStep:
    """The step of a run whose options are resolved, on the devices of `mesh`; see `make_train_step`.

    kernels: how the layers are computed; default as the options say, see `choose_kernels`.
    """
    return make_train_step(
        network.with_kernels(kernels or choose_kernels(config.model, mesh)),
        make_schedule(config),
        config.optimizer,
        seed=config.train.seed,
        total_steps=lengths_of(config).total,
        mesh=mesh,
        tuned_compiler=tuned_compiler,
    )


@functools.lru_cache(KEPT)
def make_train_step(
    network: Network,
    schedule: Schedule,
    config: OptimizerConfig,
    *,
    seed: int = 0,
    total_steps: int = 1,
    mesh: Mesh | None = None,
    tuned_compiler: bool = False,
) -> TrainStep:
    """(state, batch) -> (next state, metrics), jitted; the memory of the given state is donated.

    Metrics, float32 []: `loss` (cross-entropy and L2 of the whole batch, before the update), `learning_rate` of this
    update, `top_1_accuracy` on the batch.
    seed: decides the random numbers (mixup, dropout ...), together with the step alone. total_steps: the length of the
    run, for quantities that grow over its course. mesh: the devices that share the batch; None for any, without
    `gradient_accumulation_steps`. With these, each device processes its share in that many parts: the update is that of
    the whole batch, but each part has its own batch-norm statistics. tuned_compiler: whether to set the compiler
    options of `compiler_options_for`.
    """
    num_devices, device = (1, None) if mesh is None else (mesh.devices.size, mesh.devices.flat[0])
    optimizer, factors = make_optimizer(config), learning_rate_factors(network, config)
    is_mixed = config.mixup_alpha > 0 or config.cutmix_alpha > 0
    compute = _make_gradients(network, config, factors, total_steps=total_steps, num_devices=num_devices)

    def train_step(state: TrainState, batch: DeviceBatch) -> tuple[TrainState, dict[str, jax.Array]]:
        key, mixing_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), state.step))
        if is_mixed:
            batch = mix(batch, mixing_key, config)
        (loss, (batch_stats, correct)), gradients = compute(state, batch, key)
        if state.masks is not None:
            gradients = apply_masks(gradients, state.masks)
        rate = schedule(state.step)
        updates, opt_state = optimizer(rate).update(gradients, state.opt_state, state.params)
        updates = jax.tree.map(lambda update, factor: update if factor == 1 else factor * update, updates, factors)
        params: Any = optax.apply_updates(state.params, updates)
        ema = state.ema
        if ema is not None:
            values = {"params": params, "batch_stats": batch_stats}
            ema = update_average(ema, values, config.moving_average_decay, state.step + 1)
        metrics = {"loss": loss, "learning_rate": rate, "top_1_accuracy": correct}
        return TrainState(state.step + 1, params, batch_stats, opt_state, ema, state.masks), metrics

    options = (compiler_options_for if tuned_compiler else required_options_for)(device)
    return jax.jit(train_step, donate_argnums=0, compiler_options=options)


def _make_gradients(
    network: Network, config: OptimizerConfig, factors: Arrays, *, total_steps: int, num_devices: int
) -> Callable[[TrainState, DeviceBatch, jax.Array], Any]:
    """(state, batch, key) -> ((loss, (batch statistics, fraction correct)), gradients) of the whole batch."""
    gradient_of = jax.value_and_grad(_make_loss(network, config, factors), has_aux=True)
    num_parts = config.gradient_accumulation_steps

    def compute(state: TrainState, batch: DeviceBatch, key: jax.Array) -> Any:
        progress = state.step / total_steps
        if num_parts == 1:
            return gradient_of(state.params, state.batch_stats, batch, key, progress)

        def add(total: Any, part: tuple[jax.Array, DeviceBatch]) -> tuple[Any, None]:
            number, images = part
            own_key = jax.random.fold_in(key, number)
            found = gradient_of(state.params, state.batch_stats, images, own_key, progress)
            return jax.tree.map(jnp.add, total, found), None

        parts = jax.tree.map(lambda rows: _split(rows, num_parts, num_devices), batch)
        first = jax.tree.map(lambda rows: rows[0], parts)
        shapes = jax.eval_shape(gradient_of, state.params, state.batch_stats, first, key, progress)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        total, _ = jax.lax.scan(add, zeros, (jnp.arange(num_parts), parts))
        mean = jax.tree.map(lambda leaf: leaf / num_parts, total)
        if not network.architecture.freeze_batch_norm:
            return mean
        (loss, (_, correct)), gradients = mean
        return (loss, (state.batch_stats, correct)), gradients  # the mean of equal parts may differ in the last bit

    return compute


def _make_loss(network: Network, config: OptimizerConfig, factors: Arrays) -> Callable[..., Any]:
    """(params, batch statistics, batch, key, progress) -> (loss, (batch statistics, fraction correct))."""

    def loss_of(
        params: Arrays,
        batch_stats: Arrays,
        batch: DeviceBatch,
        key: jax.Array,
        progress: jax.Array,
    ) -> tuple[jax.Array, tuple[Arrays, jax.Array]]:
        # no gradient is computed for frozen parameters
        params = jax.tree.map(lambda leaf, rate: leaf if rate else jax.lax.stop_gradient(leaf), params, factors)
        images = normalize(batch["image"], network.model)
        logits, batch_stats = network.apply(params, batch_stats, images, train=True, key=key, progress=progress)
        losses = cross_entropy(logits, batch["label"], config.label_smoothing)
        correct = logits.argmax(-1) == batch["label"]
        if "fraction" in batch:
            fraction = batch["fraction"]
            losses = fraction * losses + (1 - fraction) * cross_entropy(
                logits, batch["partner"], config.label_smoothing
            )
            correct = fraction * correct + (1 - fraction) * (logits.argmax(-1) == batch["partner"])
        squares = l2(params, norms=config.decay_batch_norm)
        return losses.mean() + config.weight_decay_in_loss * squares, (batch_stats, correct.mean())

    return loss_of


def _split(rows: jax.Array, num_parts: int, num_devices: int) -> jax.Array:
    """[n, ...] -> [num_parts, n / num_parts, ...]; each part takes from every device rows that it already holds."""
    by_device = rows.reshape(num_devices, num_parts, -1, *rows.shape[1:])
    return by_device.swapaxes(0, 1).reshape(num_parts, -1, *rows.shape[1:])


@functools.lru_cache(KEPT)
def make_eval_step(network: Network, config: OptimizerConfig, *, device: Any = None) -> EvalStep:
    """(params, batch_stats, batch) -> sums over the examples of weight 1, float32 [], jitted.

    `examples`, `cross_entropy`, `top_1`, `top_5`; a label that ties with the fifth largest logit counts as a hit. If a
    logit is NaN, so is `cross_entropy`, and the other sums mean nothing. `device`: one of those that the step runs on;
    default: JAX's first.
    """

    def eval_step(params: Arrays, batch_stats: Arrays, batch: DeviceBatch) -> dict[str, jax.Array]:
        logits, _ = network.apply(params, batch_stats, normalize(batch["image"], network.model), train=False)
        own = jnp.take_along_axis(logits, jnp.maximum(batch["label"], 0)[:, None], axis=1)
        per_example = {
            "examples": jnp.ones_like(batch["weight"]),
            "cross_entropy": cross_entropy(logits, batch["label"], config.label_smoothing),
            "top_1": (logits.argmax(-1) == batch["label"]).astype(jnp.float32),
            "top_5": ((logits > own).sum(-1) < 5).astype(jnp.float32),
        }
        return {name: (values * batch["weight"]).sum() for name, values in per_example.items()}

    return jax.jit(eval_step, compiler_options=required_options_for(device))


@functools.lru_cache(KEPT)
def make_output_step(
    network: Network, stage: str, *, device: Any = None
) -> Callable[[Arrays, Arrays, jax.Array], jax.Array]:
    """(params, batch_stats, images uint8 [n, s, s, 3]) -> the output of a stage, float32 [n, ...], jitted.

    `stage`: one of `network.stages`, or "probabilities". `device`: as in `make_eval_step`.
    """

    def output_step(params: Arrays, batch_stats: Arrays, images: jax.Array) -> jax.Array:
        outputs = network.outputs(params, batch_stats, normalize(images, network.model))
        return jax.nn.softmax(outputs["logits"]) if stage == "probabilities" else outputs[stage]

    return jax.jit(output_step, compiler_options=required_options_for(device))
