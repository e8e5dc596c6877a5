"""The operations of a compiled step by kind, layer and direction."""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from resnet_tpu.performance.plan.hlo import COLLECTIVES, Computation, Instruction, Module, array_bytes, bytes_moved

_TRANSFORM = re.compile(r"(?:transpose|jvp|vmap)\(|\)")
_NO_LAYER = re.compile(r"jit\([^)]*\)|while|body|cond|closed_call|checkpoint|rematted_computation|shard_map|branch_\w+")
_BY_OPCODE = {
    "convolution": "convolution",
    "dot": "matrix product",
    "select-and-scatter": "pooling",
    "reduce-window": "pooling",
}
_BY_TARGET = {"conv": "convolution", "gemm": "matrix product", "blas": "matrix product"}
"""Kinds of library functions, which GPUs call, by a part of their name."""
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_BY_PRIMITIVE = {"select_and_scatter": "pooling", "select_and_scatter_add": "pooling", "reduce_window": "pooling"}


@dataclass(frozen=True)
class Operation:
    """An operation of the compiled step, with everything that the compiler fused into it."""

    name: str
    kind: str
    layer: str  # such as group1/block1/conv1; empty outside the network
    direction: str  # forward, backward, update; empty if unknown
    count: int  # times in a step
    cycles: int | None  # the compiler's estimate for all of these times; None if there is none
    bytes: int  # read and written; for operations between devices, those of the result


def list_operations(module: Module) -> tuple[Operation, ...]:
    """All operations that a step executes, in order."""
    executed = list(module.executed())
    trains = any("jvp(" in instruction.op_name for instruction, _, _ in executed)
    return tuple(
        Operation(
            instruction.name,
            _kind(instruction, module.called(instruction)),
            layer_of(instruction.op_name),
            _direction(instruction.op_name, trains=trains),
            times,
            None if instruction.cycles is None else times * instruction.cycles,
            times * _bytes(instruction, computation),
        )
        for instruction, computation, times in executed
    )


def bytes_of(operations: Iterable[Operation]) -> int:
    """Bytes that a device reads from and writes to its memory in all of these operations."""
    return sum(operation.bytes for operation in operations if operation.kind not in COLLECTIVES)


def by_kind(operations: Iterable[Operation]) -> list[Operation]:
    """One operation per kind and direction, summed over layers; see `by_layer`."""
    return by_layer(dataclasses.replace(one, layer="") for one in operations)


def by_layer(operations: Iterable[Operation]) -> list[Operation]:
    """One operation per kind, layer and direction, most cycles first; those without cycles last."""
    groups: dict[tuple[str, str, str], list[Operation]] = defaultdict(list)
    for operation in operations:
        groups[operation.kind, operation.layer, operation.direction].append(operation)
    summed = [
        Operation(
            members[0].name, *key, sum(one.count for one in members), _sum_cycles(members),
            sum(one.bytes for one in members),
        )
        for key, members in groups.items()
    ]  # fmt: skip
    return sorted(summed, key=lambda one: (one.cycles is None, -(one.bytes if one.cycles is None else one.cycles)))


def _sum_cycles(members: Iterable[Operation]) -> int | None:
    known = [one.cycles for one in members if one.cycles is not None]
    return sum(known) if known else None


def layer_of(op_name: str) -> str:
    """`jit(step)/transpose(jvp(group1/block1))/conv1/conv_general_dilated` -> `group1/block1/conv1`."""
    parts = _TRANSFORM.sub("", _NO_LAYER.sub("", op_name)).split("/")[:-1]
    parts = [part for part in parts if part and "->" not in part]  # the subscripts of an einsum are not a layer
    begin = max((index for index, part in enumerate(parts) if part == parts[0]), default=0)  # inner gradients repeat it
    return "/".join(parts[begin:])


def _kind(instruction: Instruction, body: Computation) -> str:
    if instruction.collective:
        return instruction.collective
    opcodes = {inner.opcode for inner in body.values()} | {instruction.opcode}
    primitive = instruction.op_name.rsplit("/", 1)[-1]
    if primitive == "dot_general" and "convolution" in opcodes:  # a TPU computes it as a convolution
        return "matrix product"
    for opcode, kind in _BY_OPCODE.items():
        if opcode in opcodes:
            return kind
    if instruction.opcode == "custom-call":
        return _library_kind(instruction) or "library call"
    if primitive in _BY_PRIMITIVE:
        return _BY_PRIMITIVE[primitive]
    if "norm" in layer_of(instruction.op_name):
        return "batch norm"
    if opcodes <= {"copy", "transpose", "bitcast", "parameter", "fusion", "reshape"}:
        return "layout"
    return "reduction" if "reduce" in opcodes else "elementwise"


def _library_kind(instruction: Instruction) -> str:
    """The kind of a library function, as GPUs call them, from its name; empty for other calls."""
    target = _TARGET.search(instruction.text)
    return next((kind for part, kind in _BY_TARGET.items() if target and part in target[1].lower()), "")


def _direction(op_name: str, *, trains: bool) -> str:
    if "transpose(jvp" in op_name or not op_name:
        return "backward" if op_name else ""
    return "update" if trains and "jvp(" not in op_name else "forward"


def _bytes(instruction: Instruction, computation: Computation) -> int:
    if instruction.collective:
        return array_bytes(instruction.shape, padded=False)
    if instruction.opcode == "custom-call" and not _library_kind(instruction):
        return 0  # on a TPU these only give existing memory another shape
    return bytes_moved(instruction, computation)
