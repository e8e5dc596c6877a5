"""Arrays in files of `torch.save`, read without PyTorch and without running anything that a file asks for.

Such a file is a pickle with the arrays' bytes beside it: in a zip archive since PyTorch 1.6, before that one after the
other. A pickle may name any function to be called. Here it gets stand-ins for the few names that weights need, which
only note what they are given; every other name is an error. Source: torch/serialization.py of PyTorch 2.13.
"""

import contextlib
import io
import logging
import math
import pickle
import pickletools
import struct
import zipfile
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from resnet_tpu import storage
from resnet_tpu.errors import UserError, first_line

log = logging.getLogger(__name__)

_DTYPES = {
    "Float": np.float32, "Double": np.float64, "Half": np.float16, "BFloat16": jnp.bfloat16, "Long": np.int64,
    "Int": np.int32, "Short": np.int16, "Char": np.int8, "Byte": np.uint8, "Bool": np.bool_,
}  # fmt: skip
_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
# where trainings of PyTorch's examples, torchvision, timm and others put the weights; an average before what it is of
_WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model", "net")


class _Storage(NamedTuple):
    """The elements under one or more arrays, as the pickle describes them, unchecked."""

    key: str
    dtype: np.dtype
    size: int


class _Tensor(NamedTuple):
    """An array as the pickle describes it, unchecked."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements

    def __setstate__(self, state: object) -> None:
        """Leaves attributes of a tensor aside."""


class _Mapping(dict[Any, Any]):
    """Stands for `OrderedDict`."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        """Leaves attributes such as a state_dict's `_metadata` aside."""


class _Parameter:
    """Stands for the class of that name; what it makes is the tensor itself."""

    __slots__ = ()

    def __new__(cls, data: object, *_: object) -> Any:
        return data

    def __setstate__(self, state: object) -> None:
        """There so that a pickle cannot set attributes of the class."""


class _Unused:
    """Stands for what trainings save beside the weights."""

    __slots__ = ()

    def __new__(cls, *_: object) -> "_Unused":
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        """Leaves the attributes aside."""


class _StandIn:
    """A function that a pickle may call, and cannot change."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def __call__(self, *arguments: object) -> object:
        return self._function(*arguments)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("a function that is to be changed")


class _StorageType:
    """Stands for a class of storages."""

    __slots__ = ("dtype",)

    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("a type that is to be changed")


def _rebuild_tensor(elements: Any, offset: Any, shape: Any, strides: Any, *_: object) -> _Tensor:
    return _Tensor(elements, offset, shape, strides)


def _rebuild_parameter(data: object, *_: object) -> object:
    return data


# options, best accuracies and the like
_UNUSED = (
    ("argparse", "Namespace"), ("pathlib", "PosixPath"), ("torch", "Size"), ("torch", "device"), ("torch", "float32"),
    ("torch", "float16"), ("torch", "bfloat16"), ("numpy", "dtype"), ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "scalar"), ("_codecs", "encode"),
)  # fmt: skip

_STAND_INS: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): _StandIn(_Mapping),
    ("torch._utils", "_rebuild_tensor"): _StandIn(_rebuild_tensor),
    ("torch._utils", "_rebuild_tensor_v2"): _StandIn(_rebuild_tensor),
    ("torch._utils", "_rebuild_parameter"): _StandIn(_rebuild_parameter),
    ("torch.nn.parameter", "Parameter"): _Parameter,
    **{("torch", f"{name}Storage"): _StorageType(dtype) for name, dtype in _DTYPES.items()},
    **dict.fromkeys(_UNUSED, _Unused),
}


class _Unpickler(pickle.Unpickler):
    """Reads a pickle without importing or calling anything that it names."""

    def __init__(self, data: bytes, path: str) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")
        self.storages: dict[str, _Storage] = {}
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        if (found := _STAND_INS.get((module, name))) is None:
            raise UserError(
                f"Weights {self._path}", f"a file that asks to run {module}.{name}", "nothing but weights",
                "Nothing of it was run. If it is yours, save model.state_dict() instead, as plain tensors.",
            )  # fmt: skip
        return found

    def persistent_load(self, pid: Any) -> _Storage:
        kind, storage_type, key, _location, size, *view = pid
        whole = kind == "storage" and not any(view) and type(key) is str and type(size) is int and size >= 0
        if not whole or not isinstance(storage_type, _StorageType):
            raise pickle.UnpicklingError("a reference to something else than a storage")
        return self.storages.setdefault(key, _Storage(key, storage_type.dtype, size))


def read_pickle(path: str) -> dict[str, np.ndarray]:
    """All arrays of a state_dict that `torch.save` wrote, by name, read-only; also one inside a training's checkpoint.

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
        folder = next((name.removesuffix("data.pkl") for name in names if name.endswith("/data.pkl")), None)
        if folder is None:
            raise ValueError("an archive without data.pkl")
        unpickler, content = _unpickle(io.BytesIO(_read_record(archive, f"{folder}data.pkl")), path)
        tensors = _find_tensors(content, path)
        order = f"{folder}byteorder"
        swap = order in names and _read_record(archive, order) == b"big"
        flat: dict[str, np.ndarray] = {}
        for key in {tensor.storage.key for tensor in tensors.values()}:
            data = _read_record(archive, f"{folder}data/{key}")
            flat[key] = _flat(data, unpickler.storages[key], swap=swap)
    return {name: _view(name, tensor, flat[tensor.storage.key]) for name, tensor in tensors.items()}


def _read_record(archive: zipfile.ZipFile, name: str) -> bytes:
    record = archive.getinfo(name)
    if record.compress_type != zipfile.ZIP_STORED:  # torch.save never does, and a small file could become a huge one
        raise ValueError(f"compressed data in {name}")
    return archive.read(record)


def _read_stream(file: IO[bytes], path: str) -> dict[str, np.ndarray]:
    """The format before zip: a few pickles, then each storage after its number of elements, all little-endian."""
    file_size = file.seek(0, io.SEEK_END)
    file.seek(0)
    if (_unpickle(file, path)[1], _unpickle(file, path)[1]) != (_MAGIC_NUMBER, _PROTOCOL):
        raise ValueError("a pickle that is not torch.save's")
    _unpickle(file, path)  # what machine it was written on
    unpickler, content = _unpickle(file, path)
    tensors = _find_tensors(content, path)
    wanted = {tensor.storage.key for tensor in tensors.values()}
    flat: dict[str, np.ndarray] = {}
    for key in _unpickle(file, path)[1]:
        found = unpickler.storages[key]
        (size,) = struct.unpack("<q", file.read(8))
        if size != found.size:
            raise ValueError(f"{size} elements in storage {key:.40} instead of {found.size}")
        num_bytes = size * found.dtype.itemsize
        if file.tell() + num_bytes > file_size:
            raise ValueError(f"an end {file.tell() + num_bytes - file_size} bytes too early")
        if key in wanted:
            flat[key] = _flat(file.read(num_bytes), found, swap=False)
        else:
            file.seek(num_bytes, io.SEEK_CUR)
    if missing := wanted - flat.keys():
        raise ValueError(f"no storage {min(missing):.40}")
    return {name: _view(name, tensor, flat[tensor.storage.key]) for name, tensor in tensors.items()}


def _unpickle(file: IO[bytes], path: str) -> tuple[_Unpickler, Any]:
    """The next object of the file, which is then read up to its end, and who read it."""
    start = file.tell()
    for opcode, argument, position in pickletools.genops(file):
        # the list of objects that the unpickler keeps is as long as the largest index, whatever it is
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > (position or 0):
            raise pickle.UnpicklingError(f"an object numbered {argument}")
    end = file.tell()
    file.seek(start)
    unpickler = _Unpickler(file.read(end - start), path)
    return unpickler, unpickler.load()


def _find_tensors(content: object, path: str) -> dict[str, _Tensor]:
    """The arrays of a state_dict, which may lie below another name in a checkpoint of a training."""
    if isinstance(content, dict):
        wrapper = next((key for key in _WRAPPERS if content.get(key) and isinstance(content[key], dict)), None)
        if wrapper:
            log.info("%s: the weights are those under '%s'.", path, wrapper)
            content = content[wrapper]
    items = content.items() if isinstance(content, dict) else ()
    tensors = {name: value for name, value in items if isinstance(name, str) and isinstance(value, _Tensor)}
    if not tensors:
        do = "Save model.state_dict() with torch.save."
        raise UserError(f"Weights {path}", "a file of PyTorch's without arrays by name", "a state_dict", do)
    for name, tensor in tensors.items():
        numbers = (tensor.offset, *tensor.shape, *tensor.strides)
        if not isinstance(tensor.storage, _Storage) or any(type(number) is not int or number < 0 for number in numbers):
            raise ValueError(f"no array where {name:.80} is described")
    return tensors


def _flat(data: bytes, found: _Storage, *, swap: bool) -> np.ndarray:
    """The elements of a storage, read-only [size]."""
    num_bytes = found.size * found.dtype.itemsize
    if len(data) != num_bytes:
        raise ValueError(f"{len(data)} bytes in storage {found.key:.40} instead of {num_bytes}")
    if swap:
        return np.frombuffer(data, f"u{found.dtype.itemsize}").byteswap().view(found.dtype)
    return np.frombuffer(data, found.dtype)


def _view(name: str, tensor: _Tensor, flat: np.ndarray) -> np.ndarray:
    """The part of its storage that an array is."""
    shape, strides = tensor.shape, tensor.strides
    if 0 in shape:
        return np.zeros(shape, flat.dtype)
    last = tensor.offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if last >= flat.size or math.prod(shape) > flat.size:  # the second: one element repeated without end
        raise ValueError(f"shape {list(shape)} of {name:.80} in a storage of {flat.size} elements")
    steps = [stride * flat.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(flat[tensor.offset :], shape, steps, writeable=False)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    """Turns whatever a damaged file raises into UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001  pickle, zipfile and NumPy each raise their own, OSError among it
        expected = "a whole, undamaged file of torch.save"
        raise UserError(f"Weights {path}", first_line(error), expected, "Copy or download it again.") from None
