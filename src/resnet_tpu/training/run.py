"""The options of a run, completed from its data and from its earlier starts, and a line that describes it."""

import jax
from jax.sharding import Mesh

from resnet_tpu.checkpoints import folders
from resnet_tpu.data.loader.order_choice import choose_order
from resnet_tpu.data.sources.source import Source
from resnet_tpu.options.config import Config
from resnet_tpu.parallel import hosts
from resnet_tpu.training.lengths import kept_steps


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
    if config.data.data_order == "auto" and (own := folders.run_to_resume(model_dir)):
        config = config.replace(data_order=own.values.get("data_order", "records"))  # older than the option
    return choose_order(source, config.data, rows=config.train.train_batch_size // jax.process_count())


def with_steps_kept_before(config: Config) -> Config:
    """The options, with the steps that earlier starts of the run asked to keep in `lottery_checkpoint_iters` too."""
    model_dir, asked = config.run.model_dir, kept_steps(config.train.lottery_checkpoint_iters)
    own = folders.run_to_resume(model_dir)
    earlier = (own.values.get("lottery_checkpoint_iters") if own else None) or ""
    before = Config().replace(lottery_checkpoint_iters=earlier).train  # the file may say 100, without quotes
    both = sorted({*asked, *kept_steps(before.lottery_checkpoint_iters)})
    return config.replace(lottery_checkpoint_iters=",".join(map(str, both))) if len(both) > len(asked) else config


def describe_run(config: Config, mesh: Mesh, step: int, total: int) -> str:
    """A line on the network, images, batch and devices of a run from `step` to `total`, whose options are resolved."""
    images, batch, devices = config.data.images_per_epoch, config.train.train_batch_size, mesh.devices
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
