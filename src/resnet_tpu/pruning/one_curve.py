"""Checks that outcomes belong together: for each way of retraining, accuracies by density form a single curve."""

import logging
from collections.abc import Sequence
from typing import Any

from resnet_tpu.errors import UserError
from resnet_tpu.pruning.levels import NUMBERED
from resnet_tpu.pruning.methods import family_of, table_of
from resnet_tpu.pruning.outcome import PHASES, UNPRUNED, Outcome
from resnet_tpu.pruning.phase import read_description
from resnet_tpu.pruning.summary import by_level, is_unpruned

log = logging.getLogger(__name__)

_SAME_BUT_SEEDS = "Combine those that differ only in their seeds."


def common_pruning(outcomes: Sequence[Outcome]) -> str:
    """Checks that the outcomes form one curve; returns their kind of pruning, as named by `paper_curve`.

    Raises UserError for several kinds, several networks, or several runs of one seed at a level.
    """
    pruned = [outcome for outcome in outcomes if outcome.method != UNPRUNED]
    kinds, methods = {_kind_of(outcome) for outcome in pruned}, {family_of(outcome.method) for outcome in pruned}
    networks = {tuple((layer.layer, layer.weights) for layer in outcome.layers) for outcome in outcomes}
    if len(kinds) > 1 or len(methods) > 1 or len(networks) > 1:
        several = kinds if len(kinds) > 1 else methods
        got = " and ".join(sorted(several)) if len(several) > 1 else f"{len(networks)} networks"
        raise UserError("Experiments", got, "one network, pruned in one way", "Combine those that belong together.")
    if not kinds:
        raise UserError("Experiments", "no pruned network", "at least one", "Let `prune` finish first.")
    _check_seeds(outcomes, pruned)
    _check_rewinding(pruned)
    return kinds.pop()


def _check_seeds(outcomes: Sequence[Outcome], pruned: Sequence[Outcome]) -> None:
    """Raises UserError unless each seed has one unpruned network, and one run for each level and way of retraining."""
    unpruned: dict[int, Outcome] = {}
    for outcome in filter(is_unpruned, outcomes):
        other = unpruned.setdefault(outcome.seed, outcome)
        runs = " and ".join(f"{run.model_dir} (step {run.step}, {run.top_1_accuracy:.2%})" for run in (other, outcome))
        got = f"two unpruned networks of seed {outcome.seed}: {runs}"
        if other.step != outcome.step:
            raise UserError("Experiments", got, "one run of each seed", _SAME_BUT_SEEDS)
        if other.top_1_accuracy != outcome.top_1_accuracy:  # for example, if another processor trained it again
            log.warning("There are %s. Changes are relative to the first.", got)
    if lacking := sorted({outcome.seed for outcome in pruned} - {*unpruned}):
        do = "Run the same `prune` again to rewrite it."
        raise UserError(PHASES, f"no unpruned network of seed {lacking[0]}", "one of each seed", do)
    for group in by_level(pruned):
        by_seed: dict[int, str] = {}
        for outcome in group:
            if (other := by_seed.setdefault(outcome.seed, outcome.model_dir)) != outcome.model_dir:
                got = f"two of seed {outcome.seed}: {other} and {outcome.model_dir}"
                raise UserError("Experiments", got, "one retrained network of each seed at a level", _SAME_BUT_SEEDS)


def _check_rewinding(pruned: Sequence[Outcome]) -> None:
    """Raises UserError if runs retrained alike went back to different steps, or only some restored the momentum."""
    found: dict[tuple[str, str], tuple[Any, str]] = {}
    for outcome in pruned:
        description = read_description(outcome.model_dir)
        for name in ("rewind_step", "rewind_optimizer"):
            if (value := description.get(name)) is None:  # written by an earlier version
                continue
            other, where = found.setdefault((outcome.retrain, name), (value, outcome.model_dir))
            if other != value:
                got = f"{outcome.retrain} with {name} {other} in {where} and {value} in {outcome.model_dir}"
                raise UserError("Experiments", got, "one way of retraining", _SAME_BUT_SEEDS)


def _kind_of(outcome: Outcome) -> str:
    if applied := table_of(outcome.method):
        return f"structured_{applied[0][-1].lower()}"
    return "iterative" if outcome.level.startswith(NUMBERED) else "one_shot"
