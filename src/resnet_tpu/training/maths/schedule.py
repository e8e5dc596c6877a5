"""Learning rate as a function of the step."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from resnet_tpu.options.config import Config, epoch_boundaries
from resnet_tpu.training.maths.lengths import lengths_of, steps_of

Schedule = Callable[[jax.Array], jax.Array]
"""Step, int32 [] -> learning rate, float32 [], inside jit too. Those of this module are equal if their settings are."""

BASE_BATCH_SIZE = 256
"""Batch size that `base_learning_rate` refers to; it scales linearly. Source: arXiv:1706.02677, section 2.1."""


def make_schedule(config: Config) -> Schedule:
    """The schedule that the options ask for. Counts of images and lengths must be resolved."""
    optimizer, batch_size = config.optimizer, config.train.train_batch_size
    images, total = config.data.images_per_epoch, lengths_of(config).total
    if optimizer.lottery_force_learning_rate is not None:
        return Constant(optimizer.lottery_force_learning_rate)
    if optimizer.enable_lars:
        return PolynomialDecay(batch_size, images, total, optimizer.poly_rate)
    peak = optimizer.base_learning_rate * batch_size / BASE_BATCH_SIZE
    if optimizer.learning_rate_schedule == "step":
        return StepDecay(peak, _boundaries(config, total), steps_per_epoch=images / batch_size)
    warmup = _warmup(config, total)
    if optimizer.learning_rate_schedule == "cosine":
        return CosineDecay(peak, warmup, total)
    return Constant(peak, warmup)


def schedule_warnings(config: Config) -> Iterator[str]:
    """Lines for the log on behaviour of a run's schedule that its name does not suggest."""
    optimizer, total = config.optimizer, lengths_of(config).total
    if optimizer.enable_lars or optimizer.lottery_force_learning_rate is not None:
        return
    if optimizer.learning_rate_schedule == "cosine" and (warmup := _warmup(config, total)) >= total:
        yield f"The warm-up of {warmup} steps is as long as the run: the learning rate never falls."
    is_given = optimizer.learning_rate_boundaries or optimizer.learning_rate_epochs is not None
    if optimizer.learning_rate_schedule == "step" and not is_given:
        epochs = total * config.train.train_batch_size / config.data.images_per_epoch
        boundaries = _boundaries(config, total)
        last = boundaries[-1] / epochs
        if boundaries != standard_boundaries(epochs) and not 0.8 < last < 1:
            when = "never" if last >= 1 else f"after {100 * last:.0f} % of the run"
            do = f"As it counts whole batches in an epoch, give learning_rate_epochs={epochs:.6g}."
            yield f"The step schedule divides the learning rate for the last time {when}, not after 8/9. {do}"


def _boundaries(config: Config, total: int) -> tuple[float, ...]:
    """The boundaries in epochs of the schedule `step`."""
    if given := epoch_boundaries(config.optimizer.learning_rate_boundaries):
        return tuple(given)
    epochs = config.optimizer.learning_rate_epochs
    if epochs is None:
        epochs = total / max(config.data.images_per_epoch // config.train.train_batch_size, 1)
    return standard_boundaries(epochs)


def _warmup(config: Config, total: int) -> int:
    """The warm-up steps of the schedules `cosine` and `constant`."""
    warmup = config.optimizer.warmup_steps
    if warmup is None:
        warmup = total // 18 if config.optimizer.learning_rate_schedule == "cosine" else 0
    return steps_of(config, "warmup_steps", warmup)


def standard_boundaries(epochs: float) -> tuple[int, ...]:
    """The original's boundaries for a run of `epochs` epochs: floor(5/90, 30/90, 60/90, 80/90 * epochs)."""
    return tuple(int(fraction / 90 * epochs) for fraction in (5, 30, 60, 80))


@dataclass(frozen=True)
class StepDecay:
    """Linear warm-up to `peak` at the first boundary, `peak` until the next, then a tenth of it, a hundredth, ...

    boundaries: in epochs, ascending; the last rate applies after the last of them. In a short run they may be 0: if the
    first is, there is no warm-up, and if all four are, the rate is a thousandth of the peak from the start, as in the
    original.
    Source: arXiv:1706.02677, section 5.1.
    """

    peak: float
    boundaries: tuple[float, ...]
    steps_per_epoch: float

    def __call__(self, step: jax.Array) -> jax.Array:
        """See `Schedule`."""
        epoch = step.astype(jnp.float32) / jnp.float32(self.steps_per_epoch)
        value = jnp.float32(self.peak) * epoch / (self.boundaries[0] or 1)
        for number, boundary in enumerate(self.boundaries):
            value = jnp.where(epoch < boundary, value, jnp.float32(self.peak * 10.0**-number))
        return value


@dataclass(frozen=True)
class PolynomialDecay:
    """Linear warm-up, then a parabola down to 0.0001: the schedule of LARS.

    The peak and the warm-up epochs depend on the batch; `poly_rate` > 0 replaces only the peak. After a warm-up of w
    whole steps: (peak - 0.0001) (1 - s / (train_steps - w + 1))^2 + 0.0001 with s = max(1, step - w).
    Source: arXiv:1708.03888; the numbers and the end value are the original's.
    """

    train_batch_size: int
    num_train_images: int
    train_steps: int
    poly_rate: float = 0.0

    def __call__(self, step: jax.Array) -> jax.Array:
        """See `Schedule`."""
        bounds = ((65536, 35.6, 40), (32768, 32.0, 14), (16384, 25.0, 5), (0, 10.0, 5))
        peak, warmup_epochs = next((peak, epochs) for batch, peak, epochs in bounds if self.train_batch_size >= batch)
        peak = self.poly_rate or peak
        warmup_steps = warmup_epochs * self.num_train_images // self.train_batch_size
        decay_steps = self.train_steps - warmup_steps + 1
        end = 0.0001

        epoch = step.astype(jnp.float32) / jnp.float32(self.num_train_images / self.train_batch_size)
        done = jnp.clip(step - warmup_steps, 1, decay_steps).astype(jnp.float32)
        decay = (peak - end) * jnp.square(1 - done / decay_steps) + end
        return jnp.where(epoch <= warmup_epochs, peak * epoch / warmup_epochs, decay).astype(jnp.float32)


@dataclass(frozen=True)
class CosineDecay:
    """Linear warm-up over `warmup` steps, then half a cosine to 0 at `total`. Source: arXiv:1608.03983, equation 5."""

    peak: float
    warmup: int
    total: int

    def __call__(self, step: jax.Array) -> jax.Array:
        """See `Schedule`."""
        done = jnp.clip((step - self.warmup) / max(self.total - self.warmup, 1), 0.0, 1.0)
        return _warm_up(step, self.warmup, self.peak * 0.5 * (1 + jnp.cos(jnp.pi * done)), self.peak)


@dataclass(frozen=True)
class Constant:
    """`peak` after a linear warm-up over `warmup` steps."""

    peak: float
    warmup: int = 0

    def __call__(self, step: jax.Array) -> jax.Array:
        """See `Schedule`."""
        return _warm_up(step, self.warmup, jnp.float32(self.peak), self.peak)


def _warm_up(step: jax.Array, warmup: int, after: jax.Array, peak: float) -> jax.Array:
    """A linear warm-up that starts at peak/warmup: unlike in `StepDecay`, no update is wasted on a rate of 0."""
    return jnp.where(step < warmup, peak * (step + 1) / max(warmup, 1), after).astype(jnp.float32)
