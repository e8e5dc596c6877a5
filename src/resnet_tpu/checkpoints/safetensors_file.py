"""The `.safetensors` format: named arrays, and notes on them in files of ours.

The format has no checksums. Files written here have one of their whole content; in others, only the header and the
sizes are checked, so a flipped bit in an array goes unnoticed.
"""

import json
from collections.abc import Mapping
from typing import Any

import google_crc32c
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from resnet_tpu import storage
from resnet_tpu.checkpoints.foreign import stand_in
from resnet_tpu.errors import UserError
from resnet_tpu.storage import checked_json

SUFFIX = ".safetensors"
"""Ending of the names of such files."""

_OWN_KEY, _CHECKSUM_KEY = "resnet_tpu", "resnet_tpu_crc32c"  # in the metadata of our files
_DO = "Copy or download it again."
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library

# by safetensors' names; its own reader for NumPy does not know bfloat16
_DTYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16, "I64": np.int64, "I32": np.int32,
    "I16": np.int16, "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip


def read_arrays(path: str) -> dict[str, np.ndarray]:
    """All arrays of a file, by name, read-only. Raises UserError when it is damaged or has a type that NumPy lacks."""
    with storage.open_read(path) as file:
        data = file.read()
    try:
        entries: list[tuple[str, dict[str, Any]]] = safetensors.deserialize(data)
    except (safetensors.SafetensorError, ValueError) as error:
        raise UserError(f"Weights {path}", error, "a whole, undamaged .safetensors file", _DO) from None
    for name, entry in entries:
        if entry["dtype"] not in _DTYPES:
            raise UserError(f"Weights {path}, {name}", f"type {entry['dtype']}", f"one of {', '.join(_DTYPES)}", _DO)
    arrays = {name: _array(f"Weights {path}, {name}", entry) for name, entry in entries}
    metadata = parse_json(data[8 : 8 + int.from_bytes(data[:8], "little")], path).get("__metadata__") or {}
    expected = metadata.get(_CHECKSUM_KEY)
    if expected is not None and (got := _checksum(metadata.get(_OWN_KEY), arrays)) != expected:
        raise UserError(f"Weights {path}", f"content with checksum {got}", f"{expected}, as when it was written", _DO)
    return arrays


def _array(what: str, entry: Mapping[str, Any]) -> np.ndarray:
    try:
        return np.frombuffer(entry["data"], _DTYPES[entry["dtype"]]).reshape(entry["shape"])
    except ValueError as error:  # more dimensions than NumPy has, or a 0 among dimensions too large for it
        raise UserError(what, f"shape {entry['shape']}", f"a shape that NumPy has ({error})", _DO) from None


def read_outline(path: str) -> dict[str, np.ndarray]:
    """Like `read_arrays`, but returns zeros that take no memory: only the header is read."""
    num_bytes = storage.file_state(path).size
    size = int.from_bytes(storage.read_range(path, 0, 8), "little")
    header = parse_json(storage.read_range(path, 8, 8 + size), path) if size <= _MAX_HEADER_BYTES else {}
    header.pop("__metadata__", None)
    try:
        expected = 8 + size + max((entry["data_offsets"][1] for entry in header.values()), default=0)
        arrays = {name: stand_in(entry["shape"], _DTYPES[entry["dtype"]]) for name, entry in header.items()}
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        got = f"a header that cannot be read ({error!r})"
        raise UserError(f"Weights {path}", got, "a whole, undamaged .safetensors file", _DO) from None
    if num_bytes != expected:
        raise UserError(f"Weights {path}", f"{num_bytes} bytes", f"{expected}, as its header says", _DO)
    return arrays


def read_own_notes(path: str) -> dict[str, Any] | None:
    """The notes that `write` put into a file; None for a file without notes, whatever its format."""
    start = storage.read_range(path, 0, 9)
    size = int.from_bytes(start[:8], "little")
    if start[8:] != b"{" or size > _MAX_HEADER_BYTES:
        return None
    metadata = parse_json(storage.read_range(path, 8, 8 + size), path).get("__metadata__")
    text = metadata.get(_OWN_KEY) if isinstance(metadata, dict) else None
    return parse_json(text, path) if isinstance(text, str) else None


def write(path: str, arrays: Mapping[str, np.ndarray], notes: Mapping[str, Any]) -> None:
    """Writes the arrays, which must be contiguous, and notes as JSON, whole or not at all; makes a missing folder."""
    text = json.dumps(notes)
    metadata = {"format": "pt", _OWN_KEY: text, _CHECKSUM_KEY: _checksum(text, arrays)}
    data = safetensors.numpy.save(dict(arrays), metadata)
    storage.make_dir(storage.parent_of(path))
    storage.write_bytes(path, data)


def _checksum(notes: str | None, arrays: Mapping[str, np.ndarray]) -> str:
    """The checksum of names, types, shapes and values, and of the notes on them."""
    rows = [(name, array.dtype.str, array.shape, google_crc32c.value(array)) for name, array in sorted(arrays.items())]
    return f"{google_crc32c.value(repr((notes, rows)).encode()):08x}"


def parse_json(text: str | bytes, path: str) -> dict[str, Any]:
    """The object in a JSON text of the file at `path`; empty for other values. Raises UserError if it is not JSON."""
    try:
        found = checked_json.parse(text)
    except ValueError as error:
        raise UserError(f"Description in {path}", error, "JSON", "Fix or remove it.") from None
    return found if isinstance(found, dict) else {}
