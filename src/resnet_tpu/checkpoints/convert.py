"""Converts weights from one format to another: to a `model_dir` that every command accepts, and from one."""

import logging
from collections.abc import Mapping
from typing import Any, get_args

import jax
import numpy as np

from resnet_tpu import storage
from resnet_tpu.checkpoints import folders, tf1, timm_folder, torch_files
from resnet_tpu.checkpoints.inspection import summarize
from resnet_tpu.checkpoints.safetensors_file import SUFFIX
from resnet_tpu.checkpoints.tf1_describe import AVERAGE, LARS, MOMENTUM, STEP, contents
from resnet_tpu.checkpoints.transfer import describe_left_over, start_from
from resnet_tpu.checkpoints.weights import FIXED_BY_WEIGHTS, Weights, open_weights
from resnet_tpu.checkpoints.writing import WeightsForm, check_target, new_folder, write_model_dir
from resnet_tpu.data.class_names import numbers_as_names
from resnet_tpu.errors import UserError
from resnet_tpu.models.arrays import Arrays, nest, require_finite
from resnet_tpu.models.from_options import network_of
from resnet_tpu.models.network import Network
from resnet_tpu.models.option_checks import check_options
from resnet_tpu.options.config import PREPROCESSING, Config
from resnet_tpu.options.fields import GivenPath, expand_home
from resnet_tpu.reports.metrics import evaluation_at

log = logging.getLogger(__name__)

IMAGE_SIZE = 224
"""Side in pixels of the images that the original, torchvision and most of timm train on."""

AVERAGE_DECAY = 0.9999
"""The decay of moving averages in all configurations of the original that keep them; checkpoints do not record it."""

_OTHER_SUFFIXES = (".pth", ".pt", ".bin", ".ckpt", ".onnx", ".pb", ".h5", ".keras", ".tflite")


def convert(
    source: GivenPath,
    target: GivenPath,
    *,
    to: WeightsForm | None = None,
    labels: GivenPath = "",
    image_size: int | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> None:
    """Converts the weights that `source` refers to and writes them to `target`; on a disk, whole or not at all.

    source: a run or checkpoint, a weights file or folder of PyTorch or the original, or a name, as for `load_model`.
    to: `model_dir`, a run of this program, with the step, momentum and averages of a run of the original; `tf1`, a
    folder with a checkpoint of the original, with the same; `safetensors`, a file with torchvision's names, in which
    averages replace the weights unless export_moving_average is off; `timm`, a folder with such a file and what else
    timm and the hub need. Default: `safetensors` when `target` has that suffix, else `model_dir`.
    labels: a text file with one class name per line. image_size: in pixels, not for `tf1`; default: that of the
    weights if a file records it, else 224.
    overrides: values of options that the source does not record.
    Raises UserError when the source is not weights or damaged, options contradict it, or `target` already exists.
    """
    source, target, labels = expand_home(source), expand_home(target), expand_home(labels)
    form = _choose_form(to, target)
    check_target(target, form)
    for name, value in (("labels", labels), ("image_size", image_size)):
        if value and form == "tf1":
            raise UserError(name, value, f"no {name} with --to=tf1, which has no place for it", "Leave it out.")
    weights = open_weights(source)
    config = _configure(weights, image_size, overrides or {})
    _check_source(source, weights, config, form)
    class_names = _read_labels(labels, config.data.num_label_classes or 0) if labels else weights.class_names
    network = network_of(config)
    arrays = _arrays(weights, network)
    if config.optimizer.keeps_average and "ema" not in arrays:  # an override asked for it
        arrays["ema"] = {name: arrays[name] for name in ("params", "batch_stats")}
    require_finite(arrays, weights.source, "Take an earlier checkpoint.")
    if "masks" in arrays and form != "model_dir":
        log.warning(
            "%s has no place for the masks of a pruned network. Masked weights are 0 in it, but training that "
            "continues from it changes them.",
            target,
        )
    if form == "model_dir":
        write_model_dir(target, config, arrays, class_names)
    elif form == "tf1":
        _write_tf1(target, config, network, arrays)
    else:
        measured = "ema" not in arrays or config.eval.export_moving_average  # evaluations use the averages
        arrays = _exported(target, config, arrays)
        if form == "timm":
            top_1 = _top_1(weights, config) if measured else None
            names = class_names or numbers_as_names(network.num_classes)
            with new_folder(target) as folder:
                timm_folder.write_folder(folder, config, network, arrays, names, top_1=top_1)
        else:
            seen = {name: getattr(config.data, name) for name in PREPROCESSING}
            check_target(target, form)  # again: another program may have written it meanwhile
            torch_files.write_safetensors(target, network, arrays, class_names=class_names, preprocessing=seen)
    log.info("Converted %s to %s: %s", weights.source, target, summarize(weights, network))


def _choose_form(asked: WeightsForm | None, target: str) -> WeightsForm:
    """The form to write: as asked for, or as the name of `target` implies. Raises UserError if there is none."""
    if asked not in (None, *(known := get_args(WeightsForm))):
        raise UserError("to", repr(asked), f"one of {', '.join(known)}", "Change the value.")
    if asked:
        return asked
    if target.endswith(_OTHER_SUFFIXES):
        do = "PyTorch reads *.safetensors; `resnet-tpu export` writes ONNX and SavedModels; --to=tf1, TF checkpoints."
        raise UserError("Target", target, f"a folder, or a file called *{SUFFIX}", do)
    return "safetensors" if target.endswith(SUFFIX) else "model_dir"


def _check_source(source: str, weights: Weights, config: Config, form: WeightsForm) -> None:
    """Raises UserError for weights that have this form already, or that it cannot hold."""
    if weights.kind == "ours" and form == "model_dir":
        expected = "weights of another kind, or --to=tf1, timm or safetensors"
        raise UserError("Source", f"{source}, a checkpoint of resnet_tpu", expected, "Copy the folder instead.")
    if config.model.inner_channels and form != "model_dir":
        do = "Convert the network that it was compacted from."
        raise UserError("Source", f"{source}, a compacted network", "one that other programs can load", do)


def open_network(source: str) -> tuple[Config, Arrays, list[str] | None]:
    """The options, arrays and class names of the weights that `source` means, which must not be ours.

    If there are moving averages, the arrays are the averages. Raises UserError as `convert` does.
    """
    weights = open_weights(source)
    config = _configure(weights, None, {})
    arrays = _arrays(weights, network_of(config))
    return config, arrays.get("ema", arrays), weights.class_names


def _configure(weights: Weights, image_size: int | None, overrides: Mapping[str, Any]) -> Config:
    """The options of the run that the weights come from; those not recorded or given have their defaults."""
    do = "Start a run from it: resnet-tpu train --init_from=FILE."
    if weights.options.get("num_label_classes") == 1:
        raise UserError(f"Weights {weights.source}", "a classifier with one output", "an output for each class", do)
    config = Config().replace(**weights.options)
    if weights.kind != "ours":
        config = config.replace(image_size=weights.options.get("image_size", IMAGE_SIZE), **_training_options(weights))
    if weights.kind == "torch":  # the publishers' precision, in which predictions equal theirs
        config = config.replace(precision="float32")
    if image_size:
        config = config.replace(image_size=image_size)
    config = config.replace(**overrides)
    if config.data.num_label_classes is None:
        raise UserError(f"Weights {weights.source}", "no classifier", "a whole network", do)
    check_options(config)
    return config


def _training_options(weights: Weights) -> dict[str, Any]:
    """Options of the run that optimizer slots and averages reveal."""
    found = contents(weights.variables)
    options: dict[str, Any] = {"enable_lars": True} if found.optimizer == LARS.strip("/") else {}
    if found.averaged:
        log.info(
            "There are moving averages; their decay is taken to be %g, as checkpoints do not record it", AVERAGE_DECAY
        )
        options |= {"moving_average_decay": AVERAGE_DECAY, "bn_momentum": 0.0}
    return options


def _read_labels(path: str, num_classes: int) -> list[str]:
    """The class names in a text file. Raises UserError when there are more or fewer than classes."""
    if not storage.exists(path) or storage.is_dir(path):
        raise UserError("Labels", path, "a text file with a class name on each line", "Check the path.")
    names = storage.read_names(path)
    if len(names) != num_classes:
        raise UserError("Labels", f"{len(names)} names in {path}", f"{num_classes}, one for each class", "Correct it.")
    return names


def _arrays(weights: Weights, network: Network) -> Arrays:
    """The arrays as our checkpoints hold them. Raises UserError when one is missing or has another shape."""
    params, batch_stats, report = start_from(network, weights, *network.shapes())
    if report.skipped:
        do = "Give the whole network, and options that do not contradict it."
        raise UserError(f"Weights {weights.source}", str(report.skipped[0]), "every array of the network", do)
    if weights.kind == "ours":
        return nest(weights.variables)
    used = (MOMENTUM, LARS, AVERAGE, STEP) if weights.kind == "tf1" else ()
    left_over = [name for name in report.left_over if not name.endswith(used)]
    for line in describe_left_over(left_over, report.loaded):
        log.info("Not used: %s", line)
    restored = {"step": 0}
    if weights.kind == "tf1":
        restored = tf1.from_tf1(network, {**weights.variables, **weights.masks})
    momentum = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), params)
    return {"momentum": momentum, **restored, "params": params, "batch_stats": batch_stats}


def _write_tf1(target: str, config: Config, network: Network, arrays: Arrays) -> None:
    names = [*FIXED_BY_WEIGHTS, "crop_pct", "resize_method", "eval_preprocessing"]
    if not network.architecture.bottleneck:
        names.append("resnetd_shortcut")
    own, theirs = config.flat(), Config().flat()
    for name in names:
        if own[name] != theirs[name]:
            log.warning(
                "The original has no %s=%s, only %s: it will give different results with these weights",
                name,
                own[name],
                theirs[name],
            )
    with new_folder(target) as folder:
        tf1.write_checkpoint(folder, network, arrays, lars=config.optimizer.enable_lars)


def _exported(target: str, config: Config, arrays: Arrays) -> Arrays:
    """The params and batch_stats to export: the moving averages, if there are any and they are wanted."""
    if "ema" not in arrays or not config.eval.export_moving_average:
        return arrays
    log.info(
        "The weights in %s are the moving averages; not with --params_override=export_moving_average=false", target
    )
    return arrays["ema"]


def _top_1(weights: Weights, config: Config) -> float | None:
    """The validation accuracy that the run measured for this checkpoint, if any, and with these options."""
    run = folders.run_of(weights.source)
    if weights.kind != "ours" or not run or weights.step is None:
        return None
    options = config.flat()
    if any(options[name] != weights.options[name] for name in ("image_size", *PREPROCESSING, *FIXED_BY_WEIGHTS)):
        return None
    return evaluation_at(run, weights.step).get("top_1_accuracy")
