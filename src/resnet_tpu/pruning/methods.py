"""Pruning methods by name: those of the original's pruning fork, and layer-wise baselines."""

import csv
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from importlib import resources
from typing import Literal

import numpy as np

from resnet_tpu.errors import UserError, nearest
from resnet_tpu.pruning.filters import TABLES, remove_filters
from resnet_tpu.pruning.magnitude import absolute, keep_largest, prune_remaining, prune_to_sparsity, standardized
from resnet_tpu.pruning.masks import LayerKernels, Masks

Method = Callable[[LayerKernels, Masks], Masks]
"""(kernels, current masks) -> new masks, which restore no removed weight. Pure: the arguments are not modified."""


@dataclass(frozen=True)
class Family:
    """Methods that differ in a percentage P, the number in their names.

    number: what P is a percentage of. `density`: of all weights, those to keep; `sparsity`: of all weights, those to
    remove; `share`: of the remaining weights, those to remove. make: (P, seed) -> the method. help: the meaning of the
    name; empty for one that is accepted, as in the fork, but not listed.
    """

    number: Literal["density", "sparsity", "share"]
    make: Callable[[float, int], Method]
    help: str


_ALL, _CONVOLUTIONS, _WITH_FC = ("",), ("conv",), ("conv", "fc")  # parts of the names of layers

FAMILIES = {
    "prune_all_to_global_P": Family(
        "density",
        lambda percent, _: partial(prune_to_sparsity, percent=100 - percent, score=absolute, parts=_ALL),
        "keep the P % of all weights that are largest in magnitude: a target density",
    ),
    "prune_global_P": Family(
        "share",
        lambda percent, _: partial(prune_remaining, percent=percent, score=absolute, parts=_CONVOLUTIONS),
        "remove the smallest P % of the remaining weights in convolutions, except projections",
    ),
    "prune_global_P_fc": Family(
        "share",
        lambda percent, _: partial(prune_remaining, percent=percent, score=absolute, parts=_WITH_FC),
        "the same, but also in layers called fc",
    ),
    "prune_to_global_P": Family(
        "sparsity",
        lambda percent, _: partial(prune_to_sparsity, percent=percent, score=absolute, parts=_CONVOLUTIONS),
        "prune convolutions, except projections, until P % of their weights are 0: a target sparsity",
    ),
    "zprune_all_to_global_P": Family(
        "density",
        lambda percent, _: partial(prune_to_sparsity, percent=100 - percent, score=standardized, parts=_ALL),
        "like prune_all_to_global, but ranks weights by how many standard deviations |w| is from its mean",
    ),
    "zprune_global_P": Family(
        "share",
        lambda percent, _: partial(prune_remaining, percent=percent, score=standardized, parts=_CONVOLUTIONS),
        "like prune_global, but ranks by that distance",
    ),
    "zprune_global_P_fc": Family(
        "share",
        lambda percent, _: partial(prune_remaining, percent=percent, score=standardized, parts=_WITH_FC),
        "",
    ),
    "prune_layerwise_P": Family(
        "density", lambda percent, _: partial(_layerwise, percent=percent), "keep the P % largest of each layer"
    ),
    "prune_uniform_P": Family(
        "density",
        lambda percent, seed: partial(_uniform, percent=percent, seed=seed),
        "keep a random P % of each layer, determined by the seed",
    ),
    "prune_random_P": Family(
        "density",
        lambda percent, seed: partial(_random, percent=percent, seed=seed),
        "keep a random P % of all weights, determined by the seed",
    ),
}
"""The methods with a number in their names, by these names with P in its place."""

_AMC = ("first", "second", "third", "fourth")

MOST_ROUNDS = 9
"""The most rounds for which a table of filters can be applied by one name, such as `prune_resnet56_A_9`."""

HELP = {name: family.help for name, family in FAMILIES.items() if family.help} | {
    "prune_amc_first": "keep the fraction of each layer of ResNet-50 that AMC found; also _second, _third, _fourth",
    "prune_resnet34_A": "remove whole filters by the paper's table A (or B) for ResNet-34; also resnet56 and "
    "resnet110; a suffix _2 ... _9 means that many rounds at once",
}
"""The meaning of each name; P is a percentage such as 20 or 51.2."""

_WITH_NUMBER = re.compile(r"(?P<stem>\w+?)_(?P<percent>\d+(?:\.\d*)?)(?P<layers>(?:_fc|_nofc)*)")
_OF_TABLE = re.compile(rf"prune_(?P<table>\w+?)(?:_(?P<rounds>[1-{MOST_ROUNDS}]))?")


def find_method(name: str, *, seed: int = 0) -> Method:
    """The method called `name`: `HELP` has the patterns. Raises UserError for any other, naming the nearest.

    seed: used by the methods that draw random numbers.
    """
    if (found := _WITH_NUMBER.fullmatch(name)) and (family := _family(found["stem"], found["layers"])):
        return family.make(_percent(name, found["percent"]), seed)
    if (table := name.removeprefix("prune_amc_")) != name and table in _AMC:
        return partial(_amc, table=table)
    if applied := table_of(name):
        table, rounds = applied
        return partial(_structured, name=name, table=table, rounds=rounds)
    known = [*HELP, *(f"prune_amc_{table}" for table in _AMC), *(f"prune_{table}" for table in TABLES)]
    do = f"P is a percentage, as in prune_all_to_global_80.{nearest(name, known)}"
    raise UserError("Pruning method", name, f"one of {', '.join(HELP)}", do)


def check_method(name: str) -> None:
    """Raises UserError, as `find_method` does, unless there is a method called `name`."""
    find_method(name)


def table_of(name: str) -> tuple[str, int] | None:
    """The table of filters that a method applies, a key of `TABLES`, and in how many rounds; None for other methods."""
    found = _OF_TABLE.fullmatch(name)
    return (found["table"], int(found["rounds"] or 1)) if found and found["table"] in TABLES else None


def family_of(name: str) -> str:
    """The name of a method without its number, such as prune_all_to_global for prune_all_to_global_20."""
    if found := _WITH_NUMBER.fullmatch(name):
        return found["stem"] + found["layers"]
    return "prune_amc" if name.removeprefix("prune_amc_") in _AMC else name


def _family(stem: str, layers: str) -> Family | None:
    """The methods whose names begin with `stem` and end in `layers`, where `_nofc` means the same as no ending."""
    if layers and f"{stem}_P_fc" not in FAMILIES:
        return None
    return FAMILIES.get(f"{stem}_P_fc" if "_fc" in layers else f"{stem}_P")


def _percent(name: str, number: str) -> float:
    percent = float(number)
    if percent > 100:
        raise UserError(f"Pruning method {name}", f"{percent:g} %", "0 to 100", "Change the number in its name.")
    return percent


def _layerwise(kernels: LayerKernels, masks: Masks, *, percent: float) -> Masks:
    return keep_largest(kernels, masks, dict.fromkeys(kernels, percent / 100))


def _uniform(_: LayerKernels, masks: Masks, *, percent: float, seed: int) -> Masks:
    return {name: _keep_drawn(mask, percent, seed, layer) for layer, (name, mask) in enumerate(masks.items())}


def _random(_: LayerKernels, masks: Masks, *, percent: float, seed: int) -> Masks:
    drawn = _keep_drawn(np.concatenate([mask.ravel() for mask in masks.values()]), percent, seed, 0)
    ends = np.cumsum([mask.size for mask in masks.values()])[:-1]
    parts = np.split(drawn, ends)
    return {name: part.reshape(mask.shape) for (name, mask), part in zip(masks.items(), parts, strict=True)}


def _keep_drawn(mask: np.ndarray, percent: float, seed: int, layer: int) -> np.ndarray:
    """`mask` with exactly `percent` of its positions, rounded, kept; fewer if fewer were left before.

    `seed` and `layer` determine a random order: a lower percentage removes every position that a higher one removes.
    """
    order = np.random.default_rng([seed, layer + 1] if seed else layer).permutation(mask.size)
    live = order[mask.ravel()[order]]
    kept = np.zeros(mask.size, bool)
    kept[live[: round(mask.size * percent / 100)]] = True
    return kept.reshape(mask.shape)


def _amc(kernels: LayerKernels, masks: Masks, *, table: str) -> Masks:
    """Prunes to the densities by layer that AMC's agent found for ResNet-50 (arXiv:1802.03494)."""
    with (resources.files("resnet_tpu.pruning") / "amc_densities.csv").open() as file:
        fractions = {row["layer"]: float(row[table]) for row in csv.DictReader(file)}
    _check_layers(f"prune_amc_{table}", fractions, kernels)
    return keep_largest(kernels, masks, fractions)


def _structured(kernels: LayerKernels, masks: Masks, *, name: str, table: str, rounds: int) -> Masks:
    _check_layers(name, [f"conv_{number}" for number in TABLES[table]], kernels)
    return remove_filters(kernels, masks, TABLES[table], rounds)


def _check_layers(method: str, listed: Collection[str], kernels: LayerKernels) -> None:
    """Raises UserError unless the network has the layers that a table lists."""
    if missing := [name for name in listed if name not in kernels]:
        got = f"a network without {missing[0]}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
        expected = f"one with the {len(listed)} layers of its table"
        raise UserError(f"Pruning method {method}", got, expected, "Choose the method made for the network.")
