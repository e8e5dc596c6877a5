"""The lengths of a run in optimizer steps: how long it is, and when it evaluates, reports and saves."""

from dataclasses import dataclass

from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config
from resnet_tpu.options.lengths import Length, to_steps

_MOST_STEPS = 2**31 - 1  # devices count steps in int32


@dataclass(frozen=True)
class Lengths:
    """A run's lengths in optimizer steps."""

    total: int
    per_eval: int
    per_loop: int
    per_save: int
    kept: tuple[int, ...]
    """Steps whose checkpoints are never deleted."""

    def evaluates_at(self, step: int) -> bool:
        """Whether a run that evaluates does so at `step`: at the end of an evaluation period, or of the run."""
        return self._ends(self.per_eval, step)

    def saves_at(self, step: int) -> bool:
        """Whether a checkpoint is due at `step`: one never deleted, or at the end of a saving period or of the run."""
        return step in self.kept or self._ends(self.per_save, step)

    def reports_at(self, step: int) -> bool:
        """Whether a report ends at `step`: after a loop, before an evaluation or a checkpoint, or with the run."""
        return self._ends(self.per_loop, step) or self.evaluates_at(step) or self.saves_at(step)

    def _ends(self, period: int, step: int) -> bool:
        """Whether a period of `period` steps, or the run, ends at `step`."""
        return step > 0 and (step == self.total or step % period == 0)


def steps_of(config: Config, name: str, length: Length) -> int:
    """`length`, of the option `name`, in optimizer steps of a run whose options are resolved.

    Raises UserError when it is not a length, or longer than a step can count.
    """
    images, batch = config.data.images_per_epoch, config.train.train_batch_size
    steps = to_steps(length, what=name, num_train_images=images, train_batch_size=batch)
    if steps > _MOST_STEPS:
        raise UserError(name, f"{length} = {steps:,} steps", f"at most {_MOST_STEPS:,}", f"Lower {name}.")
    return steps


def lengths_of(config: Config) -> Lengths:
    """The lengths of a run whose options are resolved. Raises UserError for a length of less than one step."""
    train = config.train

    def count(name: str, length: Length) -> int:
        number = steps_of(config, name, length)
        if number < 1:
            size = f"{config.data.images_per_epoch} images at train_batch_size {train.train_batch_size}"
            do = f"Raise {name}, or lower train_batch_size."
            raise UserError(name, f"{length} = 0 steps of {size}", "at least one step", do)
        return number

    per_loop = count("iterations_per_loop", train.iterations_per_loop)
    per_save = max(5000, per_loop) if train.save_checkpoints_steps is None else train.save_checkpoints_steps
    return Lengths(
        count("train_steps", train.train_steps),
        count("steps_per_eval", train.steps_per_eval),
        per_loop,
        count("save_checkpoints_steps", per_save),
        kept_steps(train.lottery_checkpoint_iters),
    )


def kept_steps(text: str) -> tuple[int, ...]:
    """The steps in `lottery_checkpoint_iters`, ascending. Raises UserError for any other text."""
    try:
        return tuple(sorted({int(part) for part in text.split(",") if part.strip()}))
    except ValueError:
        expected = "steps such as 0,11259,22518"
        raise UserError("lottery_checkpoint_iters", repr(text), expected, "Change the value.") from None
