"""Reads, interprets and writes files with weights of torchvision's and timm's ResNets.

PyTorch is not needed, and nothing in a file is executed. For the formats see `safetensors_file` and `torch_pickle`.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from resnet_tpu import storage
from resnet_tpu.checkpoints import safetensors_file
from resnet_tpu.checkpoints.foreign import ANY_IMAGE_SIZE, unreadable
from resnet_tpu.checkpoints.torch_names import to_ours, to_torch, torch_names
from resnet_tpu.checkpoints.torch_notes import read_notes
from resnet_tpu.checkpoints.torch_pickle import read_pickle
from resnet_tpu.checkpoints.torch_variant import WIDTH, find_options, unsupported
from resnet_tpu.errors import UserError
from resnet_tpu.models.arrays import Arrays, leaf_at
from resnet_tpu.models.from_options import create_network
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import OPTIONS, PREPROCESSING, ModelConfig

log = logging.getLogger(__name__)

COUNTER = "num_batches_tracked"
"""Last part of the names of batch norm's step counters, which are not needed here."""

OUTSIDE = "../"
"""Prefix of the names of arrays that are outside the module of the network."""

_NUM_AVERAGED = "n_averaged"
"""The name of the counter in PyTorch's AveragedModel, which torchvision's training saves in `model_ema`."""

_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".tar", ".ckpt")
_IN_FOLDERS = ("model.safetensors", "pytorch_model.bin")
_WRAPPING = re.compile(r"(module\.|_orig_mod\.|model\.)*")  # of DataParallel, torch.compile, Lightning
_A_CONV = "layer1.0.conv1.weight"  # in every ResNet
_HEAD = re.compile(r"fc\.(\d+)\.(weight|bias)")
_NOTED = (
    "resnet_depth", "use_resnetd_stem", "resnetd_shortcut", "replace_stem_max_pool", "se_ratio", "pool_padding",
    "mean_rgb", "stddev_rgb",
)  # fmt: skip


def find_file(path: str) -> str | None:
    """The file of weights that `path` means: itself, or the one in a folder laid out as on the Hugging Face hub.

    None if the name is not that of a PyTorch file.
    """
    if path.endswith(_SUFFIXES) and not storage.is_dir(path):
        return path
    names = storage.list_dir(path)
    return next((storage.join(path, name) for name in _IN_FOLDERS if name in names), None)


def read_state_dict(path: str) -> dict[str, np.ndarray]:
    """All arrays of a `.safetensors` or `.pth` file by PyTorch's names, in PyTorch's layout and their own dtypes.

    If a training checkpoint also holds a moving average of the weights, the average is returned. A prefix of the
    network's names, such as `module.`, is removed; names without it get the prefix `OUTSIDE`; a classifier in a
    sequence of layers is called `fc`. Raises UserError if there is no file, it is damaged, or it asks to run code.
    """
    return _read(path, safetensors_file.read_arrays)


def read_outline(path: str) -> dict[str, np.ndarray]:
    """Like `read_state_dict`, but for a `.safetensors` file the arrays are not read: zeros that take no memory."""
    return _read(path, safetensors_file.read_outline)


def _read(path: str, read_safetensors: Callable[[str], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    try:
        arrays = _read_file(path, read_safetensors)
    except OSError as error:
        raise unreadable(f"Weights {path}", error) from None
    return _plain_head(_without_prefix(arrays, path))


def _without_prefix(arrays: dict[str, np.ndarray], path: str) -> dict[str, np.ndarray]:
    """The arrays by their names within the network; the names of others, such as a loss's, begin with `OUTSIDE`."""
    prefixes = [name.removesuffix(_A_CONV) for name in arrays if name.endswith(_A_CONV)]
    if len(prefixes) > 1 and all(map(_WRAPPING.fullmatch, prefixes)):
        raise UserError(f"Weights {path}", "two networks, by their prefixes", "one network", "Split it.")
    if len(prefixes) != 1:
        return arrays
    (prefix,) = prefixes
    has_head = any(name.startswith(f"{prefix}fc.") for name in arrays)
    if not has_head and not _WRAPPING.fullmatch(prefix):  # a network for another task, built on a ResNet
        return arrays
    inside = {name for name in arrays if name == _NUM_AVERAGED or (name.startswith("fc.") and not has_head)}
    return {
        name.removeprefix(prefix) if name.startswith(prefix) else name if name in inside else OUTSIDE + name: array
        for name, array in arrays.items()
    }


def _plain_head(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays; a classifier in a sequence whose other layers (dropout, ...) have no arrays is named as if alone."""
    heads = {match[1] for name in arrays if (match := _HEAD.fullmatch(name))}
    return {_HEAD.sub(r"fc.\2", name): array for name, array in arrays.items()} if len(heads) == 1 else arrays


def _read_file(path: str, read_safetensors: Callable[[str], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    start = storage.read_range(path, 0, 40)
    if start[8:9] == b"{":
        return read_safetensors(path)
    if start.startswith((b"PK", b"\x80")):
        return read_pickle(path)
    pointer = start.startswith(b"version https://git-lfs")
    got = "a Git LFS pointer instead of the file" if pointer else f"content that begins with {start[:12]!r}"
    raise UserError(f"Weights {path}", got, "a file written by safetensors or torch.save", "Download the file itself.")


def read_class_names(path: str) -> list[str] | None:
    """The class names that `write_safetensors` put into the file at `path`, or those in a config.json next to it."""
    return read_notes(path).get("class_names")


def options_of(state_dict: Mapping[str, np.ndarray], path: str) -> dict[str, Any]:
    """The options, by name, of the network that the arrays of `read_state_dict(path)` belong to.

    Always resnet_depth, stem, pool_padding, mean_rgb, stddev_rgb and eval_preprocessing, the last four from the notes
    (see `torch_notes`), else as in PyTorch and with ImageNet's colours; those of `PREPROCESSING` that are in the notes;
    num_label_classes unless there is no classifier `fc`; and those that differ from the defaults. Raises UserError for
    anything but a ResNet that is supported here, saying what it seems to be, and when the number of class names differs
    from that of the classes.
    """
    arrays = {
        name: array
        for name, array in state_dict.items()
        if not name.startswith(OUTSIDE) and not name.endswith((COUNTER, _NUM_AVERAGED))
    }
    notes = read_notes(path)
    architecture = str(notes.get("architecture") or path.rpartition("/")[2])
    if match := re.search(r"resnet(aa|blur)\w*", architecture):  # their special layers have no arrays
        raise unsupported(path, f"{match[0]}, an anti-aliased ResNet")
    options = find_options({name: array.shape for name, array in arrays.items()}, path)
    _check_shapes(arrays, options, path)
    num_classes, names = options.get("num_label_classes"), notes.get("class_names")
    if names and num_classes and len(names) != num_classes:
        got = f"{len(names)} class names for {num_classes} classes"
        raise UserError(f"Description of {path}", got, "one for each class", "Fix or remove the config.json.")
    travelling: dict[str, Any] = {
        "pool_padding": "symmetric",
        "mean_rgb": ModelConfig.mean_rgb,
        "stddev_rgb": ModelConfig.stddev_rgb,
        "eval_preprocessing": "pil",
    }
    noted = {name: notes[name] for name in (*travelling, *PREPROCESSING) if name in notes}
    return options | travelling | _converted(noted, path)


def _converted(told: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The notes converted to values of options. Raises UserError for an invalid one."""
    try:
        return {name: OPTIONS[name].convert(value) for name, value in told.items()}
    except UserError as error:
        what = f"{error.what} in the description of {path}"
        raise error.but(what=what, do="Fix or remove the config.json.") from None


def _check_shapes(arrays: Mapping[str, np.ndarray], options: Mapping[str, Any], path: str) -> None:
    """Raises UserError for the first array that is missing, of another shape, or not of the network of `options`."""
    model = ModelConfig(**{name: value for name, value in options.items() if name != "num_label_classes"})
    network = create_network(model, num_classes=options.get("num_label_classes", 1), image_size=ANY_IMAGE_SIZE)
    trees = network.shape_trees()
    expected = {
        name: leaf_at(trees, leaf).shape
        for name, leaf in torch_names(network).items()
        if "num_label_classes" in options or not name.startswith("fc.")
    }
    found = {name: to_ours(array).shape for name, array in arrays.items()}
    for name in [*expected, *found]:
        if expected.get(name) != found.get(name):
            words = f"with {name} of shape {list(arrays[name].shape)}" if name in arrays else f"without {name}"
            raise unsupported(path, f"a ResNet-{model.resnet_depth} {words}")
    if whole := [name for name, array in arrays.items() if not jnp.issubdtype(array.dtype, jnp.floating)]:
        raise unsupported(path, f"a ResNet-{model.resnet_depth} with {whole[0]} of type {arrays[whole[0]].dtype}")


def write_safetensors(
    path: str,
    network: Network,
    arrays: Arrays,
    *,
    class_names: Sequence[str] | None = None,
    preprocessing: Mapping[str, Any] | None = None,
) -> None:
    """Writes the network as a `.safetensors` file with torchvision's names, float32, whole or not at all.

    arrays: params and batch_stats. The folder is made if it is missing.

    `torchvision.models.resnet50(num_classes=n).load_state_dict(safetensors.torch.load_file(path))` loads it, and so
    does timm's `resnet50`; timm's ResNet also loads what torchvision does not have (ResNet-D, SE). Images must be
    normalised by mean_rgb and stddev_rgb; these, the other options, the class names and `preprocessing`, the options in
    `PREPROCESSING`, are in the metadata, as JSON under 'resnet_tpu'. With pool_padding=same, PyTorch's logits differ
    from ours, and a warning says so. Raises UserError for a network that those classes cannot represent.
    """
    check_writable(network)
    model = network.model
    tensors = {
        name: np.ascontiguousarray(to_torch(np.asarray(leaf_at(arrays, leaf), np.float32)))
        for name, leaf in torch_names(network).items()
    }
    if model.pool_padding == "same" and not model.replace_stem_max_pool:
        log.warning(
            "%s: this network pads its max-pool as TensorFlow does (pool_padding=same), but torchvision and timm "
            "pad both sides: their logits will differ from ours. Training from these weights with "
            "--pool_padding=symmetric closes the gap.",
            path,
        )
    notes: dict[str, Any] = {name: getattr(model, name) for name in _NOTED} | dict(preprocessing or {})
    if class_names is not None:
        notes["class_names"] = list(class_names)
    safetensors_file.write(path, tensors, notes)


def check_writable(network: Network) -> None:
    """Raises UserError if no setting of torchvision's or timm's ResNet makes it compute what `network` does."""
    architecture = network.architecture
    wanted = {
        "stem": ("small", "imagenet", architecture.small_stem),
        "resnet_width": (architecture.width, WIDTH, architecture.width != WIDTH),
        "project_first_group": (True, False, not architecture.bottleneck and architecture.project_first_group),
    }
    for name, (value, expected, differs) in wanted.items():
        if differs:
            do = "Train with that option, or take --to=tf1 or `resnet-tpu export`, which support every network."
            raise UserError(name, value, f"{expected}, the only value in torchvision's and timm's ResNets", do)
