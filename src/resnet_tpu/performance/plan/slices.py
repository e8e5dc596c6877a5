"""TPU slices by their names in Google Cloud, and the grids in which their chips are connected."""

from typing import NamedTuple

_GRIDS = {
    1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16", 512: "16x32",
    1024: "32x32",
}  # fmt: skip
"""Shapes by number of chips for generations with a two-dimensional grid."""

_CUBES = {
    4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8", 512: "8x8x8",
    1024: "8x8x16", 2048: "8x16x16",
}  # fmt: skip
"""Shapes by number of chips for generations with a three-dimensional grid."""


class _Generation(NamedTuple):
    cores_per_chip: int  # names of slices count cores
    shapes: dict[int, str]  # by chips


def _sized(shapes: dict[int, str], *, least: int, most: int) -> dict[int, str]:
    return {chips: shape for chips, shape in shapes.items() if least <= chips <= most}


SLICES = {
    "v2": _Generation(2, _sized(_GRIDS, least=4, most=256)),
    "v3": _Generation(2, _sized(_GRIDS, least=4, most=1024)),
    "v4": _Generation(2, _CUBES),
    "v5e": _Generation(1, _sized(_GRIDS, least=1, most=256)),
    "v5p": _Generation(2, _CUBES),
    "v6e": _Generation(1, _sized(_GRIDS, least=1, most=256)),
}
"""The generations by name."""


def topologies() -> list[str]:
    """All topologies that `topology_of` knows, by generation and size."""
    return [f"{name}:{shape}" for name, found in SLICES.items() for shape in found.shapes.values()]


def topology_of(name: str) -> str | None:
    """The topology of the slice called `name`, as the TPU compiler names it: `v3:4x4` for v3-32, `v4:2x2x1` for v4-8.

    None for a name that is not a slice, such as that of another recipe. A slice of n cores has n/2 chips if a chip has
    two cores (v2, v3, v4, v5p), else n (v5e, v6e).
    Source: Cloud TPU's documentation of each generation.
    """
    generation, _, cores = name.partition("-")
    if generation not in SLICES or not (cores.isdecimal() and len(cores) < 6):
        return None
    found = SLICES[generation]
    chips, rest = divmod(int(cores), found.cores_per_chip)
    return None if rest or chips not in found.shapes else f"{generation}:{found.shapes[chips]}"
