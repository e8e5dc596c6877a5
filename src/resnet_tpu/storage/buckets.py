"""Google Cloud Storage: the set-up of its clients, and clear errors in place of theirs.

Two clients read and write `gs://` paths: gcsfs, for files, and TensorStore, for the arrays of Orbax's checkpoints.
Both use the standard credentials: the file that GOOGLE_APPLICATION_CREDENTIALS names, those of `gcloud`, or those of
the cloud machine. STORAGE_EMULATOR_HOST sends both to another server.
"""

import contextlib
import functools
import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from resnet_tpu.errors import UserError, first_line, missing_extra

if TYPE_CHECKING:
    import fsspec

# Orbax would use TensorFlow's client where that is installed, and decides before it sees the first path in a bucket.
os.environ.setdefault("EPATH_USE_TF", "false")

log = logging.getLogger(__name__)

READER = "Storage Object Viewer (roles/storage.objectViewer)"
WRITER = "Storage Object User (roles/storage.objectUser)"

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_CONNECT_SECS, _SILENT_SECS = 20, 60  # after that, a request counts as failed and is retried
_CLIENTS = ("gcsfs.", "aiohttp.", "google.auth.", "requests.")  # their errors concern the network or permissions


class NoAnswerError(UserError):
    """A store could not be reached, or gave no proper answer, even after several tries."""


def is_bucket(path: str) -> bool:
    """Whether `path` is in Google Cloud Storage."""
    return path.startswith(("gs://", "gcs://"))


def filesystem(path: str) -> "fsspec.AbstractFileSystem":
    """The client for `path`, which retries transient errors with growing delays. Raises UserError without gcsfs."""
    import fsspec

    set_up()
    try:
        # by the scheme alone: of a whole path that ends in #1, gcsfs would take the number for an object's version
        return fsspec.filesystem(path.split("://")[0])
    except ImportError:
        raise missing_extra(f"Path {path}", "gcsfs", "gcp") from None


@functools.cache
def set_up() -> None:
    """Makes gcsfs, TensorStore and Orbax use the same server and credentials. Call before the first use of any of them.

    Raises UserError when there are credentials, but unusable ones.
    """
    server = os.environ.get("STORAGE_EMULATOR_HOST")
    if server:
        os.environ.setdefault("TENSORSTORE_GCS_HTTP_URL", server if "://" in server else f"http://{server}")
        if not os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
            os.environ.setdefault("GOOGLE_AUTH_TOKEN_FOR_TESTING", "none")  # else it looks for those of a cloud machine
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it logs what it raises, with a traceback
    with contextlib.suppress(ImportError):
        import aiohttp
        import fsspec.config
        import gcsfs.core

        for protocol in ("gs", "gcs"):  # by default gcsfs tries gRPC first, and waits a minute if there is no answer
            fsspec.register_implementation(protocol, gcsfs.core.GCSFileSystem, clobber=True)

        fsspec.config.conf["gs"] = {
            "token": _credentials() or "anon",
            "consistency": "md5",  # verifies uploads
            "use_listings_cache": False,  # others write to the bucket too
            "requests_timeout": aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECS, sock_read=_SILENT_SECS),
        }


@functools.cache
def _credentials() -> Any:
    """The credentials that Google's library finds; None if there are none, as public buckets need none."""
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    given = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if os.environ.get("STORAGE_EMULATOR_HOST") and not given:
        return None
    try:
        return google.auth.default(scopes=[_SCOPE])[0]
    except DefaultCredentialsError as error:
        if given:
            do = "Correct GOOGLE_APPLICATION_CREDENTIALS, or unset it for public buckets."
            expected = "the key file of a service account"
            raise UserError("Google credentials", first_line(error), expected, do) from None
        log.info("No Google credentials: only what is public in a bucket can be read.")
        return None


def write_unless_changed(path: str, data: bytes, generation: int) -> bool:
    """Writes a whole object if it still has this generation (0: does not exist). Returns False if others wrote it."""
    client: Any = filesystem(path)
    bucket, _, name = path.split("://", 1)[1].partition("/")
    place = f"{client._location}/upload/storage/v1/b/{{}}/o"
    try:
        with naming(path, is_write=True):
            client.call("POST", place, bucket, uploadType="media", name=name, ifGenerationMatch=generation, data=data)
    except FileExistsError:
        return False
    return True


@contextlib.contextmanager
def naming(path: str, *, is_write: bool = False) -> Iterator[None]:
    """Turns errors of the client for `path` into a UserError that names the bucket, the problem and the role needed.

    FileNotFoundError passes through if the bucket exists.
    """
    try:
        with _translated(path, is_write=is_write):
            yield
    except FileNotFoundError:
        require_bucket(path)
        raise


def require_bucket(path: str) -> None:
    """Raises UserError when the bucket of `path` does not exist or may not be listed."""
    if not is_bucket(path):
        return
    name = path.split("://", 1)[1].partition("/")[0]
    client: Any = filesystem(path)
    try:
        with _translated(path, is_write=False):
            client.call("GET", "b/{}/o", name, maxResults=1, fields="kind")
    except FileNotFoundError:
        do = f"Check the name, or make it: gcloud storage buckets create gs://{name} --location=REGION."
        raise UserError(f"Path {path}", f"no bucket {name}", "an existing bucket", do) from None


@contextlib.contextmanager
def _translated(path: str, *, is_write: bool) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if translated := storage_error(error, path, is_write=is_write):
            raise translated from error
        raise


def storage_error(error: BaseException, path: str = "files in a bucket", *, is_write: bool = False) -> UserError | None:
    """The UserError for an error of a client of Google Cloud Storage or a web server; None for other errors."""
    is_ours = type(error).__module__.startswith(_CLIENTS)
    is_forbidden = isinstance(error, OSError) and str(error).startswith("Forbidden")
    if not (is_ours or is_forbidden):
        return None
    what, role = (f"Writing {path}", WRITER) if is_write else (f"Reading {path}", READER)
    answer = (str(error).splitlines() or [""])[-1 if is_forbidden else 0][:300] or type(error).__name__
    if is_forbidden or getattr(error, "code", None) in (401, 403):
        who = "the account" if _credentials() else "everyone (there are no Google credentials here)"
        do = (
            f"Grant it on the bucket, or use other credentials: gcloud auth application-default login, or "
            f"GOOGLE_APPLICATION_CREDENTIALS=KEY.json of a service account. Role needed: {role}."
        )
        return UserError(what, answer, f"permission for {who}", do)
    if path.startswith(("http://", "https://")):
        return UserError(what, answer, "an answer from its server", "Check the address and the network.")
    do = "Check the network and the credentials, then run the same command again."
    return NoAnswerError(what, f"{answer}, after several tries", "an answer from Google Cloud Storage", do)
