"""What `doctor` finds on this machine, and on one that lacks something."""

import importlib.metadata
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import pytest
from packaging.requirements import Requirement

from resnet_tpu.cli import machine_checks
from resnet_tpu.errors import UserError
from resnet_tpu.kernels import native
from resnet_tpu.parallel import startup


def examine(**environment: str) -> dict[str, dict[str, str]]:
    """The findings of `resnet-tpu doctor`, by name."""
    command = [sys.executable, "-m", "resnet_tpu", "doctor", "--format=json"]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
    return {finding["name"]: finding for finding in json.loads(done.stdout)}


def test_every_extra_has_a_purpose() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    assert machine_checks.EXTRAS.keys() == project["optional-dependencies"].keys()
    page = (Path(__file__).resolve().parents[2] / "docs" / "install.md").read_text()
    assert [extra for extra in machine_checks.EXTRAS if f"`{extra}`" not in page] == []


@pytest.mark.parametrize(
    ("processor", "name"), [("x86_64", "tensorflow-cpu"), ("AMD64", "tensorflow-cpu"), ("aarch64", "tensorflow")]
)
def test_tensorflow_is_named_as_pip_has_it_for_the_processor(processor: str, name: str) -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(each) for each in project["optional-dependencies"]["tf"]]
    here = {"platform_machine": processor}
    assert [each.name for each in wanted if each.marker is None or each.marker.evaluate(here)] == [name]


def test_reports_devices_and_versions_of_this_machine() -> None:
    found = examine(JAX_NUM_CPU_DEVICES="3")
    assert found["cpu devices"]["found"] == "3 x cpu"
    assert found["jax"]["found"] == jax.__version__
    assert {finding["state"] for finding in found.values() if finding["topic"] == "versions"} == {"ok"}


def test_what_is_made_for_other_systems_is_not_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    requires = [
        "onednn-cpu-gomp>=2023.2; sys_platform == 'linux' and platform_machine == 'x86_64'",
        "jax[tpu]>=0.10.2; (sys_platform == 'linux' and platform_machine == 'abacus') and extra == 'plan'",
        "none-there>=2.20; (platform_machine == 'abacus') and extra == 'tf'",
        "none-here>=2.20; (platform_machine != 'abacus') and extra == 'tf'",
    ]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: requires)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")  # not for markers: packaging may remember the real one
    monkeypatch.setattr(native, "load", frozenset)
    found = {finding.name: finding for finding in machine_checks.examine(use_tpu=False)}
    assert found["layers in C with oneDNN"].do == found["plan"].do == ""
    assert "only on Linux on x86-64" in found["layers in C with oneDNN"].found
    assert found["plan"].found == "the TPU compiler, for `plan`: there is none for this system"
    assert found["tf"].found == "no none-here"


def test_a_package_that_is_not_installed_says_no_more_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.requires", Mock(side_effect=importlib.metadata.PackageNotFoundError))
    found = machine_checks.examine(use_tpu=False)
    assert "extras" not in {finding.topic for finding in found}


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
    found = {finding.name: finding for finding in machine_checks.examine(use_tpu=False)}
    assert found["cache"].state == "broken"
    assert found["cache"].found == f"{tmp_path}/.cache/resnet_tpu cannot be written to"
    assert found["Google Cloud"].state == "missing"


@pytest.mark.long
def test_a_platform_that_jax_does_not_know_is_broken() -> None:
    found = examine(JAX_PLATFORMS="abacus")
    assert found["JAX"]["state"] == "broken"
    assert "abacus" in found["JAX"]["found"]


def test_credentials_that_are_not_there_are_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    found = {finding.name: finding for finding in machine_checks.examine(use_tpu=False)}
    assert found["Google Cloud"].state == "broken"
    assert "key.json is not a file" in found["Google Cloud"].found


@pytest.mark.parametrize(
    ("error", "said"),
    [(RuntimeError("The TPU is in use.\nmore"), "The TPU is in use"), (AssertionError(), "no device to use")],
)
def test_devices_that_do_not_start(error: Exception, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(jax, "local_devices", fail)
    found = {finding.name: finding for finding in machine_checks.examine(use_tpu=False)}
    assert (found["JAX"].state, found["JAX"].found) == ("broken", said)
    assert "layers in C with oneDNN" not in found


@pytest.fixture
def compiled_at() -> Iterator[Callable[[str], None]]:
    """Sets the folder of compiled programs, as JAX_COMPILATION_CACHE_DIR does when JAX is imported."""
    before = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    yield lambda folder: jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_compilation_cache_dir", before)


def test_a_file_in_the_place_of_a_cache_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled_at: Callable[[str], None]
) -> None:
    (tmp_path / "file").write_text("")
    cache = str(tmp_path / "file")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", cache)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    compiled_at(cache)
    found = {finding.name: finding for finding in machine_checks.examine(use_tpu=False)}
    assert found["cache"].state == found["compiled programs"].state == "broken"
    assert found["cache"].found == f"{cache}/resnet_tpu cannot be written to"
    assert found["compiled programs"].do == "Set JAX_COMPILATION_CACHE_DIR to a folder that can be written to."
    assert found["Google Cloud"].state == "missing"
    (tmp_path / "application_default_credentials.json").write_text("{}")
    compiled_at("")
    found = {finding.name: finding for finding in machine_checks.examine(use_tpu=False)}
    assert found["compiled programs"].state == "missing"
    assert found["Google Cloud"].state == "ok"


def test_neither_a_home_nor_a_place_for_compiled_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*_: object, **__: object) -> None:
        raise UserError("Path", "foo://x", "a path on this machine", "Copy it.")

    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(startup, "start_jax", nowhere)
    found = {finding.name: finding for finding in machine_checks.examine(use_tpu=False)}
    assert (found["JAX"].state, found["JAX"].found) == ("broken", "Path: got foo://x")
    assert (found["cache"].state, found["cache"].found) == ("broken", "no home folder")
