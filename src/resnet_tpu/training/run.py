"""What a run settles before its first step: its counts, data order and lengths, and whether its classes fit."""

import itertools
from dataclasses import dataclass

import jax
from jax.sharding import Mesh

from resnet_tpu.checkpoints import folders
from resnet_tpu.checkpoints.meta import completed, numbered
from resnet_tpu.data.loader.order_choice import choose_order
from resnet_tpu.data.sources.source import Source
from resnet_tpu.errors import UserError, listed
from resnet_tpu.options.config import Config
from resnet_tpu.options.fields import Length, steps
from resnet_tpu.options.overrides import read_run
from resnet_tpu.parallel import hosts

_MOST_SHOWN = 10  # classes in an error


@dataclass(frozen=True)
class Lengths:
    """A run's lengths in optimizer steps."""

    total: int
    per_eval: int
    per_loop: int
    per_save: int
    kept: tuple[int, ...]
    """Steps whose checkpoints are never deleted."""


def resolve(config: Config, source: Source) -> Config:
    """The options, with the counts that were left open filled in from the training split."""
    return config.replace(
        num_label_classes=source.num_classes, num_train_images=config.data.num_train_images or len(source)
    )


def resolve_order(config: Config, source: Source) -> Config:
    """The options with `data_order` decided: the run's own if it has one, else as process 0 chooses.

    It is the same for all processes, and whenever the run is resumed. Every process must call this.
    """
    chosen = hosts.from_first(lambda: _order_of_run(config, source))
    return config.replace(data_order=chosen) if config.data.data_order == "auto" else config


def _order_of_run(config: Config, source: Source) -> str:
    model_dir = config.run.model_dir
    if config.data.data_order == "auto" and folders.steps_of_run(model_dir) and (own := read_run(model_dir)):
        config = config.replace(data_order=own.values.get("data_order", "records"))  # older than the option
    return choose_order(source, config.data, rows=config.train.train_batch_size // jax.process_count())


def keep_as_before(config: Config) -> Config:
    """The options; a run that goes on keeps for ever what its earlier starts kept, whatever this one asks for."""
    model_dir, asked = config.run.model_dir, kept_steps(config.train.lottery_checkpoint_iters)
    own = read_run(model_dir) if folders.steps_of_run(model_dir) else None
    earlier = (own.values.get("lottery_checkpoint_iters") if own else None) or ""
    before = Config().replace(lottery_checkpoint_iters=earlier).train  # the file may say 100, without quotes
    both = sorted({*asked, *kept_steps(before.lottery_checkpoint_iters)})
    return config.replace(lottery_checkpoint_iters=",".join(map(str, both))) if len(both) > len(asked) else config


def steps_of(config: Config, name: str, length: Length) -> int:
    """`length`, of the option `name`, in optimizer steps of a run whose options are resolved.

    Raises UserError when it is not a length.
    """
    images, batch = config.data.num_train_images or 1, config.train.train_batch_size
    return steps(name, length, num_train_images=images, train_batch_size=batch)


def lengths_of(config: Config) -> Lengths:
    """The lengths of a run whose options are resolved. Raises UserError for a length of less than one step."""
    train = config.train

    def count(name: str, length: Length) -> int:
        number = steps_of(config, name, length)
        if number < 1:
            size = f"{config.data.num_train_images or 1} images at train_batch_size {train.train_batch_size}"
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


def describe_run(config: Config, mesh: Mesh, step: int, total: int) -> str:
    """A line on the network, images, batch and devices of a run from `step` to `total`, whose options are resolved."""
    images, batch, devices = config.data.num_train_images or 1, config.train.train_batch_size, mesh.devices
    epochs = f"{total * batch / images:.1f}"
    is_rounded = isinstance(config.train.train_steps, str) and not epochs.endswith(".0")
    return (
        f"ResNet-{config.model.resnet_depth}, {config.data.num_label_classes} classes, {config.data.image_size} px, "
        f"{config.model.precision}; {images} training images; batch {batch} on {devices.size} x "
        f"{devices.flat[0].device_kind}; steps {step} to {total} ({epochs} epochs{', in whole batches' * is_rounded})"
    )


def describe_end(model_dir: str, step: int, total: int) -> str:
    """A line on a run at `step` whose last step is `total`, so that there is nothing to train."""
    advice = "Raise train_steps to go on, or give another model_dir."
    return f"Nothing to train: {model_dir} is at step {step} of {total}. {advice}"


def kept_steps(text: str) -> tuple[int, ...]:
    """The steps in `lottery_checkpoint_iters`, ascending. Raises UserError for any other text."""
    try:
        return tuple(sorted({int(part) for part in text.split(",") if part.strip()}))
    except ValueError:
        expected = "steps such as 0,11259,22518"
        raise UserError("lottery_checkpoint_iters", repr(text), expected, "Change the value.") from None


def check_classes(where: str, found: list[str] | None, expected: list[str] | None) -> None:
    """Raises UserError when the classes of the data in `where` are known but differ from those expected.

    Numbers from 0 on are expected of a training whose data had no names: any names will do, unless they are other
    numbers, or the same in another order.
    """
    if found is None or expected is None:
        return
    is_unnamed = expected == numbered(len(expected)) and not all(name.isdecimal() for name in found)
    if not is_unnamed and completed(found, len(expected)) != expected:
        do = "Use data with the same classes, or another model_dir."
        got, wanted = listed(found, _MOST_SHOWN), listed(expected, _MOST_SHOWN)
        if got == wanted:  # they differ only in what is not shown
            pairs = enumerate(itertools.zip_longest(found, expected, fillvalue="missing"))
            number, one, other = next((number, one, other) for number, (one, other) in pairs if one != other)
            got, wanted = f"{len(found)}, where {number} is {one}", f"{len(expected)}, where it is {other}"
        raise UserError(f"Classes of {where}", got, f"{wanted}, in this order", do)
