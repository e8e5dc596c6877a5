"""`make fuzz SECONDS=60`: fuzzes every target in `targets/` for so long, guided by coverage of our code; needs atheris.

`make fuzz RUNS=1000` gives each target so many inputs instead, always the same and derived from the seeds alone. Its
findings are reproducible, so CI runs it.

A target is a module with `one_input(data: bytes) -> None`, which must return for any bytes. An input with which it
raises, takes longer than a minute or needs more than 3 GB is a finding: it is kept in `found/`, where `test_found.py`
replays it from then on, and the exit code is 1. Inputs that reach new code stay in `.fuzz/`, where the next run
continues. Programs of this folder that fuzz something else (`PROGRAMS`) get the same time or number of runs.
"""

import argparse
import hashlib
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parent
CORPORA = FOLDER.parents[1] / ".fuzz"
PROGRAMS = ("jpeg_decoder.py", "http_surface.py")
"""Each takes `--seconds N` or `--runs N`, and ends with exit code 1 if it found something."""

INSTRUMENTED = ("resnet_tpu", "yaml")
MEMORY = "/dev/shm"  # writes there do not wait for a disk
SECONDS_AN_INPUT, MEGABYTES, LONGEST = 60, 3_000, 1 << 14


class Outcome(NamedTuple):
    """The outcome for a target; `coverage` is the number of edges reached."""

    name: str
    executions: int
    coverage: int
    findings: list[Path]
    failure: str


def main() -> int:
    """The program. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=int, default=60, help="of each target")
    length.add_argument("--runs", type=int, help="inputs of each target, always the same, in place of a time")
    parser.add_argument("--only", nargs="*", default=[], help="names of targets and programs; default: all")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options, rest = parser.parse_known_args()
    if options.inside:
        return fuzz(options.inside, rest)
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed: `make fuzz` installs it, on Linux and macOS.", file=sys.stderr)
        return 2
    targets = [path.stem for path in sorted((FOLDER / "targets").glob("*.py"))]
    if unknown := {*options.only} - {*targets, *PROGRAMS}:
        parser.error(f"{', '.join(unknown)}: none of {', '.join([*targets, *PROGRAMS])}")
    failed = False
    print(f"{'target':16} {'executions':>12} {'coverage':>9}  findings", flush=True)
    for name in targets:
        if not options.only or name in options.only:
            failed |= show(run(name, options.seconds, options.runs))
    for name in PROGRAMS:
        if not options.only or name in options.only:
            print(f"\n{name}", flush=True)
            length = f"--runs={options.runs}" if options.runs else f"--seconds={options.seconds}"
            program = [sys.executable, "-m", f"tests.fuzz.{name.removesuffix('.py')}", length]
            failed |= bool(subprocess.run(program, cwd=FOLDER.parents[1]).returncode)
    return int(failed)


def fuzz(name: str, arguments: list[str]) -> int:
    """Runs the target in this process, which ends when it does."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=list(INSTRUMENTED)):
        spec = importlib.util.spec_from_file_location(f"fuzz_{name}", FOLDER / "targets" / f"{name}.py")
        assert spec
        assert spec.loader
        target = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(target)
    atheris.Setup([sys.argv[0], *arguments], target.one_input)
    atheris.Fuzz()
    return 0


def run(name: str, seconds: int, runs: int | None) -> Outcome:
    """Fuzzes the target in a separate process for so long, or with so many inputs, the same every time."""
    found = FOLDER / "found" / name
    known = [str(folder) for folder in (FOLDER / "seeds" / name, found) if folder.is_dir()]
    with tempfile.TemporaryDirectory(dir=MEMORY if Path(MEMORY).is_dir() else None) as temporary:
        corpus = Path(temporary) / "corpus" if runs else CORPORA / name
        corpus.mkdir(parents=True, exist_ok=True)
        length = [f"-runs={runs}", "-seed=1"] if runs else [f"-max_total_time={seconds}"]
        command = [
            sys.executable, str(Path(__file__)), f"--inside={name}", str(corpus), *known, *length,
            f"-timeout={SECONDS_AN_INPUT}", f"-rss_limit_mb={MEGABYTES}", f"-max_len={LONGEST}",
            f"-artifact_prefix={temporary}/",
        ]  # fmt: skip
        environment = {"PYTHONPATH": str(FOLDER.parents[1] / "src"), "TMPDIR": temporary, "XDG_CACHE_HOME": temporary}
        environment |= {"PYTHONHASHSEED": "1"} if runs else {}
        done = subprocess.run(
            command, env=os.environ | environment, stderr=subprocess.PIPE, text=True, errors="replace"
        )
        findings = []
        for kind in ("crash", "timeout", "oom"):
            for artifact in Path(temporary).glob(f"{kind}-*"):
                findings.append(keep(artifact.read_bytes(), found, kind))
    executions = max(map(int, re.findall(r"^#(\d+)", done.stderr, re.MULTILINE)), default=0)
    coverage = max(map(int, re.findall(r"cov: (\d+)", done.stderr)), default=0)
    failure = done.stderr[-4_000:] if done.returncode or findings else ""
    return Outcome(name, executions, coverage, findings, failure)


def keep(data: bytes, folder: Path, kind: str) -> Path:
    """Saves an input that is a finding where the tests will replay it."""
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"{kind}-{hashlib.sha256(data).hexdigest()[:12]}"
    place.write_bytes(data)
    return place


def show(outcome: Outcome) -> bool:
    """Prints a row of the table and the findings. Returns whether there were any."""
    print(f"{outcome.name:16} {outcome.executions:12,} {outcome.coverage:9,}  {len(outcome.findings)}", flush=True)
    if outcome.failure:
        print(outcome.failure, *(f"kept: {place}" for place in outcome.findings), sep="\n", flush=True)
    return bool(outcome.failure)


if __name__ == "__main__":
    sys.exit(main())
