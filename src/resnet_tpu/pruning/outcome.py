"""The outcome of a phase of an experiment, read from its `model_dir`."""

import csv
import io
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from resnet_tpu import storage
from resnet_tpu.checkpoints import folders, reading
from resnet_tpu.checkpoints.meta import config_of
from resnet_tpu.errors import UserError, first_line
from resnet_tpu.pruning.sizes import LayerSize, size_of
from resnet_tpu.reports.metrics import evaluation_at

UNPRUNED = "none"
"""Stands for the method, way of retraining and level of a network that was not pruned."""

PHASES = "phases.csv"
"""File in the `output_dir` of an experiment with a row for each outcome."""


class PhaseName(NamedTuple):
    """Which phase of an experiment a `model_dir` holds; the first fields of its `Outcome`."""

    model_dir: str
    seed: int
    retrain: str
    level: str
    method: str


@dataclass(frozen=True)
class Outcome:
    """A finished phase: its density, from 0 to 1, and top-1 accuracy on the validation images at its last step.

    `parameters` and `multiply_adds` (of one image) are those that remain, see `sizes.Size`. `checkpoint_bytes` is the
    stored size of the arrays of its last checkpoint: weights and momentum, statistics, averages if any, masks.
    """

    model_dir: str
    seed: int
    retrain: str
    level: str
    method: str
    density: float
    parameters: int
    multiply_adds: int
    checkpoint_bytes: int
    step: int
    top_1_accuracy: float
    layers: tuple[LayerSize, ...]


def read_outcome(phase: PhaseName) -> Outcome:
    """The outcome of a finished phase."""
    model_dir, path = phase.model_dir, reading.find(phase.model_dir)
    step, size = reading.step_of(path), size_of(config_of(reading.read_meta(path)), reading.load_masks(path))
    accuracy = evaluation_at(model_dir, step).get("top_1_accuracy")
    if accuracy is None:
        do = f"Evaluate it: resnet-tpu eval {shlex.quote(model_dir)}"
        raise UserError(f"Run {model_dir}", f"no evaluation at step {step}", "one in its metrics.jsonl", do)
    return Outcome(
        *phase,
        density=size.density,
        parameters=size.parameters,
        multiply_adds=size.multiply_adds,
        checkpoint_bytes=reading.stored_bytes(path),
        step=step,
        top_1_accuracy=accuracy,
        layers=size.layers,
    )


def read_outcomes(output_dirs: Sequence[str]) -> list[Outcome]:
    """The outcomes of several experiments; a run that several of them share counts once.

    Each outcome is read from its checkpoint: below `output_dir`, which may be a copy, or at the path in PHASES, or else
    where it lay in relation to `output_dir`. Raises UserError if there is no such file or folder.
    """
    outcomes: dict[str, Outcome] = {}
    for output_dir in output_dirs:
        path = storage.join(output_dir, PHASES)
        if not storage.exists(path):
            do = "Let the same `resnet-tpu prune` finish: it writes this file."
            raise UserError("Folder to combine", output_dir, f"one with {PHASES}", do)
        rows = _read_rows(path)
        pruned = (phase.model_dir for phase, _ in rows if phase.retrain != UNPRUNED)
        written_to = next((path.rpartition("/seed_")[0] for path in pruned), output_dir)
        for phase, step in rows:
            run_dir = _find(phase.model_dir, output_dir, written_to)
            if (last_step := folders.steps_of_run(run_dir)[-1]) != step:
                do = "Run the same `prune` again, or delete the later checkpoints."
                raise UserError(f"Run {run_dir}", f"step {last_step}", f"step {step}, as in {path}", do)
            if (folder := storage.absolute(run_dir)) not in outcomes:
                outcomes[folder] = read_outcome(phase._replace(model_dir=run_dir))
    return list(outcomes.values())


def earlier_phases(output_dir: str, outcomes: Sequence[Outcome]) -> list[str]:
    """The model_dirs in PHASES of `output_dir` other than those of `outcomes`; none if it cannot be read."""
    own = {storage.absolute(outcome.model_dir) for outcome in outcomes}
    try:
        rows = _read_rows(storage.join(output_dir, PHASES))
    except (OSError, UserError):  # it is about to be rewritten
        return []
    return [phase.model_dir for phase, _ in rows if storage.absolute(phase.model_dir) not in own]


def _find(path: str, output_dir: str, written_to: str) -> str:
    """The current path of the run at `path` in PHASES of `output_dir`, which was at `written_to` then."""
    _, seed, below = path.rpartition("/seed_")
    places = [*([storage.join(output_dir, f"seed_{below}")] if seed else []), path]
    if not storage.is_remote(path) and not storage.is_remote(output_dir):  # the whole may be copied or renamed
        places.append(os.path.normpath(storage.join(output_dir, os.path.relpath(path, written_to))))
    for place in places:
        if folders.steps_of_run(place):
            return place
    do = "Run --combine where `prune` ran, or copy the run to that path."
    raise UserError(storage.join(output_dir, PHASES), f"{path}, which has no checkpoint here", "a run with one", do)


def _read_rows(path: str) -> list[tuple[PhaseName, int]]:
    """(the phase, its last step) of each row of PHASES. Raises UserError when it is damaged."""
    try:
        return [
            (
                PhaseName(row["model_dir"], int(row["seed"]), row["retrain"], row["level"], row["method"]),
                int(row["step"]),
            )
            for row in csv.DictReader(io.StringIO(storage.read_text(path)), strict=True)
        ]
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        got = f"rows that cannot be read ({first_line(error)})"
        raise UserError(path, got, "what `prune` wrote", "Run the same `prune` again to rewrite it.") from None
