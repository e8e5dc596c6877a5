"""Arrays in files of `torch.save`, read without PyTorch and without running anything that a file asks for.

Such a file is a pickle with the bytes of the arrays: since PyTorch 1.6 both are in a zip archive, before that they
simply follow each other. See `unpickler` for the pickle. Source: torch/serialization.py of PyTorch 2.13.
"""

import contextlib
import io
import logging
import math
import struct
import zipfile
from collections.abc import Iterator
from typing import IO

import numpy as np

from resnet_tpu import storage
from resnet_tpu.checkpoints.unpickler import Storage, Tensor, Unpickler
from resnet_tpu.errors import UserError, first_line

log = logging.getLogger(__name__)

_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_MOST_DIMENSIONS = 64  # NumPy's limit
# where PyTorch's examples, torchvision, timm and others put the weights; averages before the weights themselves
_WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model_state", "model", "net", "weights")


def read_pickle(path: str) -> dict[str, np.ndarray]:
    """All arrays of a state_dict that `torch.save` wrote, by name, read-only; it may be inside a training checkpoint.

    The zip format has checksums, and they are checked; the older one has none. Raises UserError when the file is
    damaged or of another kind, names a function that weights do not need, or has no arrays.
    """
    with storage.open_read(path) as file, _reading(path):
        zipped = file.read(2) == b"PK"
        file.seek(0)
        return _read_zip(file, path) if zipped else _read_stream(file, path)


def _read_zip(file: IO[bytes], path: str) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        if len(set(names)) < len(names):
            raise ValueError("an archive with two entries of one name")
        folder = next((name.removesuffix("data.pkl") for name in names if name.endswith("/data.pkl")), None)
        if folder is None:
            raise ValueError("an archive without data.pkl")
        unpickler = Unpickler(path)
        tensors = _find_tensors(unpickler.load(io.BytesIO(_read_record(archive, f"{folder}data.pkl"))), path)
        order = f"{folder}byteorder"
        swap = order in names and _read_record(archive, order) == b"big"
        wanted = {tensor.storage.key: f"{folder}data/{tensor.storage.key}" for tensor in tensors.values()}
        total, file_size = sum(archive.getinfo(name).file_size for name in wanted.values()), file.seek(0, io.SEEK_END)
        if total > file_size:  # for example, entries overlap
            raise ValueError(f"{total} bytes of arrays in a file of {file_size}")
        flat = {
            key: _flat(_read_record(archive, name), unpickler.storages[key], swap=swap) for key, name in wanted.items()
        }
    return {name: _view(name, tensor, flat[tensor.storage.key]) for name, tensor in tensors.items()}


def _read_record(archive: zipfile.ZipFile, name: str) -> bytes:
    record = archive.getinfo(name)
    if record.compress_type != zipfile.ZIP_STORED:  # torch.save never compresses, and a small file could become huge
        raise ValueError(f"compressed data in {name:.80}")
    return archive.read(record)


def _read_stream(file: IO[bytes], path: str) -> dict[str, np.ndarray]:
    """The format before zip: a few pickles, then each storage, preceded by its number of elements; little-endian."""
    file_size = file.seek(0, io.SEEK_END)
    file.seek(0)
    for expected in (_MAGIC_NUMBER, _PROTOCOL):
        found = Unpickler(path).load(file)
        if type(found) is not int or found != expected:
            raise ValueError("a pickle that torch.save did not write")
    Unpickler(path).load(file)  # the kind of machine that wrote it
    unpickler = Unpickler(path)
    tensors = _find_tensors(unpickler.load(file), path)
    wanted = {tensor.storage.key for tensor in tensors.values()}
    flat: dict[str, np.ndarray] = {}
    keys = Unpickler(path).load(file)
    if type(keys) is not list or not all(type(key) is str for key in keys):
        raise ValueError("storages that have no names")
    for key in keys:
        found = unpickler.storages[key]
        (size,) = struct.unpack("<q", file.read(8))
        if size != found.size:
            raise ValueError(f"{size} elements in storage {key:.40} instead of {found.size}")
        num_bytes = size * found.dtype.itemsize
        if file.tell() + num_bytes > file_size:
            raise ValueError(f"a file that ends {file.tell() + num_bytes - file_size} bytes too early")
        if key in wanted:
            flat[key] = _flat(file.read(num_bytes), found, swap=False)
        else:
            file.seek(num_bytes, io.SEEK_CUR)
    if missing := wanted - flat.keys():
        raise ValueError(f"no storage {min(missing):.40}")
    return {name: _view(name, tensor, flat[tensor.storage.key]) for name, tensor in tensors.items()}


def _find_tensors(content: object, path: str) -> dict[str, Tensor]:
    """The arrays of a state_dict, which may be below another name in a training checkpoint."""
    if isinstance(content, dict):
        wrapper = next((key for key in _WRAPPERS if content.get(key) and isinstance(content[key], dict)), None)
        if wrapper:
            log.info("%s: the weights are those under '%s'.", path, wrapper)
            content = content[wrapper]
    items = content.items() if isinstance(content, dict) else ()
    tensors = {name: value for name, value in items if isinstance(name, str) and isinstance(value, Tensor)}
    if not tensors:
        do = "Save model.state_dict() with torch.save."
        raise UserError(f"Weights {path}", "a PyTorch file without named arrays", "a state_dict", do)
    for name, tensor in tensors.items():
        if not _is_sound(tensor):
            raise ValueError(f"no array where {name:.80} is described")
    return tensors


def _is_sound(tensor: Tensor) -> bool:
    """Whether the parts of a description have the right types, and numbers are small enough to compute with."""
    storage, offset, shape, strides = tensor
    if not isinstance(storage, Storage) or type(shape) is not tuple or type(strides) is not tuple:
        return False
    return len(shape) == len(strides) <= _MOST_DIMENSIONS and all(
        type(number) is int and 0 <= number < 2**63 for number in (offset, *shape, *strides)
    )


def _flat(data: bytes, found: Storage, *, swap: bool) -> np.ndarray:
    """The elements of a storage, read-only [size]."""
    num_bytes = found.size * found.dtype.itemsize
    if len(data) != num_bytes:
        raise ValueError(f"{len(data)} bytes in storage {found.key:.40} instead of {num_bytes}")
    if swap:
        return np.frombuffer(data, f"u{found.dtype.itemsize}").byteswap().view(found.dtype)
    return np.frombuffer(data, found.dtype)


def _view(name: str, tensor: Tensor, flat: np.ndarray) -> np.ndarray:
    """The array, as a view of its storage's elements."""
    shape, strides = tensor.shape, tensor.strides
    if 0 in shape:
        return np.zeros(shape, flat.dtype)
    last = tensor.offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if last >= flat.size or math.prod(shape) > flat.size:  # the second: one element repeated endlessly
        raise ValueError(f"shape {list(shape)} of {name:.80} in a storage of {flat.size} elements")
    steps = [stride * flat.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(flat[tensor.offset :], shape, steps, writeable=False)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    """Turns the errors that a damaged file raises into UserError."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001  pickle, zipfile and NumPy raise errors of their own, OSError among them
        expected = "a whole, undamaged torch.save file"
        raise UserError(f"Weights {path}", first_line(error), expected, "Copy or download it again.") from None
