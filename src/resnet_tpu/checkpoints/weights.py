"""The weights of a trained network, whoever wrote them: the original program, torchvision or timm, this package."""

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from resnet_tpu import storage
from resnet_tpu.checkpoints import folders, pretrained, reading, tf1, tf1_bundle, tf1_describe, torch_files
from resnet_tpu.checkpoints.foreign import stand_in
from resnet_tpu.checkpoints.meta import config_of
from resnet_tpu.checkpoints.tf1_describe import STEP
from resnet_tpu.checkpoints.tf1_lottery import masked_variables, masks_by_layer
from resnet_tpu.checkpoints.tf1_names import tf_names
from resnet_tpu.errors import UserError, nearest
from resnet_tpu.models.arrays import Leaf, leaves
from resnet_tpu.models.from_options import resolve_architecture
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import OPTIONS, Config

Kind = Literal["ours", "tf1", "torch"]

FIXED_BY_WEIGHTS = ("inner_channels", "pool_padding", "project_first_group", "mean_rgb", "stddev_rgb")
"""Options that change what a network computes, and that a run which starts from weights must take from them."""

ORIGIN = ("weights_origin", "weights_licence")
"""Options that say where weights come from; they are kept with the weights if they are known."""

_PART = re.compile(r".*-\d{5}-of-\d{5}\.(safetensors|bin)|.*\.(safetensors|bin)\.index\.json")

_OTHER_FILES = {
    ".h5": "Keras weights",
    ".keras": "a Keras model",
    ".onnx": "an ONNX model",
    ".pb": "a TensorFlow graph",
    ".tflite": "a TensorFlow Lite model",
    ".npz": "a NumPy archive",
    ".msgpack": "Flax weights",
}
_OTHER_FOLDERS = {
    "saved_model.pb": "a SavedModel",
    "model.stablehlo": "an exported model",
    "keras_metadata.pb": "a Keras model",
}
"""Other things that people may give by mistake: files by suffix, folders by a file in them."""

_EXPECTED = "a TF1 checkpoint (PREFIX.index), a .safetensors or .pth file, a model_dir or a name in `resnet-tpu models`"
_SHOWN_NAMES = 6


@dataclass(frozen=True)
class Weights:
    """All arrays of a checkpoint or file, by their names there; those of the pruning fork by the original's names.

    `variables`: the weights, and training state such as momentum; kernels are [h, w, in, out] and [in, out].
    `options`: those of the network and its training that the file reveals, by name. `class_names` and `step` are None
    if it does not give them.
    """

    source: str
    kind: Kind
    variables: Mapping[str, np.ndarray]
    options: Mapping[str, Any]
    class_names: list[str] | None = None
    step: int | None = None
    masks: Mapping[str, np.ndarray] = field(default_factory=dict)
    """The masks of the pruning fork, `conv2d/mask`, which are applied already."""

    def names_in(self, network: Network) -> dict[str, Leaf]:
        """The place in `network` of each array, by its name in files of this kind."""
        if self.kind == "tf1":
            return tf_names(network)
        if self.kind == "torch":
            return torch_files.torch_names(network)
        names = (name for name, _ in leaves(network.shape_trees()))
        return {name: (name.split("/")[0], tuple(name.split("/")[1:])) for name in names}


@dataclass(frozen=True)
class LocatedWeights:
    """Weights that are not read yet: their kind and their path, which is a checkpoint of ours, a prefix or a file.

    `known_options`: options that are known although their files do not record them, by name.
    """

    kind: Kind
    path: str
    known_options: Mapping[str, Any] = field(default_factory=dict)


def open_weights(path: str) -> Weights:
    """The weights that `path` means, whole; see `locate`.

    Raises UserError when there are none, a file is missing or damaged, or the network is not supported here.
    """
    found = locate(path)
    read = {"ours": reading.load_named, "tf1": tf1.read_checkpoint, "torch": torch_files.read_state_dict}[found.kind]
    return weights_of(found, read(found.path))


def options_of_weights(path: str) -> Mapping[str, Any]:
    """The options of the network and its preprocessing that the weights `path` reveal, by name.

    The stem is the actual one, not `auto`. The arrays are not read if the file describes them. Raises UserError as
    `open_weights` does.
    """
    located = locate(path)
    options = weights_of(located, outline(located)).options
    if options.get("stem") != "auto":
        return options
    config = Config().replace(**options)
    architecture = resolve_architecture(config.model, image_size=config.data.image_size)
    return {**options, "stem": "small" if architecture.small_stem else "imagenet"}


def fixed_options(weights: Weights) -> dict[str, Any]:
    """The options in `FIXED_BY_WEIGHTS` with which these weights compute what they were trained for."""
    return {name: weights.options.get(name, OPTIONS[name].default) for name in FIXED_BY_WEIGHTS}


def locate(path: str) -> LocatedWeights:
    """The weights that `path` means; if there are none here, published ones of that name are fetched.

    `path` is a `model_dir` or checkpoint of ours; a TF1 checkpoint (prefix, one of its files, or a folder of them); a
    `.safetensors` or `.pth` file, or a folder with one laid out as on Hugging Face's hub; or a name. Raises UserError
    when it is none of these.
    """
    if not path:  # not the current folder
        raise _no_weights_error(path)
    if path.startswith(("http://", "https://")):
        raise UserError("Weights", path, "a file or folder", "Download it first, and give its path.")
    with contextlib.suppress(UserError):
        return LocatedWeights("ours", reading.find(path))
    if prefix := tf1.find_checkpoint(path):
        return LocatedWeights("tf1", prefix)
    file = torch_files.find_file(path)
    if file and storage.exists(file) and not _PART.fullmatch(file.rsplit("/", 1)[-1]):
        return LocatedWeights("torch", file)
    if fetched := pretrained.fetch(path):  # even if a new run's model_dir has this name
        path, known_options = fetched
        return replace(locate(path), known_options=known_options)
    versions = (storage.join(path, str(version)) for version in folders.steps_in(path))
    raise _no_weights_error(next(filter(_other_folder, versions), path))


def _no_weights_error(path: str) -> UserError:
    """The error for a path that holds no weights; it says what is there instead, or names a similar path."""
    folder, _, name = path.rpartition("/")
    if not storage.exists(path):
        hint = nearest(name, [*storage.list_dir(folder or "."), *([] if folder else pretrained.PRETRAINED)])
        got = f"{path}, which does not exist" if path else "nothing"
        return UserError("Weights", got, _EXPECTED, f"Check the path.{hint}")
    names = storage.list_dir(path)
    if any(_PART.fullmatch(part) for part in (name, *names)):
        do = "Save them as one .safetensors file."
        return UserError("Weights", f"{path}, weights in several files", "one file", do)
    do = "Give the checkpoint that it was made from."
    if not storage.is_dir(path):
        what = next((f", {what}" for suffix, what in _OTHER_FILES.items() if name.endswith(suffix)), "")
        return UserError("Weights", f"{path}{what}", _EXPECTED, do)
    if what := _other_folder(path):
        return UserError("Weights", f"{path}, {what}", _EXPECTED, do)
    more = f" and {len(names) - _SHOWN_NAMES} more" if names[_SHOWN_NAMES:] else ""
    files = [name for name in names if torch_files.find_file(storage.join(path, name))]
    do = f"Give a file of it: {storage.join(path, files[0])}." if files else "Check the path."
    return UserError(
        "Weights", f"{path}, a folder of {', '.join(names[:_SHOWN_NAMES]) or 'nothing'}{more}", _EXPECTED, do
    )


def _other_folder(folder: str) -> str | None:
    """What `folder` holds instead of weights, in words; None if that is not known."""
    names = storage.list_dir(folder)
    return next((what for name, what in _OTHER_FOLDERS.items() if name in names), None)


def weights_of(located: LocatedWeights, variables: Mapping[str, np.ndarray]) -> Weights:
    """The variables in our layout, with everything that they, the weights' name and the accompanying files reveal.

    Raises UserError when the network is not supported here.
    """
    kind, path = located.kind, located.path
    if kind == "ours":
        meta = reading.read_meta(path)
        options = config_of(meta).flat()
        return Weights(path, kind, variables, options, meta["class_names"], reading.step_of(path))
    if kind == "tf1":
        step = int(variables[STEP]) if STEP in variables else None
        options = {**tf1_describe.options_of(variables), **located.known_options}
        masks = {f"{layer}/mask": mask for layer, mask in masks_by_layer(variables).items()}
        return Weights(path, kind, masked_variables(variables), options, step=step, masks=masks)
    options = {**torch_files.options_of(variables, path), **located.known_options}
    ours = {name: torch_files.to_ours(array) for name, array in variables.items()}
    return Weights(path, kind, ours, options, torch_files.read_class_names(path))


def outline(located: LocatedWeights) -> dict[str, np.ndarray]:
    """Zeros with the names, shapes and dtypes of the file's arrays.

    Only TF1's step, and the arrays of `.pth`, are loaded; of ours the checksums are verified.
    """
    kind, path = located.kind, located.path
    if kind == "ours":
        return {name: stand_in(leaf.shape, leaf.dtype) for name, leaf in leaves(reading.stored_shapes(path))}
    if kind == "tf1":
        index = tf1_bundle.read_index(path)
        arrays = {name: stand_in(variable.shape, variable.dtype) for name, variable in index.items()}
        return arrays | tf1_bundle.read_bundle(path, [STEP])
    return torch_files.read_outline(path)
