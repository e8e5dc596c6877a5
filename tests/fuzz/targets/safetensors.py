"""Weights in the safetensors format: header, metadata, arrays."""

import contextlib
import tempfile
from pathlib import Path

import numpy as np

from resnet_tpu.checkpoints import torch_files
from resnet_tpu.errors import UserError

_FOLDER = tempfile.TemporaryDirectory()
_FILE = Path(_FOLDER.name) / "model.safetensors"


def one_input(data: bytes) -> None:
    """`data` as a file, as the header of one, and as the config.json beside it."""
    for content in (data, len(data).to_bytes(8, "little") + data + bytes(64)):
        _FILE.write_bytes(content)
        _read()
    (_FILE.parent / "config.json").write_bytes(data)
    _FILE.write_bytes(b"\x02" + bytes(7) + b"{}")
    _read()
    (_FILE.parent / "config.json").unlink()


def _read() -> None:
    """The arrays read must have the names, shapes and types in the outline."""
    outline, arrays = (_arrays_of(read) for read in (torch_files.read_outline, torch_files.read_state_dict))
    if outline is not None and arrays is not None:
        assert [(name, a.shape, a.dtype) for name, a in sorted(outline.items())] == [
            (name, a.shape, a.dtype) for name, a in sorted(arrays.items())
        ]
    if outline is not None:
        with contextlib.suppress(UserError):
            torch_files.options_of(outline, str(_FILE))


def _arrays_of(read) -> dict[str, np.ndarray] | None:
    try:
        return read(str(_FILE))
    except UserError:
        return None
