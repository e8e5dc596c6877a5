"""Describes a run before its first step: lines for the log and for a dry run."""

from collections.abc import Iterator

from jax.sharding import Mesh

from resnet_tpu.models.option_checks import options_without_effect
from resnet_tpu.options.config import Config
from resnet_tpu.options.lengths import to_steps
from resnet_tpu.training.maths.schedule import schedule_warnings


def describe_run(config: Config, mesh: Mesh, step: int, total: int, position: int) -> str:
    """A line on the network, images, batch and devices of a run from `step` to `total`, whose options are resolved.

    position: the images consumed before `step`.
    """
    images, batch, devices = config.data.images_per_epoch, config.train.train_batch_size, mesh.devices
    epochs = f"{(position + (total - step) * batch) / images:.1f}"
    is_rounded = isinstance(config.train.train_steps, str) and not epochs.endswith(".0") and position == step * batch
    return (
        f"ResNet-{config.model.resnet_depth}, {config.data.num_label_classes} classes, {config.data.image_size} px, "
        f"{config.model.precision}; {images} training images; batch {batch} on {devices.size} x "
        f"{devices.flat[0].device_kind}; steps {step} to {total} ({epochs} epochs{', in whole batches' * is_rounded})"
    )


def note_on_epochs(config: Config, step: int, total: int, position: int) -> str:
    """A line if earlier steps with another batch size change the number of epochs from that asked for; else nothing.

    position: the images consumed before `step`.
    """
    train, images = config.train, config.data.images_per_epoch
    if position == step * train.train_batch_size or isinstance(train.train_steps, int):
        return ""
    asked = to_steps(train.train_steps, what="train_steps", num_train_images=images, train_batch_size=1)
    needed = step + max(0, asked - position) // train.train_batch_size
    if needed == total:
        return ""
    end = (position + max(0, total - step) * train.train_batch_size) / images
    return (
        f"train_steps {train.train_steps} is {total} steps of {train.train_batch_size} images. As earlier steps had "
        f"another batch size, the run ends after {end:.1f} epochs: give train_steps={needed} for {train.train_steps}."
    )


def describe_end(model_dir: str, step: int, total: int) -> str:
    """A line on a run at `step` whose last step is `total`, so that there is nothing to train."""
    advice = "Raise train_steps to continue, or give another model_dir."
    return f"Nothing to train: {model_dir} is at step {step} of {total}. {advice}"


def start_warnings(config: Config, num_photos: int) -> Iterator[str]:
    """Lines on options that have no effect, or not the one that their names suggest, with `num_photos` to train on."""
    yield from options_without_effect(config)
    yield from schedule_warnings(config)
    if (counted := config.data.num_train_images) != num_photos:
        yield (
            f"num_train_images is {counted}, but there are {num_photos} training images: an epoch has {counted}. To "
            "count them again, give data_dir without num_train_images."
        )
