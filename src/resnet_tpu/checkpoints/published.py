"""Fetches, once, published files whose names hold the beginning of their checksum."""

import hashlib
import http.client
import logging
import os
import re
import urllib.error
import urllib.request
from pathlib import Path

from resnet_tpu import storage
from resnet_tpu.errors import UserError, first_line

log = logging.getLogger(__name__)

_CHECKSUM = re.compile(r"-([0-9a-f]{8,64})\.\w+")
_TIMEOUT_SECS = 30
_CHUNK = 1 << 20


def fetch(address: str) -> tuple[str, str]:
    """The path of the local copy of the file published at `address`, downloaded if missing; and its SHA-256.

    The checksum must begin as in the file's name, `resnet50-11ad3fa6.pth`. Uses the proxies that the environment
    names. Raises UserError when the file cannot be obtained, or has another checksum.
    """
    name = address.rsplit("/", 1)[-1]
    path = storage.join(folder(), name)
    expected = _begins(name)
    if not storage.exists(path):
        _download(address, path, expected)
    found = checksum(path)
    if not found.startswith(expected):
        got = f"content with sha256 {found[:16]}..."
        raise UserError(f"Weights {path}", got, f"{expected}..., as its name says", "Delete it, and run this again.")
    return path, found


def folder() -> str:
    """The folder of downloaded files, where users may put files that they fetched by other means."""
    return storage.join(storage.cache_dir(), "weights")


def checksum(path: str) -> str:
    """The SHA-256 of a file on this machine, in hexadecimal digits."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_offline() -> bool:
    """Whether the environment forbids downloads, by the variable of Hugging Face's libraries."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _begins(name: str) -> str:
    match = _CHECKSUM.search(name)
    assert match, f"{name} names no checksum"
    return match[1]


def _download(address: str, path: str, expected: str) -> None:
    """Writes the file to `path` once all of it has arrived, with a checksum that begins with `expected`."""
    do = f"Download the file another way and put it into {folder()}, or check the network and proxy and run this again."
    if is_offline():
        raise UserError(f"Weights {address}", "the setting HF_HUB_OFFLINE, and no copy on this machine", "the file", do)
    storage.make_dir(folder())
    log.info("Fetching %s into %s", address, folder())
    digest, received = hashlib.sha256(), 0
    try:
        with (
            urllib.request.urlopen(address, timeout=_TIMEOUT_SECS) as answer,  # noqa: S310 - from a table of https
            storage.write_whole(path) as file,
        ):
            length = answer.headers.get("Content-Length")
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                digest.update(chunk)
                received += len(chunk)
            if length is not None and received != int(length):
                raise http.client.IncompleteRead(b"", int(length) - received)
            if not digest.hexdigest().startswith(expected):
                got = f"content with sha256 {digest.hexdigest()[:16]}..."
                raise UserError(f"Weights {address}", got, f"{expected}..., as its name says", do)
    except http.client.HTTPException as error:
        got = f"an answer that ended after {received:,} bytes ({type(error).__name__})"
        raise UserError(f"Weights {address}", got, "the whole file", do) from None
    # a length that is not a number is a ValueError
    except (urllib.error.URLError, ConnectionError, TimeoutError, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise UserError(f"Weights {address}", first_line(error), "the file", do) from None
