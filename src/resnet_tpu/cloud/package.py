"""The package that a job's container installs: a wheel, an address such as git+https://..., or a requirement of pip."""

import logging
import re
import shlex

from resnet_tpu import __version__, storage
from resnet_tpu.errors import UserError

log = logging.getLogger(__name__)

_ADDRESSES = ("git+", "http://", "https://")
"""Prefixes of the addresses from which pip can install directly."""

_FILE = re.compile(r"^\.|/|\.(tar\.\w+|tgz|zip)$")  # pip takes these for a file or a folder


def package_in_container(given: str, folder: str) -> str:
    """What the container installs for `--package=given`.

    folder: the job's folder in a bucket, to which `upload` copies a wheel from this machine.
    Raises UserError for a file that the job could not read.
    """
    if is_local_wheel(given):
        if not storage.exists(given):
            raise UserError("--package", given, "an existing file", "Build it with `make wheels`.")
        return storage.join(folder, _file_name(given))
    if given.startswith(_ADDRESSES):
        return f"resnet-tpu[tpu,gcp] @ {given}"
    if not _is_wheel(given) and "@" not in given and _FILE.search(given):
        expected = "a wheel, an address or a requirement: the job cannot see other files"
        raise UserError("--package", given, expected, "Build one with `make wheels`.")
    if given:
        return given
    log.warning(
        "The job would stop at once: it would install resnet-tpu %s from a package index, and none has it yet. Give "
        "--package=WHEEL, --package=git+https://..., or --image.", __version__,
    )  # fmt: skip
    return f"resnet-tpu[tpu,gcp]=={__version__}"


def is_local_wheel(given: str) -> bool:
    """Whether `given` is a wheel on this machine, which the job can only get by way of a bucket."""
    return _is_wheel(given) and not storage.is_remote(given)


def upload(given: str, target: str) -> None:
    """Copies a wheel from this machine to `target`. Does nothing for other packages."""
    if is_local_wheel(given):
        storage.write_bytes(target, storage.read_bytes(given))


def install_commands(package: str) -> list[str]:
    """The shell commands that install in the container what `package_in_container` returned."""
    pip = "python -m pip install --quiet --root-user-action=ignore"
    if not _is_wheel(package):
        git = ["apt-get update --quiet=2", "apt-get install --quiet=2 --yes git"] if "git+" in package else []
        return [*git, f"{pip} {shlex.quote(package)}"]
    wheel = _file_name(package)
    copy = f"import fsspec; files, path = fsspec.url_to_fs({package!r}); files.get(path, {wheel!r})"
    return [f"{pip} gcsfs", f"python -c {shlex.quote(copy)}", f"{pip} {shlex.quote(f'./{wheel}[tpu,gcp]')}"]


def _is_wheel(package: str) -> bool:
    """Whether `package` is a wheel on this machine or in a bucket, not a requirement that pip resolves itself."""
    return package.endswith(".whl") and " @ " not in package and not package.startswith(_ADDRESSES)


def _file_name(path: str) -> str:
    return path.rsplit("/", 1)[-1]
