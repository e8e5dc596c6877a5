"""Fuzzes the decoder in C with libFuzzer and the sanitizers: `python tests/fuzz/jpeg_decoder.py --seconds 60`.

Needs clang with its runtime (Debian, Ubuntu: apt-get install clang libclang-rt-dev libjpeg-dev). Findings go to
found/image, whose files the tests replay.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from resnet_tpu.data.pixels.native.build import FOLDER as SOURCES

FOLDER = Path(__file__).parent
_FLAGS = (
    "-std=gnu11",
    "-g",
    "-O1",
    "-fsanitize=fuzzer,address,undefined",
    "-fno-sanitize-recover=all",
    "-DMOST_KEPT=0",
)
_DO = "Install what is missing: apt-get install clang libclang-rt-dev libjpeg-dev."


def main() -> int:
    """Builds and runs the fuzzer, and returns libFuzzer's exit code: 0 if it found nothing."""
    parser = argparse.ArgumentParser(description=__doc__)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=int, default=60)
    length.add_argument("--runs", type=int, help="Inputs, always the same, in place of a time.")
    parser.add_argument("--corpus", type=Path, help="Where inputs that reach new code are kept. Default: nowhere.")
    options = parser.parse_args()
    if not shutil.which("clang"):
        print(f"jpeg_decoder is left out: no clang, whose libFuzzer it needs. {_DO}")
        return 0
    found = FOLDER / "found" / "image"
    found.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "jpeg_decoder"
        sources = [FOLDER / "jpeg_decoder.c", *sorted(SOURCES.glob("*.c"))]
        if subprocess.run(["clang", *_FLAGS, f"-I{SOURCES}", "-o", program, *sources, "-ljpeg", "-lm"]).returncode:
            sys.exit(f"jpeg_decoder: clang cannot build it. {_DO}")
        corpus = options.corpus or Path(folder) / "corpus"
        corpus.mkdir(parents=True, exist_ok=True)
        length = (f"-runs={options.runs}", "-seed=1") if options.runs else (f"-max_total_time={options.seconds}",)
        limits = (*length, "-timeout=20", "-max_len=65536", f"-artifact_prefix={found}/")
        return subprocess.run(
            [program, *limits, "-print_final_stats=1", corpus, FOLDER / "seeds" / "image", found]
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
