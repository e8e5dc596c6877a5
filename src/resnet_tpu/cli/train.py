"""`resnet-tpu train`, and the part of it shared with the original's flags (`resnet_main`)."""

import logging
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resnet_tpu.cli.arguments import Argument, Group
from resnet_tpu.cli.command import Command, Given
from resnet_tpu.cli.run_options import (
    configure,
    follow_start,
    given_names,
    groups_for_trainings,
    layers_of,
    without_old_counts,
)
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import OPTIONS, Config, LotteryConfig
from resnet_tpu.options.fields import option
from resnet_tpu.options.overrides import Layer, merge, to_yaml

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _OnlyOptions:
    """Options that do something else instead of training."""

    print_config: bool = option(
        False, "Print the resulting options, for --config_file, and do not train. Defaults are left out."
    )
    dry_run: bool = option(False, "Check options, data and weights, show what would be trained, and write nothing.")


PHOTOS = Argument(
    "photos",
    "PHOTOS",
    "A folder of images per class, or of TFRecords: the same as --data_dir. The model goes to "
    "runs/PHOTOS, unless --model_dir says otherwise.",
    is_required=False,
)


@Command(
    "resnet-tpu train",
    "Later settings override earlier ones, in this order: defaults, --recipe, --config_file, --params_override, single "
    "options. Without --recipe and --config_file, a recipe is chosen by the number of images and the device, and a log "
    "line names it. A resumed run keeps its options. The defaults below are for ImageNet; recipes have others.",
    examples=(
        "resnet-tpu train my_photos",
        "resnet-tpu train my_photos --recipe=finetune --model_dir=runs/tuned",
        "resnet-tpu train my_photos --recipe=flowers --epochs=30 --batch_size=64 --no-random-flip",
        "resnet-tpu train my_photos --init_from=hf:timm/resnet50.a1_in1k --model_dir=runs/tuned",
        "resnet-tpu train --config_file=mine.yaml --params_override=train_batch_size=256,seed=1",
        "resnet-tpu train --data_dir=synthetic --model_dir=runs/speed --train_steps=100    # measure speed",
    ),
    arguments=(PHOTOS,),
    groups=[Group("instead of training", _OnlyOptions), *groups_for_trainings()],
)
def train(given: Given) -> None:
    """Train on images, evaluate along the way, save checkpoints; resume the run in model_dir, if there is one."""
    only, values = given.fill(_OnlyOptions), with_photos(given.values)
    config = configure(values)
    if not config.run.model_dir and (model_dir := _model_dir_for(config)):
        log.info("No --model_dir: using %s", model_dir)
        from resnet_tpu.checkpoints import folders

        _check_images(folders.run_to_resume(model_dir), config)
        config = config.replace(model_dir=model_dir)
    if config.data.location and not only.print_config:
        config.run.require_model_dir()
    config = _complete(config, values)
    if only.print_config:
        said = {name for layer in layers_of(values) for name, value in layer.values.items() if value != ""}
        sys.stdout.write(to_yaml(config, said))  # defaults too, if given: else the weights would override them
        return
    config.data.require_images()
    if only.dry_run:
        from resnet_tpu.serving.export.export import check_export
        from resnet_tpu.training.dry_run import dry_run

        if config.eval.export_dir:
            check_export(config.eval)
        print(dry_run(config))
        return
    train_and_export(config)
    log.info("Predict with it: resnet-tpu predict %s IMAGE", shlex.quote(config.run.model_dir))


def with_photos(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with the positional PHOTOS as `data_dir`. Raises UserError if both were given."""
    photos = values["photos"]
    if photos and "data_dir" in values:
        got = f"{photos} and --data_dir={values['data_dir']}"
        raise UserError("resnet-tpu train", got, "one folder of images", "Leave one out.")
    return {**values, "data_dir": photos} if photos else {**values}


def _model_dir_for(config: Config) -> str:
    """The default model_dir for a folder of images: `runs/` and the folder's name.

    Empty for images in buckets and tables, which several machines may read, and for synthetic images.
    """
    from resnet_tpu import storage
    from resnet_tpu.checkpoints import folders

    data_dir = config.data.data_dir
    if data_dir in ("", "null", "synthetic") or config.data.bigtable_instance or storage.is_remote(data_dir):
        return ""
    name = Path(os.path.normpath(Path(data_dir).absolute())).name  # absolute, because `..` has no name of its own
    return storage.join("runs", folders.allowed_name(name)) if name else ""


def _check_images(run: Layer | None, config: Config) -> None:
    """Raises UserError if `run`, the run found by the name of the image folder, was trained on another folder."""
    from resnet_tpu import storage

    trained_on, data_dir = run.values.get("data_dir") if run else None, config.data.data_dir
    if run and trained_on and storage.resolved(trained_on) != storage.resolved(data_dir):
        do = "Give --model_dir: another one, or the same one to continue that run on these images."
        raise UserError("model_dir", f"a run on {trained_on} in {run.origin}", f"none, or one on {data_dir}", do)


def _complete(config: Config, values: Mapping[str, Any]) -> Config:
    """Fills in, and logs, the options of `config` that are not in `values`, from which it was made.

    1. Without a recipe or an option file: all options of the run to resume, else those of the recipe that fits data
       and device.
    2. In any case: the network and its preprocessing, from that run, else from the initial weights.
    """
    from resnet_tpu.checkpoints import folders

    run = folders.run_to_resume(config.run.model_dir)
    if not values.get("recipe") and not values.get("config_file"):
        defaults = _options_of_run(run, values) if run else _options_of_recipe(config)
        if defaults:
            given = {"model_dir", *given_names(values)}
            missing = {name: value for name, value in defaults.values.items() if name not in given}
            config = merge(config, [Layer(defaults.origin, missing)])
    return follow_start(config, values)


def _options_of_run(resumed: Layer, given: Mapping[str, Any]) -> Layer:
    """The options of the run to resume, except those of the original's pruning fork."""
    run = without_old_counts(resumed, given)
    lottery = {name for name, option in OPTIONS.items() if option.group == "lottery"}
    return Layer(run.origin, {name: value for name, value in run.values.items() if name not in lottery})


def _options_of_recipe(config: Config) -> Layer | None:
    """The options of the recipe that fits the data and the device; a log line names it.

    None if no recipe can be chosen: without images, for a run of the original program, or with several processes.
    """
    import jax

    from resnet_tpu.checkpoints import tf1
    from resnet_tpu.data.sources.data_dir import open_source
    from resnet_tpu.models.option_checks import check_options
    from resnet_tpu.parallel import rendezvous, startup
    from resnet_tpu.recipes.choice import choose

    run, data = config.run, config.data
    if data.bigtable_instance or data.data_dir in ("", "null", "synthetic") or tf1.find_checkpoint(run.model_dir):
        return None
    if run.coordinator_address or rendezvous.is_in_cluster(run):
        if not run.process_id:  # process 0 logs it, or one without a number, which may be the only one
            log.info(
                "No --recipe: using the defaults, which are for ImageNet. None is chosen if there may be several "
                "processes, as on a TPU VM; for photos give one, such as --recipe=finetune."
            )
        return None
    check_options(config)  # reports mistakes before looking for the data
    startup.start_jax(use_tpu=run.use_tpu)
    num_images = data.num_train_images or len(open_source(data, "train"))
    device = jax.default_backend()
    choice = choose(num_images, device=device, has_weights=bool(config.train.resnet_checkpoint))
    changed = "".join(f" with {name}={value}" for name, value in choice.changes.items())
    log.info(
        "No --recipe: using %s%s, for %s images on a %s", choice.recipe, changed, f"{num_images:,}", device.upper()
    )
    if choice.recipe.startswith("flowers"):
        log.info("--recipe=finetune would start from a trained network, which is usually better.")
    return Layer(f"recipe {choice.recipe}", choice.values)


def train_and_export(config: Config) -> None:
    """Trains, following the flags of the original's pruning fork if there are any, and exports if asked to."""
    from resnet_tpu.serving.export.export import check_export, export_run

    if config.eval.export_dir:
        check_export(config.eval)  # reports mistakes before training, not after it
    if config.lottery == LotteryConfig():
        from resnet_tpu.training.loop import train as train_run

        train_run(config)
    else:
        from resnet_tpu.pruning.lottery import train_lottery

        train_lottery(config)
    if config.eval.export_dir:
        export_run(config)
