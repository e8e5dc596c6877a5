"""The classes of records that come without a list of classes, counted once from their labels."""

import functools
import logging
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from resnet_tpu import storage
from resnet_tpu.data.manifest import LABELS, MANIFEST, read_class_names
from resnet_tpu.data.records.example import read_label
from resnet_tpu.data.records.index import keep, kept_copies
from resnet_tpu.data.records.tfrecord import load_index, open_records, state_of
from resnet_tpu.data.sources.labels import CLASSES_WITH_BACKGROUND, DEFAULT_CLASSES, UNKNOWN_LABEL
from resnet_tpu.errors import UserError, listed
from resnet_tpu.options.config import DataConfig
from resnet_tpu.storage import checked_json

log = logging.getLogger(__name__)

_KEPT = "classes"
_MOST_REMOTE_BYTES = 1_000_000_000
"""The most that is read from a bucket to count classes: there, a label cannot be read without its image."""

_FILES_AT_ONCE = 16
_SHOWN_CLASSES = 5

States = Mapping[str, storage.FileState]
"""The state of each file, by its path."""

Files = Mapping[str, storage.FileState | None]
"""Files by path, with the state of each if it is known already."""


class Classes(NamedTuple):
    """Class names by label from 1, None unless the records name every class; and the number of classes."""

    names: list[str] | None
    number: int


def find_classes(data: DataConfig, files: Files) -> Classes | None:
    """The classes of TFRecords: as named in their folder, else counted; None if the options make counting unnecessary.

    files: those of all splits.
    """
    if names := read_class_names(data.data_dir):  # an empty file names none
        return Classes(names, len(names))
    if data.num_label_classes or data.lth_use_random_label:
        return None
    return count_classes(data.data_dir, files)


def count_classes(data_dir: str, files: Files) -> Classes | None:
    """The classes of all records of a data set, found by one pass over their labels the first time. Logs the result.

    The result is kept with the indexes of the files. None when the labels do not tell: some number from 1 to the
    highest is missing, as in a part of ImageNet, or there are none, or reading them would take too long.
    files: those of all splits. Raises UserError for one that cannot be read.
    """
    states = {path: state or state_of(path) for path, state in files.items()}
    num_bytes = sum(state.size for state in states.values())
    kept_file = storage.join(data_dir, _KEPT)
    names = _read(kept_file, states)
    if names is None and storage.is_remote(data_dir) and num_bytes > _MOST_REMOTE_BYTES:
        _warn_of_default(
            data_dir, f"its labels are not counted, as that would read all of its {num_bytes / 1e9:.1f} GB"
        )
        return None
    if names is None:
        names = _count(data_dir, states)
        content = {"files": _by_file_name(states), "names": {str(label): name for label, name in names.items()}}
        keep(kept_file, ".json", checked_json.dumps(content).encode())
    number = max(names, default=0)
    if number < 2 or min(names) < 1 or len(names) < number:
        span = f"the labels of its records, {len(names)} from {min(names)} to {number}," if names else ""
        _warn_of_default(data_dir, f"{span} do not tell how many there are" if span else "its records have no labels")
        return None
    ordered = [names[label] for label in range(1, number + 1)]
    present = [name for name in ordered if name]
    classes = Classes(present if len(present) == number else None, number)
    if classes.names is None and number == CLASSES_WITH_BACKGROUND:
        do = f"Write {LABELS} with a class name per line: num_label_classes={number} means ImageNet's, from 0 on."
        raise UserError(f"Classes of {data_dir}", f"{number}, without names", "names for them", do)
    suffix = f" ({listed(classes.names, _SHOWN_CLASSES)})" if classes.names else ""
    _log_once(logging.INFO, f"{data_dir}: {number} classes, by the labels of its records{suffix}")
    return classes


def _count(data_dir: str, states: States) -> dict[int, str]:
    """The labels in the records, with the name of each; the name is empty if a label has none or several."""
    log.info("Counting the classes in %s, once: it has no %s and no %s.", data_dir, MANIFEST, LABELS)
    names: dict[int, str] = {}
    lock = threading.Lock()

    def count(path: str) -> None:
        names_by_label: dict[int, set[str]] = {}
        index = load_index(path, on_bad=lambda _: None, state=states[path])
        with open_records(path) as file:
            for start, length in index.tolist():
                try:
                    label, name = read_label(file, start, length)
                except UserError:  # training will find it, and say where it is
                    continue
                if label != UNKNOWN_LABEL:
                    names_by_label.setdefault(label, set()).add(name)
        with lock:
            for label, label_names in names_by_label.items():
                name = label_names.pop() if len(label_names) == 1 else ""
                names[label] = name if names.get(label, name) == name else ""

    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        list(pool.map(count, states))
    return names


def _read(kept_file: str, states: States) -> dict[int, str] | None:
    """The classes counted earlier for these files in this state; None if there are none."""
    for _, data in kept_copies(kept_file, ".json"):
        try:
            kept = checked_json.loads(data.decode())
            if kept["files"] == _by_file_name(states):
                return {int(label): str(name) for label, name in kept["names"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return None


def _by_file_name(states: States) -> dict[str, Any]:
    """The states by file name alone, as JSON stores them: a folder may be moved."""
    return {path.rpartition("/")[2]: list(state) for path, state in states.items()}


def _warn_of_default(data_dir: str, why: str) -> None:
    _log_once(
        logging.WARNING,
        f"{data_dir} has no {MANIFEST} and no {LABELS}, and {why}: the {DEFAULT_CLASSES} classes of ImageNet are "
        f"assumed. If that is wrong, set num_label_classes, or write {LABELS} with a class name per line.",
    )


@functools.cache
def _log_once(level: int, text: str) -> None:
    """Logs a message once, however many splits are opened."""
    log.log(level, "%s", text)
