"""The rewinding paper's experiment at full size: ResNet-20 on CIFAR-10 for 182 epochs, pruned and retrained.

    python -m benchmarks.rewinding runs/paper              # runs what remains; continues after any interruption
    python -m benchmarks.rewinding runs/paper --pack       # saves results so far in benchmarks/results/rewinding
    python -m benchmarks.rewinding runs/paper --unpack     # restores them from there, on another machine

`runs/paper/data` has the images, see docs/rewinding.md. Two networks are trained, and each is pruned in one shot to two
of the paper's densities, with three ways of retraining, by `resnet-tpu` commands that run one after the other.
`starts.json` has a row for every start of a command: its CPU time and how it ended. A pack can be made while the
experiment is running. An experiment continued from a pack ends with the same bits on a processor of the same kind; on
one without bfloat16, continue with `--precision=float32`, which is twice as fast there. Source: arXiv:2003.02389.
"""

import argparse
import csv
import fcntl
import json
import os
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import script
from resnet_tpu import storage
from resnet_tpu.checkpoints import folders
from resnet_tpu.errors import UserError
from resnet_tpu.performance.bench import record
from resnet_tpu.pruning.outcome import PHASES
from resnet_tpu.reports.metrics import metrics_path, read_metrics
from resnet_tpu.system.cpu_time import cpu_secs_of_process

PACKED = script.CHECKOUT / script.RESULTS / "rewinding"
SEEDS = (0, 1)
REWIND_STEP = 4701  # as in the paper: 170 of the 182 epochs are left
TRAIN = shlex.split(
    "train --recipe=cifar --data_dir=data --cache=decoded "
    f"--lottery_checkpoint_iters={REWIND_STEP} --save_checkpoints_steps=100 --iterations_per_loop=100 "
    "--steps_per_eval=13epochs --keep_checkpoint_max=2"
)
PRUNE = shlex.split(
    f"--retrain=lr_rewinding,weight_rewinding,fine_tuning --paper_network=resnet20 --rewind_to={REWIND_STEP}"
)
DENSITIES = ("20.97152", "20.97152,10.737418")
"""For each call of `prune`, so that all ways of retraining finish one density before the next. Finished phases are only
read."""
STARTS, ENDED = "starts.json", "done"
KEPT_ROWS = 500
"""A pack keeps one row of training metrics in this many, and all evaluations."""
_PRECISION = "--precision="


def main() -> None:
    """Runs, packs or unpacks the experiment."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rewinding", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="Where the experiment is.")
    parser.add_argument("--packed", type=Path, default=PACKED, help="Where its pack is. Default: %(default)s.")
    parser.add_argument("--precision", default="bfloat16", help="Or float32. Default: %(default)s.")
    parser.add_argument("--pack", action="store_true", help="Pack it.")
    parser.add_argument("--unpack", action="store_true", help="Unpack it.")
    options = parser.parse_args()
    if options.unpack:
        unpack(options.packed, options.folder)
    elif options.pack:
        pack(options.folder, options.packed)
    else:
        run(options.folder, options.precision)


def commands(precision: str) -> Iterator[list[str]]:
    """The commands of the experiment in order, as arguments of `resnet-tpu`, to be run in its folder."""
    for seed in SEEDS:
        yield [*TRAIN, f"{_PRECISION}{precision}", f"--seed={seed}", f"--model_dir=base_{seed}"]
        for density in DENSITIES:
            own = [f"--density={density}", f"{_PRECISION}{precision}", f"--output_dir=pruned_{seed}"]
            yield ["prune", f"base_{seed}", *PRUNE, *own]
    yield ["prune", "--combine", *(f"pruned_{seed}" for seed in SEEDS), "--output_dir=both", "--paper_network=resnet20"]


def _but_precision(arguments: list[str]) -> set[str]:
    return {argument for argument in arguments if not argument.startswith(_PRECISION)}


def run(folder: Path, precision: str) -> None:
    """Runs the remaining commands. Raises UserError without images, if another process runs them, or if one fails."""
    if not (folder / "data").is_dir():
        do = f"Run resnet-tpu prepare cifar10 {folder}/data"
        raise UserError(str(folder), "no images in its folder data", "those of CIFAR-10, as prepare writes them", do)
    with (folder / "pid").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            do = f"Stop it first: kill $(cat {folder}/pid)"
            raise UserError(str(folder), "an experiment that another process runs", "one that none runs", do) from None
        lock.truncate(0)
        print(os.getpid(), file=lock, flush=True)
        for arguments in commands(precision):
            done = [_but_precision(row["command"]) for row in _starts(folder) if row["ended"] == ENDED]
            if _but_precision(arguments) not in done:
                _run(folder, arguments)


def _run(folder: Path, arguments: list[str]) -> None:
    """Runs a `resnet-tpu` command and keeps its row up to date; a signal to us ends it too, after it has saved."""
    rows = _starts(folder)
    row: dict[str, Any] = {"command": arguments, "processor": record.machine()["processor"]}
    row |= {"began": datetime.now(UTC).isoformat(timespec="seconds"), "cpu_hours": 0.0, "ended": "lost"}
    child = subprocess.Popen([sys.executable, "-m", "resnet_tpu", *arguments], cwd=folder)
    try:
        while child.poll() is None:
            row["cpu_hours"] = round(cpu_secs_of_process(child.pid) / 3600, 4)
            _write_starts(folder, [*rows, row])
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                continue
    finally:
        child.terminate()
        row["ended"] = "stopped" if (code := child.wait()) else ENDED
        _write_starts(folder, [*rows, row])
    if code:
        raise UserError(shlex.join(arguments), f"exit code {code}", "0", "See what it printed above.")


def _starts(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / STARTS).read_text()) if (folder / STARTS).exists() else []


def _write_starts(folder: Path, rows: Sequence[dict[str, Any]]) -> None:
    storage.write_text(str(folder / STARTS), json.dumps(rows, indent=1) + "\n")


def _runs(folder: Path) -> list[Path]:
    """The model_dirs of training runs that have begun; `prune` writes a checkpoint before the options."""
    begun = (path.parent for path in folder.rglob(folders.CHECKPOINTS) if folders.steps_in(str(path)))
    return sorted(model_dir for model_dir in begun if (model_dir / "config.json").exists())


def pack(folder: Path, packed: Path) -> None:
    """Saves each run's newest checkpoint, the checkpoints to rewind to, thinned metrics, and a table of all."""
    packed.mkdir(parents=True, exist_ok=True)
    table: list[tuple[Any, ...]] = [("run", "step", "of", "evaluated at step", "top_1_accuracy")]
    for model_dir in _runs(folder):
        name = model_dir.relative_to(folder)
        config = json.loads((model_dir / "config.json").read_text())
        steps = folders.steps_in(str(model_dir / folders.CHECKPOINTS))
        kept = {steps[-1], *map(int, filter(None, config["lottery_checkpoint_iters"].split(",")))} & {*steps}
        target = packed / name.with_name(f"{name.name}.tar.xz")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(target, "w:xz", preset=9) as archive:
            for file in sorted([*model_dir.glob("*.json"), *model_dir.glob("*.txt")]):
                archive.add(file, file.relative_to(folder), filter=_untimed)
            for step in sorted(kept):
                path = model_dir / folders.CHECKPOINTS / str(step)
                archive.add(path, path.relative_to(folder), filter=_untimed)
        rows = read_metrics(str(model_dir))
        thinned = [row for row in rows if row["split"] == "eval" or (row["step"] + 1) % KEPT_ROWS == 0]
        target.with_name(f"{name.name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in thinned))
        last = ([row for row in rows if row["split"] == "eval"] or [{"step": "", "top_1_accuracy": ""}])[-1]
        table.append((str(name), steps[-1], config["train_steps"], last["step"], last["top_1_accuracy"]))
    starts = _starts(folder)
    _write_starts(packed, starts)
    _copy_phases(folder, packed)
    with (packed / "progress.csv").open("w") as file:
        csv.writer(file, lineterminator="\n").writerows(table)
    for line in table:
        print(*line, sep="\t")
    stops = sum(row["ended"] != ENDED for row in starts)
    print(f"{len(starts)} starts, {stops} stopped or going on, {sum(row['cpu_hours'] for row in starts):.2f} CPU hours")


def _untimed(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """The member without times and owners, so that the same files give the same archive."""
    member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
    return member


def unpack(packed: Path, folder: Path) -> None:
    """Restores the experiment into `folder`. Raises UserError if one has begun there."""
    if _runs(folder):
        raise UserError(str(folder), "an experiment that has begun", "a folder without one", "Choose another folder.")
    for path in sorted(packed.rglob("*.tar.xz")):
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")
        run_name = str(path.relative_to(packed)).removesuffix(".tar.xz")
        Path(metrics_path(str(folder / run_name))).write_text((packed / f"{run_name}.jsonl").read_text())
    _write_starts(folder, _starts(packed))
    _copy_phases(packed, folder)


def _copy_phases(source: Path, target: Path) -> None:
    """Copies the files that `prune --combine` reads, because a finished `prune` does not write them again."""
    for path in source.rglob(PHASES):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())


if __name__ == "__main__":
    script.main(main)
