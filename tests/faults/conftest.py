"""Programs that are stopped at random moments and run again; results are compared with those of uninterrupted runs."""

import contextlib
import functools
import json
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from resnet_tpu.checkpoints import folders, reading
from resnet_tpu.reports.events import read_events
from tests.comparisons import rows_of

IN_A_ROW = 10
PATIENCE_SECS = 500  # for a machine that is busy with other tests
SAID = {
    signal.SIGINT: [130, "Interrupted."], signal.SIGTERM: [143, "Terminated."], signal.SIGHUP: [129, "Hung up."],
}  # fmt: skip
"""Exit code and last line of a program ended by each signal."""


_NURSERY = """
import importlib, json, os, sys
import resnet_tpu.cli
for module in sys.argv[1:]:
    importlib.import_module(f"resnet_tpu.{module}")

for line in sys.stdin:
    folder, log, words = json.loads(line)
    is_ready, ready = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        os.chdir(folder)
        for path, mode, numbers in ((os.devnull, os.O_RDONLY, [0]), (log, os.O_WRONLY, [1, 2])):
            file = os.open(path, mode)
            [os.dup2(file, number) for number in numbers]
        os.close(is_ready), os.close(ready)
        sys.argv[1:] = words
        sys.exit(resnet_tpu.cli.main())
    os.close(ready), os.read(is_ready, 1), os.close(is_ready)  # at the end, which is when the child closes its own
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""A script that runs one program after another as forks of itself, in which modules are imported already."""

LIGHT = ("data.prepare.prepare", "data.prepare.report")
HEAVY = (
    "data.prepare.prepare", "serving.export.onnx", "serving.export.stablehlo", "serving.export.verify",
    "pruning.experiment", "pruning.lottery", "pruning.picture", "reports.curves",
)  # fmt: skip
"""The modules to import for `prepare`, and for the other programs, which need JAX."""


class Nursery:
    """Starts programs, one at a time, without the seconds that each would spend on importing JAX."""

    def __init__(self, *modules: str) -> None:
        """Imports these modules of the package in advance."""
        environment = os.environ | {"JAX_NUM_CPU_DEVICES": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _NURSERY, *modules],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment,
        )  # fmt: skip
        self.child = 0
        """The process id of the running program; 0 for none."""

    def _read(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def start(self, folder: Path, log: Path, words: Sequence[str]) -> None:
        """Starts `resnet-tpu` with these words in a folder, in its own process group, its output going to `log`."""
        assert self._process.stdin is not None
        log.write_bytes(b"")
        self._process.stdin.write((json.dumps([str(folder), str(log), list(words)]) + "\n").encode())
        self.child = self._read()

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the program; Ctrl-C goes to all of its processes, as from a terminal."""
        (os.killpg if number == signal.SIGINT else os.kill)(self.child, number)

    def wait(self, seconds: float) -> int | None:
        """The exit code, negative for a signal; None if the program is still running after so many seconds."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            return None
        self.child = 0
        return self._read()

    def close(self) -> None:
        """Ends the nursery and any program that it is still running."""
        if self.child:
            os.killpg(self.child, signal.SIGKILL)
        self._process.kill()
        self._process.communicate()


@dataclass(frozen=True)
class Program:
    """`resnet-tpu` with these words, run in a folder that is empty at first; paths are relative to that folder.

    stage: how far the work in a folder has come, in words, given the Unix time at which the program began. check:
    checks that a folder has the same contents as another.
    """

    nursery: Nursery
    words: Sequence[str]
    stage: Callable[[Path, float], str]
    check: Callable[[Path, Path], None]

    def finish(self, folder: Path) -> float:
        """Lets the program run to its end and returns the seconds that it took."""
        begin, log = time.monotonic(), folder.parent / "log.txt"
        self.nursery.start(folder, log, self.words)
        assert self.nursery.wait(PATIENCE_SECS) == 0, log.read_text()
        return time.monotonic() - begin

    def stop(self, folder: Path, number: signal.Signals, moment: float) -> bool:
        """Sends the signal after `moment` seconds. Returns whether it came in time to end the program."""
        log = folder.parent / "log.txt"
        self.nursery.start(folder, log, self.words)
        code = self.nursery.wait(moment)
        if code is None:
            self.nursery.send(number)
            code = self.nursery.wait(PATIENCE_SECS)
        if code == 0:
            return False
        said = log.read_text()
        if number == signal.SIGKILL:
            assert code == -number, said
        else:
            assert [code, *said.splitlines()[-1:]] == SAID[number], said
            assert "Traceback" not in said
        return True


@dataclass
class Tally:
    """The outcome of stopping a program: how often at which stage, and how many runs finished in spite of it."""

    seconds: float  # that the program takes uninterrupted
    stages: Counter[str] = field(default_factory=Counter)
    finished: int = 0

    def __str__(self) -> str:
        where = ", ".join(f"{count} {stage}" for stage, count in self.stages.most_common())
        return (
            f"{self.stages.total()} stops ({where}) of a program of {self.seconds:.1f} s; {self.finished} runs the same"
        )


def stop_again_and_again(program: Program, base: Path, numbers: Sequence[signal.Signals], seed: int) -> Tally:
    """Stops the program by each signal at moments spread over its duration, restarting it in the same folder each time.

    After ten stops at most, it may run to its end. The result is checked, and the next run begins in an empty folder.
    """
    whole, folder = base / "whole", base / "work"
    whole.mkdir()
    program.finish(whole)
    folder.mkdir()
    tally = Tally(program.finish(folder))  # timed on the second run: the first may have compiled
    program.check(whole, folder)
    rng = random.Random(seed)
    moments = [tally.seconds * (i + rng.random()) / len(numbers) for i in range(len(numbers))]
    rng.shuffle(moments)
    waiting = list(zip(numbers, moments, strict=True))
    while waiting:
        shutil.rmtree(folder)
        folder.mkdir()
        stops, is_done = 0, False
        while waiting and stops < IN_A_ROW and not is_done:
            begin = time.time()
            is_done = not program.stop(folder, *waiting[-1])
            if not is_done:
                waiting.pop()
                stops += 1
                tally.stages[program.stage(folder, begin)] += 1
        if not is_done:
            program.finish(folder)
        elif not stops:  # it was quicker than before
            number, moment = waiting.pop()
            waiting.append((number, 0.9 * moment))
        program.check(whole, folder)
        tally.finished += stops > 0
        print(f"\n{program.words[0]}: {tally}", flush=True)  # the results so far, as the whole takes hours
    return tally


# ------------------------------------------------------------------------------------------------- the four programs

TRAINING = {
    "model_dir": "run", "image_size": 16, "resnet_depth": 18, "resnet_width": 4, "precision": "float32",
    "train_batch_size": 16, "eval_batch_size": 16, "train_steps": 24, "steps_per_eval": 8, "iterations_per_loop": 1,
    "save_checkpoints_steps": 2, "keep_checkpoint_max": 2, "num_cores": 1, "lottery_checkpoint_iters": 4,
}  # fmt: skip


def prepared(nursery: Nursery, photos: Path, workers: int = 2) -> Program:
    """`prepare`, into 14 shards."""

    def stage(folder: Path, _: float) -> str:
        data = folder / "data"
        if (data / "manifest.json").exists():
            return "after the manifest"
        shards = len(list(data.glob("*-of-*")))
        return {0: "before the first shard", 14: "after the last shard"}.get(shards, "between shards")

    words = ["prepare", str(photos), "data", "--train_shards=12", f"--workers={workers}"]
    return Program(nursery, words, stage, check_same_files)


def check_same_files(whole: Path, found: Path) -> None:
    """Compares every byte of every file, hidden ones too, except that an index also says when records were written."""
    expected, files = ({path.relative_to(folder) for path in folder.rglob("*")} for folder in (whole, found))
    assert files == expected
    contents = [path for path in files if (whole / path).is_file() and path.parent.name != "_index"]
    assert [path for path in contents if differ(whole / path, found / path)] == []


def differ(one: Path, other: Path) -> bool:
    return one.read_bytes() != other.read_bytes()


def trained(nursery: Nursery, data: Path, **options: Any) -> Program:
    """`train`, which saves every second step and evaluates every eighth, with changed options."""

    def stage(folder: Path, _: float) -> str:
        return stage_of_checkpoints(folder / "run" / folders.CHECKPOINTS, TRAINING["train_steps"])

    def check(whole: Path, found: Path) -> None:
        check_same_run(whole / "run", found / "run")

    words = ["train", f"--data_dir={data}", *(f"--{name}={value}" for name, value in (TRAINING | options).items())]
    return Program(nursery, words, stage, check)


def stage_of_checkpoints(folder: Path, last: int) -> str:
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    if any("orbax-checkpoint-tmp" in name for name in names):
        return "while a checkpoint was written"
    if any(".deleted" in name for name in names):
        return "while a checkpoint was deleted"
    steps = [int(name) for name in names if name.isdigit()]
    return "before the first checkpoint" if not steps else "after the last" if last in steps else "between checkpoints"


def check_same_run(whole: Path, found: Path) -> None:
    """Checks for the same metrics, events, and arrays (parameters, momentum, statistics, masks) in the checkpoints."""
    expected, steps = (folders.steps_in(str(run / folders.CHECKPOINTS)) for run in (whole, found))
    assert {path.name for path in (found / folders.CHECKPOINTS).iterdir()} == set(map(str, steps))
    missing, more = {*expected} - {*steps}, {*steps} - {*expected}
    # a stop saves a checkpoint at its step, which an uninterrupted run may not save, and which counts among those kept
    assert len(missing) <= len([step for step in more if step % TRAINING["save_checkpoints_steps"]])
    assert {expected[0], expected[-1]} <= {*steps}  # the one to rewind to, and the last
    assert len(steps) <= len(expected) + 1  # a kill may come between the last save and the deletion that follows it
    for step in {*expected} & {*steps}:
        one, other = (str(run / folders.CHECKPOINTS / str(step)) for run in (whole, found))
        assert reading.read_meta(one) == reading.read_meta(other)
        arrays, others = reading.load_named(one), reading.load_named(other)
        assert arrays.keys() == others.keys()
        assert [name for name in arrays if not np.array_equal(arrays[name], others[name])] == []
    assert rows_of(found) == rows_of(whole)
    for folder in ("", "eval"):
        one, other = (
            {scalar[:3] for scalar in read_events(str(run / folder)) if not re.search("per_sec|wait", scalar.tag)}
            for run in (whole, found)
        )
        assert one == other != set()
    for name in ("config.json", "labels.txt"):
        assert not differ(whole / name, found / name)
    assert (found / "report" / "curves.png").exists()


def pruned(nursery: Nursery, dense: Path) -> Program:
    """`prune`: two levels, each trained again."""

    def stage(folder: Path, _: float) -> str:
        levels = sorted((folder / "pruned").glob("seed_*/*/level_*"))
        if not levels:
            return "before the first level"
        if (folder / "pruned" / "phases.csv").exists():
            return "in the report"
        stage = stage_of_checkpoints(levels[-1] / folders.CHECKPOINTS, TRAINING["train_steps"])
        return f"in level {len(levels)}, {stage}"

    def check(whole: Path, found: Path) -> None:
        runs, others = (
            {path.parent.relative_to(folder) for path in folder.rglob(folders.CHECKPOINTS)} for folder in (whole, found)
        )
        assert others == runs
        for run in runs:
            check_same_run(whole / run, found / run)
        for name in ("results.csv", "layers.csv"):
            assert not differ(found / "pruned" / name, whole / "pruned" / name)
        tables = [(folder / "pruned" / "phases.csv").read_text() for folder in (whole, found)]
        assert tables[1].replace(f"{found.resolve()}/", f"{whole.resolve()}/") == tables[0]

    words = ["prune", str(dense), "--levels=2", "--rewind_to=4", "--output_dir=pruned"]
    return Program(nursery, words, stage, check)


def exported(nursery: Nursery, dense: Path) -> Program:
    """`export` as StableHLO and ONNX."""

    def stage(folder: Path, begin: float) -> str:
        names = [path.name for path in (folder / "bundles").glob("*") if path.stat().st_mtime >= begin]
        if any(name.isdigit() for name in names):
            return "after it was published"
        return "while the bundle was written" if names else "before the first file"

    def check(whole: Path, found: Path) -> None:
        """Checks every published bundle, including those of programs that were stopped afterwards."""
        (expected,) = (described(path) for path in (whole / "bundles").iterdir())
        bundles = [described(path) for path in (found / "bundles").iterdir()]
        assert bundles == [expected] * len(bundles) != []

    words = ["export", str(dense), "bundles", "--forms=stablehlo,onnx"]
    return Program(nursery, words, stage, check)


def described(bundle: Path) -> dict[str, Any]:
    """A bundle's description without times, and its files."""
    found = json.loads((bundle / "bundle.json").read_text())
    del found["written"], found["description"]["exported"], found["checksum"]
    found["content"] = {path.name: path.read_bytes() for path in bundle.iterdir() if path.name != "bundle.json"}
    return found


@pytest.fixture(scope="session")
def photo_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of 40 PNG files with noise around a grey, each of which takes a while to encode as JPEG."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for name, grey in (("dark", 60), ("grey", 120), ("light", 180)):
        (folder / name).mkdir()
        for number in range(40):
            photo = np.clip(rng.normal(grey, 25, (150, 200, 3)), 0, 255).astype(np.uint8)
            cv2.imwrite(str(folder / name / f"{number:02d}.png"), photo)
    return folder


@pytest.fixture(scope="session")
def nursery() -> Iterator[Callable[..., Nursery]]:
    """Gives the nursery for a choice of modules."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda *modules: stack.enter_context(contextlib.closing(Nursery(*modules))))


@pytest.fixture(scope="session")
def program(
    nursery: Callable[..., Nursery], photo_folders: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Program]:
    """Makes the program of a verb, with the inputs that it needs."""

    @functools.cache
    def data() -> Path:
        folder = tmp_path_factory.mktemp("data")
        prepared(nursery(*LIGHT), photo_folders).finish(folder)
        return folder / "data"

    @functools.cache
    def dense() -> Path:
        folder = tmp_path_factory.mktemp("dense")
        trained(nursery(*HEAVY), data()).finish(folder)
        return folder / "run"

    makers: dict[str, Callable[..., Program]] = {
        "prepare": lambda workers=2: prepared(nursery(*LIGHT), photo_folders, workers),
        "train": lambda **options: trained(nursery(*HEAVY), data(), **options),
        "prune": lambda: pruned(nursery(*HEAVY), dense()),
        "export": lambda: exported(nursery(*HEAVY), dense()),
    }
    return lambda verb, **options: makers[verb](**options)


@pytest.fixture(scope="session")
def stopping() -> Callable[..., Tally]:
    """`stop_again_and_again` above."""
    return stop_again_and_again
