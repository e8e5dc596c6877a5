"""Paths, local or `gs://...` in a bucket, and their file systems."""

import os
import posixpath
from pathlib import Path
from typing import TYPE_CHECKING

from resnet_tpu.errors import UserError
from resnet_tpu.storage import buckets

if TYPE_CHECKING:
    import fsspec  # its import takes a third of the time of `--help`


def cache_dir() -> str:
    """The user's folder for files that can be made or fetched again. Raises UserError when there is no home folder."""
    if not (caches := os.environ.get("XDG_CACHE_HOME")):
        try:
            caches = str(Path.home() / ".cache")
        except RuntimeError:
            do = "Set XDG_CACHE_HOME to a folder for cached files."
            raise UserError("Cache", "no home folder", "a home folder of this user", do) from None
    return os.path.join(caches, "resnet_tpu")  # noqa: PTH118


def is_remote(path: str) -> bool:
    """Whether `path` is in a bucket rather than on this machine."""
    return "://" in path


def filesystem(path: str) -> "fsspec.AbstractFileSystem":
    """The file system of `path`, which is not on this machine. Raises UserError for an unknown scheme."""
    if buckets.is_bucket(path):
        return buckets.filesystem(path)

    import fsspec

    try:
        return fsspec.core.url_to_fs(path)[0]
    except (ImportError, ValueError):
        do = "Copy it to one of them."
        raise UserError("Path", path, "a path on this machine or in a bucket, gs://...", do) from None


def join(path: str, *parts: str) -> str:
    """The path of something below `path`."""
    return posixpath.join(path, *parts) if is_remote(path) else os.path.join(path, *parts)  # noqa: PTH118


def parent_of(path: str) -> str:
    """The folder that holds a file; for a bare name the working directory."""
    return os.path.dirname(path) or "."  # noqa: PTH120  # the path may be in a bucket


def absolute(path: str) -> str:
    """The path, made independent of the working directory."""
    return path.rstrip("/") if is_remote(path) else os.path.abspath(path)  # noqa: PTH100


def resolved(path: str) -> str:
    """The absolute path with symbolic links followed, by which two names of one folder are recognised."""
    return absolute(path if is_remote(path) else os.path.realpath(path))
