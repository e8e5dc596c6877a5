"""The start of JAX: where compiled programs are cached."""

from pathlib import Path

import jax
import pytest

from resnet_tpu import storage
from resnet_tpu.parallel import startup


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
