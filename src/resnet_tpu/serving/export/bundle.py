"""A bundle: a folder that holds a trained network in its exported forms, and describes it.

`EXPORT_DIR/<unix seconds>/`: `bundle.json` (the model card, the options, every file with its size and SHA-256),
`labels.txt` (the class of each output), and the files of the forms. `bundle.json` is written last; a folder without
it is not a bundle.
"""

import contextlib
import hashlib
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from resnet_tpu import storage
from resnet_tpu.checkpoints.meta import config_of
from resnet_tpu.errors import UserError, first_line
from resnet_tpu.options.config import Config
from resnet_tpu.options.fields import GivenPath, expand_home
from resnet_tpu.storage import checked_json
from resnet_tpu.storage.checked_json import as_kind

DESCRIPTION, LABELS = "bundle.json", "labels.txt"

FORMAT = 1
"""Version of `bundle.json`; a bundle of a later version is refused."""

Form = Literal["stablehlo", "onnx", "int8", "savedmodel"]

FORMS: tuple[Form, ...] = get_args(Form)

Maker = Callable[[], Mapping[str, bytes]]
"""Makes the files of a form: {path in the bundle: content}."""


@dataclass(frozen=True)
class _File:
    """The entry of a file in `bundle.json`."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Bundle:
    """The content of `bundle.json`, and access to the files it lists.

    version: the unix seconds in the folder's name, or else of the time it was written. description: the model card,
    which is public; `docs/export.md` lists its keys. config: of the run. files: (bytes, SHA-256) by path.
    """

    path: str
    name: str
    version: int
    class_names: list[str]
    image_size: int
    description: Mapping[str, Any]
    forms: tuple[Form, ...]
    config: Config
    files: Mapping[str, tuple[int, str]]

    def read(self, name: str) -> bytes:
        """The content of a file. Raises UserError when it is missing or was changed."""
        path = storage.join(self.path, name)
        try:
            with storage.open_read(path) as file:
                content = file.read()
        except OSError as error:
            raise _damaged(path, first_line(error), "a file that can be read") from None
        size, digest = self.files[name]
        if len(content) != size:
            raise _damaged(path, f"{len(content)} bytes", f"the {size} that were written")
        if hashlib.sha256(content).hexdigest() != digest:
            raise _damaged(path, "a different checksum", f"the SHA-256 in {DESCRIPTION}")
        return content


def is_bundle(path: str) -> bool:
    """Whether `path` is a bundle."""
    return storage.exists(storage.join(path, DESCRIPTION))


def bundles_in(folder: str) -> Iterator[str]:
    """`folder`, without a trailing slash, when it is a bundle; else the bundles in it, the newest first."""
    if is_bundle(folder):
        yield folder.rstrip("/")
        return
    for version in sorted((name for name in storage.list_dir(folder) if name.isdecimal()), key=int, reverse=True):
        if is_bundle(path := storage.join(folder, version)):
            yield path


def newest_bundle(folder: str) -> str | None:
    """The first of `bundles_in`, if any."""
    return next(bundles_in(folder), None)


def find_bundle(path: str) -> str | None:
    """The bundle that `path` refers to; None for a path of anything else, or one that cannot be reached.

    A run that was exported into its own folder counts as a run.
    """
    from resnet_tpu.checkpoints import folders  # imports JAX, which a server with ONNX Runtime does not need

    with contextlib.suppress(UserError):
        return None if folders.steps_of_run(path) else newest_bundle(path)
    return None


def _no_bundle_error(path: str) -> UserError:
    """The error for a path that is not a bundle. If there are weights, it gives the commands that make a bundle."""
    from resnet_tpu.checkpoints import folders, missing, reading  # import JAX, as above

    expected = f"a folder with {DESCRIPTION}, or a folder of such folders"
    source, commands, got = shlex.quote(path), [], "a trained network that has not been exported yet"
    if kind := missing.foreign_kind(path):
        command, source = missing.convert_command(path)
        commands, got = [command], kind
    else:
        try:
            reading.find(path)
        except UserError:
            return UserError("Bundle", path, expected, "Check the path.")
    target = "exported" if folders.is_checkpoint(path) else f"{source}/exported"
    commands.append(f"resnet-tpu export {source} {target}")
    return UserError(
        "Bundle", f"{path}, {got}", expected, f"Run export first: {' && '.join(commands)}; this makes {target}."
    )


def open_bundle(path: GivenPath) -> Bundle:
    """Opens the bundle at `path`, or the newest bundle if `path` is a folder of bundles.

    Raises UserError when there is none, or when one of its files is missing, truncated or outside of it; links are
    followed. Checksums are compared when a file is read.
    """
    location = expand_home(path)
    newest = newest_bundle(location)
    if newest is None:
        raise _no_bundle_error(location)
    file = storage.join(newest, DESCRIPTION)
    _check_is_file(file)
    try:
        content = checked_json.loads(storage.read_text(file))
        if (version := as_kind(int, content["format"], "format")) > FORMAT:
            do = f"Use resnet_tpu {content['description']['package_version']} or later."
            raise UserError(f"Bundle {newest}", f"format {version}", f"at most {FORMAT}", do)
        bundle = _parse(newest, content)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _damaged(file, f"a file that cannot be read ({first_line(error)})", "what was written") from None
    for name, (size, _) in bundle.files.items():
        file = storage.join(newest, name)
        _check_is_file(file)
        if not storage.exists(file):
            raise _damaged(file, "no such file", f"the {size} bytes that {DESCRIPTION} lists")
        if (num_bytes := storage.file_state(file).size) != size:
            raise _damaged(file, f"{num_bytes} bytes", f"the {size} that were written")
    return bundle


def _check_is_file(path: str) -> None:
    """Raises UserError for a pipe or a device, which may have no end."""
    if storage.is_stream(path):
        raise _damaged(path, "a pipe or a device", "a file")


def _parse(path: str, content: Mapping[str, Any]) -> Bundle:
    """Raises ValueError, LookupError, TypeError or AttributeError if `content` does not have the written structure."""
    card, folder = content["description"], path.rsplit("/", 1)[-1]
    image_size, method = as_kind(int, card["image_size"], "image_size"), card["resize_method"]
    forms, files = as_kind(list[str], content["forms"], "forms"), as_kind(dict[str, _File], content["files"], "files")
    if image_size < 1 or method not in ("bicubic", "bilinear") or not set(forms) <= set(FORMS):
        raise ValueError(f"image_size {image_size}, resize_method {method!r:.40}, forms {forms!r:.80}")
    for name in files:
        if not name.isprintable() or not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise ValueError(f"files {name!r:.80}, which is not a path in the bundle")
    return Bundle(
        path=path,
        name=as_kind(str, card["name"], "name"),
        version=int(folder) if folder.isdecimal() else as_kind(int, content["written"], "written"),
        class_names=as_kind(list[str], card["class_names"], "class_names"),
        image_size=image_size,
        description=card,
        forms=tuple(form for form in FORMS if form in forms),
        config=config_of(content),
        files={name: (file.bytes, file.sha256) for name, file in files.items()},
    )


def write_bundle(
    export_dir: str,
    description: Mapping[str, Any],
    config: Config,
    forms: Iterable[tuple[Form, Maker]],
    check: Callable[[Bundle], object] | None = None,
) -> str:
    """Writes a bundle under `export_dir` and returns its path. It appears complete or not at all.

    description: the model card. forms: each with the function that makes its files. check: called with the bundle
    before it appears; if it raises, no bundle appears.
    """
    if storage.is_remote(export_dir):  # folders cannot be renamed there: writing `bundle.json` last completes it
        folder = _free_path(export_dir)
        try:
            _write_files(folder, description, config, forms, check)
        except BaseException:
            storage.remove_dir(folder)
            raise
        return folder
    with storage.folder_aside(export_dir, "bundle") as folder:
        _write_files(folder, description, config, forms, check)
        return _publish(folder, export_dir)


def _write_files(
    folder: str,
    description: Mapping[str, Any],
    config: Config,
    forms: Iterable[tuple[Form, Maker]],
    check: Callable[[Bundle], object] | None,
) -> None:
    files: dict[str, dict[str, Any]] = {}
    written: list[Form] = []

    def write(name: str, content: bytes) -> None:
        path = storage.join(folder, name)
        storage.make_dir(storage.parent_of(path))
        storage.write_bytes(path, content)
        files[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    write(LABELS, "".join(f"{name}\n" for name in description["class_names"]).encode())
    for form, make in forms:
        for name, content in make().items():
            write(name, content)
        written.append(form)
    whole = {
        "format": FORMAT, "written": int(time.time()), "description": dict(description), "forms": written,
        "files": files, "config": config.flat(),
    }  # fmt: skip
    text = checked_json.dumps(whole, indent=2, ensure_ascii=False)
    if check:
        check(_parse(folder, checked_json.loads(text)))
    write(DESCRIPTION, text.encode(errors="backslashreplace"))  # paths that are not UTF-8 are then valid JSON


def _free_path(export_dir: str) -> str:
    """A path named by the time or, if the clock was set back, above all others there: the highest is served."""
    versions = [int(name) for name in storage.list_dir(export_dir) if name.isdecimal()]
    return storage.join(export_dir, str(max(int(time.time()), max(versions, default=0) + 1)))


def _publish(folder: str, export_dir: str) -> str:
    """Renames the folder to the time. If another export took that second, uses the next free number."""
    while True:
        path = _free_path(export_dir)
        try:
            Path(folder).rename(path)
        except OSError:
            if not storage.exists(path):
                raise
        else:
            return path


def _damaged(path: str, got: str, expected: str) -> UserError:
    return UserError(f"Bundle, {path}", got, expected, "Export it again, or restore a copy.")
