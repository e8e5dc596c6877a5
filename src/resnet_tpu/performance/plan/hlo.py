"""Parses the text of a compiled program: its operations and, for a TPU, the compiler's estimates of their cycles."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_HEADER = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (.*)$")
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\](?:\{([\d,]*)(?::T\(([\d,]+)\))?)?")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_CONDITION = re.compile(r"condition=%?([\w.-]+)")
_COUNT = re.compile(r"constant\((\d+)\)")
_CALLED = re.compile(r"(?:body|calls|to_apply)=%?([\w.-]+)")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_BITS = {"pred": 8, "bf16": 16, "c64": 64, "c128": 128}

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id",
    "opt-barrier", "while", "call",
}  # fmt: skip
"""Operations without work of their own, or whose work is done by the computations they call."""


@dataclass(frozen=True)
class Instruction:
    """An operation of the program, as written."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    text: str

    @property
    def op_name(self) -> str:
        """The origin of the operation in the Python program."""
        found = _OP_NAME.search(self.text)
        return found[1].replace("\\'", "'") if found else ""

    @property
    def cycles(self) -> int | None:
        """The compiler's estimate, None if there is none."""
        found = _CYCLES.search(self.text)
        return int(found[1]) if found else None

    @property
    def collective(self) -> str | None:
        """The kind of collective operation, if this is one."""
        opcode = self.opcode.removesuffix("-start")
        return opcode if opcode in COLLECTIVES else None

    @property
    def has_work(self) -> bool:
        """Whether a device spends time on this. Prefetching (`copy-start`, `slice-start`) overlaps with other work."""
        if self.opcode in _FREE or self.opcode.endswith(("-done", "-update")):
            return False
        return self.collective is not None or not self.opcode.endswith("-start")


Computation = dict[str, Instruction]
"""Instructions by name."""


@dataclass(frozen=True)
class Module:
    """A compiled program."""

    entry: Computation
    computations: dict[str, Computation]

    def executed(self) -> Iterator[tuple[Instruction, Computation, int]]:
        """(operation, its computation, number of times it runs) of every operation with work of its own."""
        yield from self._walk(self.entry, 1)

    def _walk(self, computation: Computation, times: int) -> Iterator[tuple[Instruction, Computation, int]]:
        for instruction in computation.values():
            if instruction.has_work:
                yield instruction, computation, times
            elif instruction.opcode in ("while", "call"):
                yield from self._walk(self.called(instruction), times * self._trips(instruction))

    def called(self, instruction: Instruction) -> Computation:
        """The body of a loop, fusion or call; empty for other operations."""
        found = _CALLED.search(instruction.text)
        return self.computations.get(found[1], {}) if found else {}

    def _trips(self, instruction: Instruction) -> int:
        """The iterations of a loop that counts up to a constant, like those of `jax.lax.scan`; 1 for all else."""
        found = _CONDITION.search(instruction.text)
        condition = self.computations.get(found[1], {}) if found else {}
        limits = [int(count[1]) for one in condition.values() if (count := _COUNT.match(one.text))]
        return limits[0] if len(limits) == 1 else 1


def parse_module(text: str) -> Module:
    """Parses the text of a compiled program."""
    computations: dict[str, Computation] = {}
    entry: Computation = {}
    current: Computation = {}
    for line in text.splitlines():
        if header := _HEADER.match(line):
            current = computations[header[2]] = {}
            if header[1]:
                entry = current
        elif found := _INSTRUCTION.match(line):
            instruction = _parse_instruction(found[1], found[2])
            current[instruction.name] = instruction
    return Module(entry, computations)


def _parse_instruction(name: str, rest: str) -> Instruction:
    split = _closing(rest) + 1 if rest.startswith("(") else rest.index(" ")
    shape, call = rest[:split], rest[split:].lstrip()
    opcode, _, after = call.partition("(")
    inside = after[: _closing(f"({after}") - 1]
    return Instruction(name, shape, opcode, tuple(re.findall(r"%([\w.-]+)", inside)), call)


def _closing(text: str) -> int:
    """The index of the parenthesis that closes the one at the beginning of `text`."""
    depth = 0
    for index, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return index
    return len(text)


def array_bytes(shape: str, *, padded: bool = True) -> int:
    """Bytes of the arrays in a shape such as `(f32[8]{0:T(128)}, bf16[3,3,64,64]{...})`.

    padded: as they are in memory, in whole tiles.
    """
    total = 0
    for kind, dims, order, tile in _ARRAY.findall(shape):
        sides = _numbers(dims)
        if padded:
            for axis, side in zip(_numbers(order), reversed(_numbers(tile)), strict=False):  # tiles may have fewer axes
                sides[axis] = -(-sides[axis] // side) * side
        bits = _BITS.get(kind) or int(re.sub(r"\D", "", kind) or 0)
        total += math.prod(sides) * bits // 8
    return total


def bytes_moved(instruction: Instruction, computation: Mapping[str, Instruction]) -> int:
    """Bytes that an operation reads and writes."""
    read = [computation[name].shape for name in instruction.operands if name in computation]
    return sum(array_bytes(shape) for shape in (instruction.shape, *read))


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]
