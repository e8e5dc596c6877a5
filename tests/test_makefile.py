"""make: what its targets do to folders that are not theirs, and the options that they give to XLA."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_make_deletes_no_folder_that_the_environment_names() -> None:
    command = ["make", "--dry-run", "--old-file=.venv/installed", "clean", "wheels"]
    environment = {**os.environ, "OUT": "precious", "DIST": "precious"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert "rm -rf 'dist'" in done.stdout and "precious" not in done.stdout


@pytest.mark.parametrize(("jaxlib", "is_known"), [("0.10.2", True), ("0.12.0.1", False)])
def test_tests_get_only_options_that_the_installed_xla_knows(jaxlib: str, is_known: bool, tmp_path: Path) -> None:
    about = tmp_path / f"jaxlib-{jaxlib}.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text(f"Metadata-Version: 2.1\nName: jaxlib\nVersion: {jaxlib}\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    command = ["make", "--dry-run", "--old-file=.venv/installed", f"BIN={tmp_path}", "test"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--xla_backend_optimization_level=0" in done.stdout
    assert ("--xla_cpu_use_fusion_emitters" in done.stdout) == is_known
