"""The cost of an installation: MB on disk, packages, and seconds of pip, compared with TensorFlow and PyTorch.

Each is installed into an empty environment, with required packages only. A first installation of each, which does not
count, fills pip's cache; then the measured ones alternate. Ours is a wheel built from this checkout.

    python -m benchmarks.install
    python -m benchmarks.install --torch='torch==2.13.0+cpu torchvision'     # where pip would choose a CUDA build
"""

import argparse
import json
import resource
import shlex
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

from benchmarks import script
from resnet_tpu.performance.bench.compare import median
from resnet_tpu.performance.bench.figures import markdown


def measure(requirements: list[str]) -> dict[str, Any]:
    """Installs requirements into a new environment. Returns MB, number of packages, seconds and CPU seconds of pip."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=False)
        python = Path(folder) / "bin" / "python"
        start, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *requirements]
        subprocess.run(pip, check=True, stdout=sys.stderr)
        seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        files = [path for path in Path(folder).rglob("*") if path.is_file() and not path.is_symlink()]
        return {
            "MB": sum(path.stat().st_size for path in files) / 1e6,
            "packages": sum(path.name == "METADATA" for path in files),
            "seconds": seconds,
            "cpu_seconds": after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime,
        }


def build_wheel(folder: str) -> Path:
    """Builds the wheel of this checkout."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, str(script.CHECKOUT)]
    subprocess.run(pip, check=True, stdout=sys.stderr)
    (wheel,) = Path(folder).glob("*.whl")
    return wheel


def render(measured: dict[str, list[dict[str, Any]]]) -> str:
    """The medians as rows of a Markdown table."""
    header = ("what", "MB on disk", "packages", "seconds", "CPU seconds")
    rows = [[f"`{name}`", *(f"{median(rounds, key):,.0f}" for key in rounds[0])] for name, rounds in measured.items()]
    return markdown(header, rows)


def program() -> None:
    """Reads the command line, measures and reports."""
    parser = script.make_parser("install", __doc__, rounds=3)
    parser.add_argument(
        "--torch", default="torch torchvision", help="What to install of PyTorch. Default: %(default)s."
    )
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(shlex.split(options.measure))))
        return
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_wheel(folder)
        ours = {f"resnet-tpu{extras}": f"{wheel}{extras}" for extras in ("", "[onnx,serve]")}
        peers = {} if options.quick else {"tensorflow-cpu": "tensorflow-cpu", options.torch: options.torch}
        commands = {name: script.worker("install", "--measure", what) for name, what in (ours | peers).items()}
        options.rounds += 1
        if options.quick:
            commands = dict([*commands.items()][:1])
            options.rounds = 1
        first = 0 if options.quick else 1
        measured = {name: found[first:] for name, found in script.alternate(commands, options).items()}
    script.report("install", render(measured), {"installations": measured}, options)


if __name__ == "__main__":
    script.main(program)
