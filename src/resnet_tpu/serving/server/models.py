"""The models of a server: bundles by name, loaded and warmed up, and replaced when newer bundles appear."""

import atexit
import contextlib
import functools
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from resnet_tpu import storage
from resnet_tpu.errors import UserError, describe
from resnet_tpu.options.fields import expand_home
from resnet_tpu.reports.finite import check_finite
from resnet_tpu.serving.export.bundle import (
    DESCRIPTION,
    Bundle,
    Form,
    bundles_in,
    is_bundle,
    newest_bundle,
    open_bundle,
)
from resnet_tpu.serving.export.classifier import default_form, load_classifier
from resnet_tpu.serving.server.batching import Answer, Batcher
from resnet_tpu.serving.server.images import network_input
from resnet_tpu.serving.server.metrics import Metrics
from resnet_tpu.serving.server.options import ServeOptions

log = logging.getLogger(__name__)

T = TypeVar("T")

_RETRY_SECONDS = 300.0
"""Time until a bundle that failed to load is tried again: its files may be fine, only temporarily unreachable."""

_NAME = re.compile(r"[\w.-]+", re.ASCII)


@dataclass(frozen=True)
class LoadedBundle:
    """A bundle that is loaded and warmed up."""

    bundle: Bundle
    form: Form
    batcher: Batcher
    max_pixels: int

    def submit(self, images: Sequence[bytes] | Sequence[np.ndarray]) -> list[Answer]:
        """Futures of the logits [classes] of these files or arrays of pixels [s, s, 3]; see `Batcher.submit`."""
        return self.batcher.submit([functools.partial(self._decode, image) for image in images])

    def _decode(self, image: bytes | np.ndarray) -> np.ndarray:
        if isinstance(image, np.ndarray):
            return image
        return network_input(image, self.bundle.config.data, self.max_pixels)

    def card(self, name: str) -> dict[str, Any]:
        """The model card of this version, served under `name`."""
        bundle = self.bundle
        own = {"name": name, "version": bundle.version, "form": self.form}
        return {**bundle.description, **own, "class_names": bundle.class_names, "image_size": bundle.image_size}


class Model:
    """A model served under one name: the newest version that could be loaded."""

    def __init__(self, name: str, location: str, current: LoadedBundle) -> None:
        """location: a bundle, or the folder that newer bundles are exported to."""
        self.name, self.location, self.current = name, location, current
        self._refused: tuple[str, object] | None = None  # the path of a bundle that failed, and the state of its files
        self._retry_at = 0.0

    def reload(self, loader: "Loader") -> None:
        """Switches to the newest bundle, unless it is the one being served. It may be older, if that one was deleted.

        A bundle that fails to load is logged once and changes nothing; it is tried again after a while, or as soon as
        its files change. A request is answered by the version that accepted it.
        """
        candidate: tuple[str, object] = self.location, None
        try:
            path = newest_bundle(self.location)
            if path is None:
                do = "Export one into it, or bring it back."
                raise UserError(f"Folder {self.location}", "no bundle", "the one that is served, or a newer one", do)
            if path == self.current.bundle.path:
                self._refused = None
                return
            candidate = path, [(file, _state_of(file)) for file in storage.files_below(path)]
            if candidate == self._refused and time.monotonic() < self._retry_at:
                return
            if not is_bundle(self.current.bundle.path):  # deleted, or temporarily unreachable
                storage.check_reachable(storage.join(self.current.bundle.path, DESCRIPTION))
            bundle = open_bundle(path)
            self.current = loader.load(self.name, bundle)
            loader.metrics.reloads.labels(self.name, "loaded").inc()
            log.info("Serving %s version %d from %s", self.name, bundle.version, path)
        except Exception as error:  # noqa: BLE001 (whatever is wrong with a new bundle, the old one stays in service)
            is_news = candidate != self._refused  # if the bundle is still being copied, its state differs next time
            if is_news or time.monotonic() >= self._retry_at:
                self._refused, self._retry_at = candidate, time.monotonic() + _RETRY_SECONDS
                loader.metrics.reloads.labels(self.name, "refused").inc()
            if is_news:
                log.warning("%s: version %d is kept. %s", self.name, self.current.bundle.version, describe(error))


class Loader:
    """Loads bundles, and holds the objects that they share."""

    def __init__(self, options: ServeOptions, decoders: Executor, metrics: Metrics) -> None:
        self.options, self.decoders, self.metrics = options, decoders, metrics

    def load(self, name: str, bundle: Bundle) -> LoadedBundle:
        """Loads the network and runs it once for every batch size that is compiled. Raises UserError."""
        options = self.options
        form: Form = default_form(bundle) if options.form == "auto" else options.form
        classify = load_classifier(bundle, form, options.num_threads, "logits")
        sizes = options.batch_sizes() if form == "stablehlo" else []
        for size in sizes or [options.max_batch_size, 1]:
            side = bundle.image_size
            logits = classify(np.zeros((size, side, side, 3), np.uint8))
            if logits.shape != (size, len(bundle.class_names)):
                expected = f"{size} rows of {len(bundle.class_names)} logits"
                raise UserError(
                    f"Bundle {bundle.path}", f"an output of shape {logits.shape}", expected, "Export it again."
                )
            title = f"Logits of bundle {bundle.path}, step {bundle.description.get('step')}"
            check_finite(title, logits, lambda: "Export an earlier checkpoint.")
        batcher = Batcher(
            classify,
            decoders=self.decoders,
            metrics=self.metrics.of_model(name),
            max_batch_size=options.max_batch_size,
            max_wait=options.max_wait_ms / 1000,
            max_queue=options.max_queue,
            batch_sizes=sizes,
        )
        return LoadedBundle(bundle, form, batcher, options.max_pixels)


def load_models(paths: Sequence[str], loader: Loader) -> dict[str, Model]:
    """The models by name, each the newest of its bundles that can be loaded. Raises UserError.

    paths: `NAME=PATH`, or PATH for the bundle's own name.
    """
    locations: dict[str, str] = {}
    for path in paths:
        name, equals, location = path.partition("=")
        if not name or not equals or "/" in name or (not storage.is_remote(path) and storage.exists(path)):
            name, location = "", path
        location = expand_home(location)
        bundle, _ = _newest_usable(location, open_bundle)
        name = name or bundle.name
        if not _NAME.fullmatch(name):
            expected = "English letters, digits, '.', '_' and '-'"
            raise UserError("Name of a model", repr(name), expected, f"Write NAME={location}.")
        if name in locations:
            got = f"{name!r} for both {locations[name]} and {location}"
            raise UserError("Names of models", got, "a name of its own for each", f"Write NAME={location}.")
        locations[name] = location
    models = {name: _load_model(name, location, loader) for name, location in locations.items()}
    for name, model in models.items():
        loader.metrics.watch(
            name,
            version=lambda model=model: model.current.bundle.version,
            queue=lambda model=model: model.current.batcher.queue_length,
        )
    return models


def _newest_usable(location: str, use: Callable[[str], T]) -> tuple[T, list[UserError]]:
    """The result of `use` for the newest bundle at `location` that it accepts, and its errors for newer ones.

    Raises its error for the newest bundle if it refuses them all, or its error for `location` if there are none.
    """
    errors: list[UserError] = []
    for path in bundles_in(location):
        try:
            return use(path), errors
        except UserError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return use(location), errors


def _load_model(name: str, location: str, loader: Loader) -> Model:
    loaded, errors = _newest_usable(location, lambda path: loader.load(name, open_bundle(path)))
    for error in errors:
        log.error("%s: version %d is served instead of a newer one. %s", name, loaded.bundle.version, error)
    return Model(name, location, loaded)


@contextlib.contextmanager
def reloading(models: Sequence[Model], loader: Loader) -> Iterator[None]:
    """Within the block, looks for newer bundles every `reload_seconds`; never if this is 0.

    This happens in a daemon thread, so that the program can end although storage may not answer for minutes.
    """
    is_over, seconds = threading.Event(), loader.options.reload_seconds

    def look() -> None:
        while not is_over.wait(seconds):
            for model in models:
                model.reload(loader)

    thread = threading.Thread(target=look, name="reload", daemon=True)
    if seconds:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        atexit.register(_exit_if_running, thread)


def _state_of(file: str) -> object:
    """A value that changes when the file's content or, on a disk, its permissions change."""
    return storage.file_state(file), None if storage.is_remote(file) else os.stat(file).st_ctime_ns  # noqa: PTH116


def _exit_if_running(thread: threading.Thread) -> None:
    """Ends the process if the thread is still running: Python cannot exit while XLA compiles in it."""
    if thread.is_alive():
        os._exit(0)
