"""Disks that fail or cannot be reached: errors that name the file, and nothing on them counts as damaged."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import pytest
from aiohttp import ClientOSError

from resnet_tpu import storage
from resnet_tpu.checkpoints import checksums, reading
from resnet_tpu.checkpoints.store import CheckpointStore
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import DataConfig
from resnet_tpu.reports.events import EventFile
from resnet_tpu.storage import buckets, disks


def fail_with(number: int) -> Callable[..., None]:
    """A function that raises as the system does where it knows no name."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize(
    ("number", "expected"), [(errno.ENOSPC, "here"), (errno.EIO, "here"), (errno.ENOTCONN, "here"), (errno.EBADF, None)]
)
def test_only_errors_of_the_disk_are_named(number: int, expected: str | None) -> None:
    with pytest.raises(OSError) as found, disks.naming("here"):
        fail_with(number)()
    assert found.value.filename == expected


def test_event_files_name_the_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = EventFile(str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail_with(errno.ENOTCONN))
        for act in (lambda: file.write({1: {"loss": 1.0}}, now=1.0), file.close):
            with pytest.raises(OSError, match="not connected") as found:
                act()
            assert found.value.filename == str(tmp_path)
    file.close()


def test_a_disk_that_cannot_be_reached_is_no_missing_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "stat", fail_with(errno.ESTALE))
    with pytest.raises(UserError, match=r"photos: got .*, expected a disk that can be reached"):
        open_source(DataConfig(data_dir=str(tmp_path / "photos")), "train")


def test_only_files_of_a_disk_that_cannot_be_reached_stop_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "photo.jpg")
    monkeypatch.setattr(Path, "read_bytes", fail_with(errno.EIO))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):  # damaged: whoever reads may skip it
        storage.read_bytes(path)
    monkeypatch.setattr(Path, "read_bytes", fail_with(errno.ETIMEDOUT))
    with pytest.raises(UserError, match=r"photo\.jpg: got .*, expected a disk that can be reached"):
        storage.read_bytes(path)


def test_checkpoints_that_cannot_be_reached_are_not_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, whole = {"params": {"bias": jnp.ones(3)}}, Path.open

    def open_unless_of_arrays(path: Path, *arguments: Any, **options: Any) -> Any:
        return (fail_with(errno.ESTALE) if "arrays" in path.parts else whole)(path, *arguments, **options)

    with CheckpointStore(str(tmp_path), keep=1) as checkpoints:
        checkpoints.save(5, arrays, {})
        checkpoints.wait()
        with monkeypatch.context() as patched:
            patched.setattr(Path, "open", open_unless_of_arrays)
            with pytest.raises(UserError, match=r"5: got .*, expected a disk that can be reached"):
                checkpoints.restore(jax.eval_shape(lambda: arrays))
        assert checkpoints.restore(jax.eval_shape(lambda: arrays))


def test_a_bucket_that_cannot_be_reached_is_not_called_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ClientOSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
    monkeypatch.setattr(buckets, "require_bucket", Mock())
    monkeypatch.setattr(checksums, "check", Mock(side_effect=error))
    with pytest.raises(UserError, match="expected an answer from the bucket"):
        reading.stored_shapes("gs://bucket/run/checkpoints/5")
