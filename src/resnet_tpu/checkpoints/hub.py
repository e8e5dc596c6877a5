"""Weights from repositories on Hugging Face's hub, by its own client: cached, resumed, with the user's token."""

import contextlib
import errno
import functools
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resnet_tpu import __version__, storage
from resnet_tpu.checkpoints import published
from resnet_tpu.errors import UserError, first_line, missing_extra
from resnet_tpu.options import plain_yaml

log = logging.getLogger(__name__)

_FILES = ("model.safetensors", "pytorch_model.bin")
_EXPECTED = "a repository with a timm ResNet: config.json and model.safetensors"
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_PROPERTIES = re.compile(r"---\r?\n(.*?)^---", re.DOTALL | re.MULTILINE)
_SHA256 = re.compile(r"[0-9a-f]{64}")


@functools.cache  # called twice, for the options and for the arrays, which must come from the same commit
def fetch(repository: str, name: str) -> tuple[str, dict[str, Any]]:
    """The file of weights of `OWNER/NAME` or `OWNER/NAME@REVISION`, and their origin and licence, as options.

    Its config.json is in the same folder. `name`: the user's name for it. All files come from one commit. Files in the
    client's cache are not downloaded again; if the hub cannot be reached, only the cache is used. The environment
    determines endpoint, proxy, token, cache and offline mode, as for all programs with that client. Raises UserError
    when the weights cannot be obtained, or differ from the hub's.
    """
    path, _, revision = repository.partition("@")
    if not _REPOSITORY.fullmatch(path):
        do = "Write hf:OWNER/NAME, or hf:OWNER/NAME@REVISION; `resnet-tpu models` lists some."
        raise UserError(f"Weights {name}", path or "nothing", "a repository, OWNER/NAME", do)
    config = _Revision(name, path, revision or "main").download("config.json")
    if config is None:
        raise _missing_file_error(name, "config.json")
    commit = _Revision(name, path, Path(config).parent.name)
    weights = commit.download_weights()
    card = None
    with contextlib.suppress(UserError):  # there may be no network now, and only the weights in the cache
        card = commit.download("README.md")
    licence = _licence(card)
    checksum = _checked(name, weights)
    megabytes = Path(weights).stat().st_size / 1e6
    said = licence or "not stated in its card"
    log.info("%s: %.1f MB, commit %s, licence %s, in %s", name, megabytes, commit.revision, said, Path(weights).parent)
    origin = f"hf:{path}@{commit.revision} sha256:{checksum}"
    return weights, {"weights_origin": origin} | ({"weights_licence": licence} if licence else {})


@dataclass(frozen=True)
class _Revision:
    """A branch, tag or commit of a repository. name: the user's name for it, for messages."""

    name: str
    repository: str
    revision: str

    def download(self, file: str) -> str | None:
        """The path of a file of the repository in the client's cache; None if the repository has no such file."""
        try:
            import huggingface_hub as client
            from huggingface_hub import errors
        except ImportError:
            raise missing_extra(f"Weights {self.name}", "huggingface_hub", "hub") from None
        try:
            return client.hf_hub_download(
                self.repository, file, revision=self.revision, library_name="resnet_tpu", library_version=__version__
            )
        except errors.LocalEntryNotFoundError as error:
            raise self._unreachable_error(error, client.constants.ENDPOINT) from None
        except errors.EntryNotFoundError:
            return None
        except Exception as error:  # noqa: BLE001  the client's libraries for HTTP and large files have their own errors
            raise self._refusal_error(error, client.constants.ENDPOINT) from None

    def download_weights(self) -> str:
        """The path of the first file of weights that exists; if the hub cannot be reached, the first in the cache."""
        unreached: UserError | None = None
        for file in _FILES:
            try:
                if weights := self.download(file):
                    return weights
            except UserError as error:
                unreached = unreached or error
        raise unreached or _missing_file_error(self.name, _FILES[0])

    def _unreachable_error(self, error: Exception, endpoint: str) -> UserError:
        """The error for a file that is not in the cache while the hub does not answer, or downloads are forbidden."""
        from huggingface_hub import errors

        cause = error.__cause__
        if isinstance(cause, errors.HfHubHTTPError) and cause.response.status_code in (401, 403):
            return self._refusal_error(cause, endpoint)
        got = "the setting HF_HUB_OFFLINE" if published.is_offline() else first_line(cause or error)
        do = f"Check the network and the proxy, or {self._by_hand(endpoint)}"
        what = f"Weights {self.name}"
        return UserError(what, f"{got}, and no copy on this machine", f"an answer from {endpoint}", do)

    def _refusal_error(self, error: Exception, endpoint: str) -> UserError:
        """The error for a refusal by the hub or the disk."""
        from huggingface_hub import errors

        what, login = f"Weights {self.name}", "`hf auth login`, or HF_TOKEN with a token that may read it"
        if isinstance(error, errors.GatedRepoError):
            do = f"Accept its terms at {endpoint}/{self.repository}, and log in: {login}."
            return UserError(what, "a gated repository", "one that this user may read", do)
        status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
        if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403):
            do = f"Check the name; a private repository needs {login}."
            return UserError(what, "no repository of that name that this user may read", _EXPECTED, do)
        if isinstance(error, errors.RevisionNotFoundError):
            got, expected = f"no revision {self.revision}", "a branch, tag or commit of it"
            return UserError(what, got, expected, "Check what follows the @.")
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            do = "Make room or change its permissions; HF_HUB_CACHE names another folder."
            return UserError(what, first_line(error), "a cache that can be written to", do)
        do = f"Run this again (it continues where it stopped), or {self._by_hand(endpoint)}"
        return UserError(what, first_line(error), f"the files from {endpoint}", do)

    def _by_hand(self, endpoint: str) -> str:
        """Advice on how to download without the client."""
        file = f"{endpoint}/{self.repository}/resolve/{self.revision}/{_FILES[0]}"
        return (
            f"download {file} and the config.json next to it some other way into one folder, and give that as the "
            "weights."
        )


def _missing_file_error(name: str, file: str) -> UserError:
    do = "Choose another; `resnet-tpu models` lists some."
    return UserError(f"Weights {name}", f"a repository without {file}", _EXPECTED, do)


def _licence(card: str | None) -> str | None:
    """The licence in the properties of a repository's card; None if it names none."""
    try:
        match = _PROPERTIES.match(storage.read_text(card)) if card else None
        properties = plain_yaml.parse(match[1]) if match else None
    except ValueError:
        return None
    licence = properties.get("license") if isinstance(properties, dict) else None
    return licence if isinstance(licence, str) and licence else None


def _checked(name: str, path: str) -> str:
    """The SHA-256 of a file in the cache. Raises UserError when it differs from the one that the hub gave.

    The cache names large files by that checksum, if the file system has links.
    """
    found = published.checksum(path)
    blob = Path(path).parent / Path(path).readlink() if Path(path).is_symlink() else Path(path)
    if _SHA256.fullmatch(blob.name) and blob.name != found:
        do = f"Delete {os.path.normpath(blob)}, and run this again."
        got = f"content with sha256 {found[:16]}..."
        raise UserError(f"Weights {name}", got, f"{blob.name[:16]}..., as the hub has it", do)
    return found
