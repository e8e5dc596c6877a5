"""Labels of the operations in a trace, from the compiled program, or guessed from their names."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from resnet_tpu import storage
from resnet_tpu.errors import UserError
from resnet_tpu.performance.plan.hlo import Module, parse_module
from resnet_tpu.performance.plan.operations import list_operations
from resnet_tpu.storage import checked_json

_FILE = "operations.json"
_GUESSES = (
    ("library call", ("ffi_call",)),
    ("convolution", ("conv",)),
    ("matrix product", ("dot", "gemm", "matmul")),
    ("pooling", ("reduce-window", "reduce_window", "select-and-scatter", "select_and_scatter")),
    ("transfer", ("memcpy", "memset")),
    ("all-reduce", ("all-reduce", "all_reduce", "allreduce", "nccl")),
    ("reduction", ("reduce",)),
    ("layout", ("copy", "transpose", "bitcast")),
)  # fmt: skip
_SAYS_NOTHING = re.compile(r"(?:ynn_|loop_|input_|copy_|transpose_)*fusion[.\d]*$|custom-call")


class Label(NamedTuple):
    """An operation's kind, layer and pass (forward, backward or update). Empty if unknown."""

    kind: str
    layer: str = ""
    direction: str = ""


def labels_of(program: str) -> dict[str, Label]:
    """The labels of all operations, by name, from the text of the compiled program."""
    return {
        operation.name: Label(operation.kind, _single(operation.layer), operation.direction)
        for operation in list_operations(_with_origins(parse_module(program)))
    }


def _single(layer: str) -> str:
    """The layer; empty for an operation merged from several layers, such as the sum of all gradients."""
    return "" if re.search("[:;]", layer) else layer


def _with_origins(module: Module) -> Module:
    """The program; an operation without an origin gets that of the operations in it, or of the next ones that use it.

    The CPU's compiler loses the origin of operations that it fuses or rewrites, such as the gradients of kernels.
    """
    users: dict[str, list[str]] = defaultdict(list)
    origins = {}
    for name, instruction in reversed(module.entry.items()):
        inside = [inner.op_name for inner in module.called(instruction).values() if "/" in inner.op_name]
        after = [origins[user] for user in users[name] if origins[user]]
        origins[name] = instruction.op_name or next(iter([*inside[::-1], *after]), "")
        for operand in instruction.operands:
            users[operand].append(name)
    entry = {
        name: replace(instruction, text=f'{instruction.text}, metadata={{op_name="{origins[name]}"}}')
        if origins[name] and not instruction.op_name
        else instruction
        for name, instruction in module.entry.items()
    }
    return replace(module, entry=entry)


def guess_label(name: str) -> Label:
    """The label of an operation of which only the name is known, such as `transpose_copy_fusion.61`."""
    text = name.lower()
    if _SAYS_NOTHING.match(text):
        return Label("other")
    return Label(next((kind for kind, words in _GUESSES if any(word in text for word in words)), "elementwise"))


def write_labels(folder: str, labels: dict[str, Label], names: Iterable[str]) -> None:
    """Writes the labels of the operations in `names` next to the trace in `folder`."""
    text = json.dumps({name: labels[name] for name in sorted(set(names)) if name in labels}, indent=0)
    storage.write_text(storage.join(folder, _FILE), text + "\n")


def read_labels(folder: str) -> dict[str, Label]:
    """The labels next to the trace in `folder`; empty if the trace was captured during ordinary training.

    Raises UserError if they are damaged.
    """
    path = storage.join(folder, _FILE)
    if not storage.exists(path):
        return {}
    try:
        found = checked_json.as_kind(dict[str, list[str]], checked_json.parse(storage.read_text(path)), "labels")
        return {name: Label(*label) for name, label in found.items()}
    except (ValueError, TypeError) as error:
        do = "Remove it: the operations are then guessed from their names."
        raise UserError(path, error, "what `profile` wrote", do) from None
