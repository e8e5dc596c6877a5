"""make: what its targets do to folders that are not theirs."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_make_deletes_no_folder_that_the_environment_names() -> None:
    command = ["make", "--dry-run", "--old-file=.venv/installed", "clean", "wheels"]
    environment = {**os.environ, "OUT": "precious", "DIST": "precious"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert "rm -rf 'dist'" in done.stdout and "precious" not in done.stdout
