"""What `doctor` finds on this machine, and on one that lacks something."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jax
import pytest

from resnet_tpu.cli import findings


def examine(**environment: str) -> dict[str, dict[str, str]]:
    """The findings of `resnet-tpu doctor`, by name."""
    command = [sys.executable, "-m", "resnet_tpu", "doctor", "--format=json"]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
    return {finding["name"]: finding for finding in json.loads(done.stdout)}


def test_every_extra_has_a_purpose() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    assert findings.EXTRAS.keys() == project["optional-dependencies"].keys()
    page = (Path(__file__).resolve().parents[2] / "docs" / "install.md").read_text()
    assert [extra for extra in findings.EXTRAS if f"`{extra}`" not in page] == []


def test_it_finds_what_is_here() -> None:
    found = examine(JAX_NUM_CPU_DEVICES="3")
    assert found["cpu devices"]["found"] == "3 x cpu"
    assert found["jax"]["found"] == jax.__version__
    assert {finding["state"] for finding in found.values() if finding["topic"] == "versions"} == {"ok"}


def test_a_home_that_may_not_be_entered_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_stat = os.stat

    def stat(path: Any, *args: Any, **options: Any) -> os.stat_result:
        if str(path).startswith(f"{tmp_path}/"):
            raise PermissionError(13, "Permission denied", path)
        return real_stat(path, *args, **options)

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path)  # root may write everywhere
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    found = {finding.name: finding for finding in findings.examine(use_tpu=False)}
    assert found["cache"].state == "broken"
    assert found["cache"].found == f"{tmp_path}/.cache/resnet_tpu cannot be written to"
    assert found["Google Cloud"].state == "missing"


def test_it_names_what_is_broken(tmp_path: Path) -> None:
    found = examine(JAX_PLATFORMS="abacus", GOOGLE_APPLICATION_CREDENTIALS=str(tmp_path / "key.json"))
    assert found["JAX"]["state"] == "broken"
    assert "abacus" in found["JAX"]["found"]
    assert found["Google Cloud"]["state"] == "broken"
    assert "key.json does not exist" in found["Google Cloud"]["found"]
