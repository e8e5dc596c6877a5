"""The levels of an experiment: how far each method prunes, starting from the level before or the unpruned network."""

import logging
from dataclasses import dataclass

from resnet_tpu.errors import UserError
from resnet_tpu.pruning.filters import TABLES
from resnet_tpu.pruning.methods import FAMILIES, MOST_ROUNDS, check_method

log = logging.getLogger(__name__)

_OF_TABLES = [f"prune_{table}" for table in TABLES]
DEFAULT_LEVELS = 1
DEFAULT_RATE = 0.2
NUMBERED = "level_"
"""Prefix of names of numbered levels, which follow each other or belong to a table of filters."""


@dataclass(frozen=True)
class Level:
    """One application of a method: `name`, used for folders; `method`, by its full name; and the network it prunes.

    follows: prunes the network of this level, after its retraining; None: prunes the unpruned network.
    """

    name: str
    method: str
    follows: "Level | None"


def plan_levels(method: str, *, density: str, levels: int | None, rate: float | None) -> list[Level]:
    """The levels that `prune` runs, from the densest on.

    method: a full name such as `prune_all_to_global_20` is one level. A name without its number is completed: by
    `density`, percentages such as `80,64`, each pruned from the unpruned network (one-shot); or by `levels`, each of
    which removes the fraction `rate` (None: 0.2) of the weights that the one before left (iterative). With a table of
    filters (`prune_resnet56_A`), each of the `levels` is pruned from the unpruned network.
    Raises UserError for an unknown method, a density outside (0, 100], a rate outside (0, 1), or numbers given twice.
    """
    if density and levels:
        raise UserError("density and levels", f"{density} and {levels}", "one of them", "Leave one out.")
    if rate is not None and not 0 < rate < 1:
        raise UserError("rate", rate, "more than 0 and less than 1", "Change the value.")
    if density and rate is not None:
        raise UserError("density and rate", f"{density} and {rate:g}", "one of them", "Leave one out.")
    if method in _OF_TABLES and not density:
        if rate is not None:
            raise UserError("rate", rate, f"none with {method}, whose table says what to remove", "Leave it out.")
        if (levels or 0) > MOST_ROUNDS:
            raise UserError("levels", levels, f"at most {MOST_ROUNDS} with {method}", "Lower it.")
        numbers = range(1, (levels or DEFAULT_LEVELS) + 1)
        return [_level(f"{NUMBERED}{number:02d}", f"{method}_{number}", None) for number in numbers]
    if f"{method}_P" not in FAMILIES:
        if density or levels or rate is not None:
            check_method(method)
            known_methods = ", ".join(name.removesuffix("_P") for name in FAMILIES if name.endswith("_P"))
            do = f"Leave density, levels and rate out, or choose one of {known_methods}."
            raise UserError("method", method, "one that takes a density", do)
        return [_level(method, method, None)]
    if density:
        percents = sorted({_percent(text) for text in density.split(",")}, reverse=True)
        for share in (percent for percent in percents if percent < 1):
            log.warning(
                "density %g leaves %g %% of the weights; for a share of %g give %g.", *3 * (share,), 100 * share
            )
        planned = [_level(f"density_{percent:g}", _complete(method, percent / 100, None), None) for percent in percents]
        if len({level.name for level in planned}) < len(planned):
            do = "Leave one out: they would share a folder."
            raise UserError("density", density, "percentages that differ in their first six digits", do)
        return planned
    rate = DEFAULT_RATE if rate is None else rate
    planned = []
    for number in range(1, (levels or DEFAULT_LEVELS) + 1):
        follows = planned[-1] if planned else None
        planned.append(_level(f"{NUMBERED}{number:02d}", _complete(method, (1 - rate) ** number, rate), follows))
    return planned


def _level(name: str, method: str, follows: Level | None) -> Level:
    check_method(method)
    return Level(name, method, follows)


def _complete(method: str, density: float, rate: float | None) -> str:
    """Completes the method's name with its number: from `density`, or from `rate` for methods that remove a share."""
    fractions = {"density": density, "sparsity": 1 - density, "share": 1 - density if rate is None else rate}
    return f"{method}_{_number(100 * fractions[FAMILIES[f'{method}_P'].number])}"


def _number(percent: float) -> str:
    if (number := f"{percent:.6f}".rstrip("0").rstrip(".")) == "0" and percent:
        raise UserError("Weights to keep", f"{percent:g} %", "at least 0.000001 %", "Prune less, or at fewer levels.")
    return number


def _percent(text: str) -> float:
    try:
        percent = float(text)
    except ValueError:
        percent = -1.0
    if not 0 < percent <= 100:
        raise UserError("density", text.strip(), "percent of the weights, above 0 and at most 100", "Change the value.")
    return percent
