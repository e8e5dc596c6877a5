"""The start of JAX: where compiled programs are cached."""

from pathlib import Path
from unittest.mock import Mock, call

import jax
import pytest

from resnet_tpu import storage
from resnet_tpu.parallel import startup


def test_the_platform_that_a_program_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may leave a GPU to another program. JAX knows JAX_PLATFORMS as its own setting."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)  # libtpu and a plugin for GPUs are installed
    monkeypatch.setattr(startup, "has_gpu", lambda: True)
    monkeypatch.setattr(startup, "has_tpu", lambda: False)
    update = Mock()
    for chosen, is_kept in (("cpu", True), ("", False)):
        monkeypatch.setattr(
            startup, "jax", Mock(config=Mock(jax_platforms=chosen, jax_compilation_cache_dir="", update=update))
        )
        startup.start_jax(use_tpu=True)
        assert (call("jax_platforms", "cuda,cpu") not in update.mock_calls) == is_kept


def test_compiled_steps_are_cached_in_the_default_or_the_given_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = [getattr(jax.config, name) for name in names]
    try:
        startup.start_jax(use_tpu=False)
        assert [getattr(jax.config, name) for name in names] == before
        jax.config.update(names[0], None)
        (tmp_path / "file").touch()
        with monkeypatch.context() as patch:  # a folder that JAX would warn about
            patch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
            startup.start_jax(use_tpu=False)
        assert getattr(jax.config, names[0]) is None
        startup.start_jax(use_tpu=False)
        assert [getattr(jax.config, name) for name in names] == [f"{storage.cache_dir()}/xla", 0.5]
        assert storage.cache_dir().startswith(str(tmp_path))
    finally:
        for name, value in zip(names, before, strict=True):
            jax.config.update(name, value)
