"""Opens a run: checks it, opens its data and devices, and completes its options."""

import jax
from jax.sharding import Mesh

from resnet_tpu import storage
from resnet_tpu.checkpoints import folders
from resnet_tpu.data.class_names import check_classes
from resnet_tpu.data.folders import check_outside
from resnet_tpu.data.loader.order_choice import choose_order, require_pieces
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.data.sources.image_files import FolderSource
from resnet_tpu.data.sources.source import Source
from resnet_tpu.errors import UserError
from resnet_tpu.models.option_checks import check_options
from resnet_tpu.options.config import Config
from resnet_tpu.parallel import division, hosts, meshes
from resnet_tpu.training.maths.lengths import kept_steps
from resnet_tpu.training.maths.network import network_on
from resnet_tpu.training.maths.step import train_step_of


def check_start(config: Config) -> None:
    """Raises UserError for options and a `model_dir` that do not fit, before data are opened."""
    if (mode := config.run.mode) not in ("train", "train_and_eval"):
        raise UserError("mode", mode, "train or train_and_eval", f"Leave it out: {mode} is a command of its own.")
    config.run.require_model_dir()
    config.data.require_images()
    check_options(config)
    folders.check_model_dir(config.run.model_dir)
    storage.check_writable(config.run.model_dir)


def check_training(config: Config) -> None:
    """Raises the errors that `train` would raise before its first step, except those that need the weights.

    For callers that write something themselves before they train. JAX must have been started.
    """
    check_start(config)
    config, _, _, mesh = open_run(config)
    train_step_of(network_on(config, mesh), config, mesh)


def open_run(config: Config) -> tuple[Config, Source, Source | None, Mesh]:
    """The resolved options, the training images, the validation images if the mode needs them, and the devices."""
    source = open_source(config.data, "train")
    if config.data.data_order == "pieces":
        require_pieces(source, config.data)
    if isinstance(source, FolderSource):
        check_outside("model_dir", config.run.model_dir, config.data.data_dir)
    validation = open_source(config.data, "validation") if config.run.mode == "train_and_eval" else None
    if validation is not None:
        check_classes(config.data.location, validation.class_names, source.class_names)
    mesh = meshes.make_mesh(config.run.num_cores)
    division.check_batch_divides(config, mesh.devices.size)
    return fill_in_counts(config, source), source, validation, mesh


def fill_in_counts(config: Config, source: Source) -> Config:
    """The options, with unset counts filled in from the training split."""
    return config.replace(
        num_label_classes=source.num_classes, num_train_images=config.data.num_train_images or len(source)
    )


def resolve_order(config: Config, source: Source) -> Config:
    """The options with `data_order` decided: the run's own if it has one, else as process 0 chooses.

    The decision is the same in all processes, and is kept when the run is resumed. Every process must call this.
    """
    chosen = hosts.from_first(lambda: _order_of_run(config, source))
    return config.replace(data_order=chosen) if config.data.data_order == "auto" else config


def _order_of_run(config: Config, source: Source) -> str:
    model_dir = config.run.model_dir
    if config.data.data_order == "auto" and (own := folders.run_to_resume(model_dir)):
        config = config.replace(data_order=own.values.get("data_order", "records"))  # older than the option
    return choose_order(source, config.data, rows=config.train.train_batch_size // jax.process_count())


def keep_earlier_steps(config: Config) -> Config:
    """The options, with `lottery_checkpoint_iters` also naming the steps that earlier starts of the run asked for."""
    model_dir, asked = config.run.model_dir, kept_steps(config.train.lottery_checkpoint_iters)
    own = folders.run_to_resume(model_dir)
    earlier = (own.values.get("lottery_checkpoint_iters") if own else None) or ""
    before = Config().replace(lottery_checkpoint_iters=earlier).train  # the file may say 100, without quotes
    both = sorted({*asked, *kept_steps(before.lottery_checkpoint_iters)})
    return config.replace(lottery_checkpoint_iters=",".join(map(str, both))) if len(both) > len(asked) else config
