"""The error for a missing checkpoint of ours: it says what is there instead, and which command helps."""

import shlex

from resnet_tpu import storage
from resnet_tpu.checkpoints import tf1, torch_files
from resnet_tpu.errors import UserError


def foreign_kind(path: str) -> str:
    """In words, the kind of weights at `path`, among those that `convert` takes; empty if there are none."""
    if tf1.find_checkpoint(path):
        return "a TF1 checkpoint, as written by the original program"
    if (file := torch_files.find_file(path)) and storage.exists(file):
        return "PyTorch weights"
    return ""


def convert_command(path: str) -> tuple[str, str]:
    """The command that makes a model_dir of the weights at `path`, and that model_dir, both quoted for a shell."""
    target = shlex.quote(f"{tf1.prefix_of(path).rstrip('/')}_converted")
    return f"resnet-tpu convert {shlex.quote(path)} {target}", target


def no_checkpoint(path: str) -> UserError:
    """The error for a path at which there is no checkpoint of ours."""
    expected = "a model_dir or a checkpoint in it"
    if _is_of_bundle(path):
        do = f"Give its folder: {shlex.quote(storage.parent_of(path))}"
        return UserError("Checkpoint", f"{path}, a file of an exported bundle", f"{expected}, or a bundle", do)
    if kind := foreign_kind(path):
        command, target = convert_command(path)
        return UserError("Checkpoint", f"{path}, {kind}", expected, f"Convert it: {command}, then give {target}.")
    return UserError("Checkpoint", path, expected, "Train first, or check the path.")


def _is_of_bundle(path: str) -> bool:
    is_file = storage.exists(path) and not storage.is_dir(path)
    return is_file and storage.exists(storage.join(storage.parent_of(path), "bundle.json"))
