import importlib.metadata
import importlib.util
import logging
from pathlib import Path
from unittest.mock import Mock

import pytest

from resnet_tpu.errors import UserError
from resnet_tpu.performance.plan import compiler
from resnet_tpu.performance.plan.topology import find_topology


def test_the_installed_jax_names_the_compiler_of_training() -> None:
    assert compiler.libtpu_of_training()


def test_plan_warns_where_training_would_be_compiled_by_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pins = ['requests; extra == "tpu"', 'libtpu==0.0.42.*; extra == "tpu"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: pins)
    for installed, warns in (("0.0.42.1", False), ("0.0.42", False), ("0.0.51", True)):
        monkeypatch.setattr(importlib.metadata, "version", lambda name, installed=installed: installed)
        with caplog.at_level(logging.WARNING):
            compiler.warn_of_other_libtpu()
        assert ("libtpu 0.0.51 is installed" in caplog.text) == warns
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: [])
    caplog.clear()
    compiler.warn_of_other_libtpu()  # JAX names none: nothing to compare with
    assert not caplog.records


def test_where_there_is_no_compiler_for_the_system_none_is_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(UserError, match=r"aarch64.*Linux on x86-64.*Run it there") as raised:
        compiler.compiler_of(find_topology("v5e:2x2"))
    assert "pip install" not in str(raised.value)


def test_what_cannot_be_kept_is_found_all_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    compiler._write(tmp_path / "file" / "plan" / "some.json", compiler.OutOfMemory(5))
    assert "The compiled result is not kept: " in caplog.text


@pytest.mark.parametrize(("name", "variable"), [("v5e:2x2", "LIBTPU_INIT_ARGS"), ("h100:8", "XLA_FLAGS")])
def test_a_kept_result_is_that_of_the_same_flags_of_its_compiler(
    name: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "compiler_of", lambda topology: "one")
    lowered, topology = Mock(as_text=lambda: "program"), find_topology(name)
    files = set()
    for flags in ({}, {"LIBTPU_INIT_ARGS": "--a"}, {"XLA_FLAGS": "--a"}, {variable: "--b"}):
        for each in ("LIBTPU_INIT_ARGS", "XLA_FLAGS"):
            monkeypatch.setenv(each, flags.get(each, ""))
        files.add(compiler._cache_file(lowered, topology, {}))
    assert len(files) == 3
