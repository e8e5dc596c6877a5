"""Arrays in files of `torch.save`, read without PyTorch and without running anything that a file asks for.

Such a file is a pickle with the arrays' bytes beside it: in a zip archive since PyTorch 1.6, before that one after the
other. A pickle may name any function to be called, and make objects that bring Python's own unpickler down. Here its
opcodes are followed one by one, as PyTorch does for `weights_only`: they make text, numbers, lists, tuples and
dictionaries with plain keys, and the few names that weights need are stand-ins, which only note what they are given;
every other name is an error. The work is in proportion to the file. Source: torch/serialization.py of PyTorch 2.13.
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
_MOST_WORK = 5_000_000  # opcodes and copied items of a pickle; the largest trainings have some hundred thousand
_MOST_NUMBER_BYTES = 255  # of a whole number
_MOST_KEY = 2**60  # Python does not scatter larger numbers: a dictionary with them can be made to take for ever
_MOST_DIMENSIONS = 64  # NumPy's limit
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


class _Unused:
    """Stands for what trainings save beside the weights."""

    __slots__ = ()


class _Function(NamedTuple):
    """Stands for a function or class that a pickle may call."""

    call: Callable[..., object]


class _StorageType(NamedTuple):
    """Stands for a class of storages."""

    dtype: np.dtype


def _rebuild_tensor(elements: Any, offset: Any, shape: Any, strides: Any, *_: object) -> _Tensor:
    return _Tensor(elements, offset, shape, strides)


def _first(data: object, *_: object) -> object:
    """What `Parameter` makes of a tensor: the tensor itself."""
    return data


def _mapping(pairs: object = (), *_: object) -> dict[str | int, object]:
    """What `OrderedDict` makes."""
    if not isinstance(pairs, (list, tuple)) or not all(isinstance(p, (list, tuple)) and len(p) == 2 for p in pairs):
        raise pickle.UnpicklingError("a dictionary that is not made of pairs")
    return {_checked_key(key): value for key, value in pairs}


def _checked_key(key: object) -> str | int:
    if type(key) is str or (type(key) is int and abs(key) < _MOST_KEY):
        return key
    raise pickle.UnpicklingError(f"a key that is neither text nor a whole number below 2^60, but {type(key).__name__}")


# options, best accuracies and the like
_UNUSED = (
    ("argparse", "Namespace"), ("pathlib", "PosixPath"), ("torch", "Size"), ("torch", "device"), ("torch", "float32"),
    ("torch", "float16"), ("torch", "bfloat16"), ("numpy", "dtype"), ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "scalar"), ("_codecs", "encode"), ("collections", "Counter"),
)  # fmt: skip

_STAND_INS: dict[tuple[str, str], _Function | _StorageType] = {
    ("collections", "OrderedDict"): _Function(_mapping),
    ("torch._utils", "_rebuild_tensor"): _Function(_rebuild_tensor),
    ("torch._utils", "_rebuild_tensor_v2"): _Function(_rebuild_tensor),
    ("torch._utils", "_rebuild_parameter"): _Function(_first),
    ("torch.nn.parameter", "Parameter"): _Function(_first),
    **{("torch", f"{name}Storage"): _StorageType(np.dtype(dtype)) for name, dtype in _DTYPES.items()},
    **dict.fromkeys(_UNUSED, _Function(lambda *_: _Unused())),
}

_VALUES = frozenset((
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
))  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}


class _Unpickler:
    """Follows the opcodes of a pickle without importing or calling anything that it names."""

    def __init__(self, path: str) -> None:
        self.storages: dict[str, _Storage] = {}
        self._path = path
        self._stack: list[Any] = []
        self._marks: list[int] = []  # where on the stack
        self._memo: dict[int, Any] = {}
        self._work = 0

    def load(self, file: IO[bytes]) -> Any:
        """The next object of the file, which is then read up to its end."""
        for opcode, argument, _ in pickletools.genops(file):
            self._spend(1)
            if opcode.name in _VALUES:
                if type(argument) is int and argument.bit_length() > 8 * _MOST_NUMBER_BYTES:
                    raise pickle.UnpicklingError(f"a number of {argument.bit_length()} bits")
                self._stack.append(argument)
            elif opcode.name in _CONSTANTS:
                self._stack.append(_CONSTANTS[opcode.name])
            else:
                self._follow(opcode.name, argument)
        (found,) = self._stack
        return found

    def _spend(self, work: int) -> None:
        self._work += work
        if self._work > _MOST_WORK:
            raise pickle.UnpicklingError(f"a pickle that makes more than {_MOST_WORK} objects")

    def _follow(self, opcode: str, argument: Any) -> None:
        stack = self._stack
        match opcode:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case "MARK":
                self._marks.append(len(stack))
            case "POP":
                stack.pop()
            case "POP_MARK":
                self._pop_marked()
            case "DUP":
                stack.append(stack[-1])
            case "STRING" | "BINSTRING" | "SHORT_BINSTRING":  # of Python 2
                stack.append(argument.encode("latin-1").decode())
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_DICT":
                stack.append({})
            case "TUPLE":
                stack.append(tuple(self._pop_marked()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(self._pop(int(opcode[-1]))))
            case "LIST":
                stack.append(self._pop_marked())
            case "DICT":
                stack.append({})
                self._set_items(self._pop_marked())
            case "APPEND":
                self._extend(self._pop(1))
            case "APPENDS":
                self._extend(self._pop_marked())
            case "SETITEM":
                self._set_items(self._pop(2))
            case "SETITEMS":
                self._set_items(self._pop_marked())
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = stack[-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(self._memo[argument])
            case "GLOBAL":
                stack.append(self._find(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                stack.append(self._find(*self._pop(2)))
            case "INST":
                found = self._find(*argument.split(" ", 1))
                stack.append(self._call(found, tuple(self._pop_marked())))
            case "REDUCE" | "NEWOBJ":
                stack.append(self._call(*self._pop(2)))
            case "BUILD":
                self._leave_state_aside()
            case "BINPERSID":
                stack.append(self._find_storage(stack.pop()))
            case _:
                raise pickle.UnpicklingError(f"a pickle with {opcode}, which weights do not need")

    def _pop(self, count: int) -> list[Any]:
        return [self._stack.pop() for _ in range(count)][::-1]

    def _pop_marked(self) -> list[Any]:
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def _extend(self, items: list[Any]) -> None:
        if type(target := self._stack[-1]) is not list:
            raise pickle.UnpicklingError(f"items for a {type(target).__name__}")
        target.extend(items)

    def _set_items(self, items: list[Any]) -> None:
        """Adds keys and values in turn to the dictionary on top of the stack."""
        if type(target := self._stack[-1]) is not dict or len(items) % 2:
            raise pickle.UnpicklingError(f"keys and values for a {type(target).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[_checked_key(key)] = value

    def _find(self, module: object, name: object) -> _Function | _StorageType:
        if type(module) is not str or type(name) is not str:
            raise pickle.UnpicklingError("a name that is not text")
        if (found := _STAND_INS.get((module, name))) is None:
            raise UserError(
                f"Weights {self._path}", f"a file that asks to run {module:.80}.{name:.80}", "nothing but weights",
                "Nothing in it was run. If it is yours, save model.state_dict() instead, as plain tensors.",
            )  # fmt: skip
        return found

    def _call(self, function: object, arguments: object) -> object:
        if not isinstance(function, _Function) or type(arguments) is not tuple:
            raise pickle.UnpicklingError(f"a call of a {type(function).__name__}")
        self._spend(sum(len(part) for part in arguments if isinstance(part, (list, tuple))))
        return function.call(*arguments)

    def _leave_state_aside(self) -> None:
        """Of tensors, of a state_dict's `_metadata`, of options."""
        self._stack.pop()
        if not isinstance(self._stack[-1], (_Tensor, _Unused, dict)):
            raise pickle.UnpicklingError(f"a state for a {type(self._stack[-1]).__name__}")

    def _find_storage(self, pid: object) -> _Storage:
        match pid:
            case ("storage", _StorageType(dtype), str(key), _location, int(size), *view) if size >= 0:
                if not any(part is not None for part in view):
                    return self.storages.setdefault(key, _Storage(key, dtype, size))
        raise pickle.UnpicklingError("a reference to something other than a storage")


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
        if len(set(names)) < len(names):
            raise ValueError("an archive with two entries of one name")
        folder = next((name.removesuffix("data.pkl") for name in names if name.endswith("/data.pkl")), None)
        if folder is None:
            raise ValueError("an archive without data.pkl")
        unpickler = _Unpickler(path)
        tensors = _find_tensors(unpickler.load(io.BytesIO(_read_record(archive, f"{folder}data.pkl"))), path)
        order = f"{folder}byteorder"
        swap = order in names and _read_record(archive, order) == b"big"
        wanted = {tensor.storage.key: f"{folder}data/{tensor.storage.key}" for tensor in tensors.values()}
        total, file_size = sum(archive.getinfo(name).file_size for name in wanted.values()), file.seek(0, io.SEEK_END)
        if total > file_size:  # as of entries that overlap
            raise ValueError(f"{total} bytes of arrays in a file of {file_size}")
        flat = {
            key: _flat(_read_record(archive, name), unpickler.storages[key], swap=swap) for key, name in wanted.items()
        }
    return {name: _view(name, tensor, flat[tensor.storage.key]) for name, tensor in tensors.items()}


def _read_record(archive: zipfile.ZipFile, name: str) -> bytes:
    record = archive.getinfo(name)
    if record.compress_type != zipfile.ZIP_STORED:  # torch.save never does, and a small file could become a huge one
        raise ValueError(f"compressed data in {name:.80}")
    return archive.read(record)


def _read_stream(file: IO[bytes], path: str) -> dict[str, np.ndarray]:
    """The format before zip: a few pickles, then each storage after its number of elements, all little-endian."""
    file_size = file.seek(0, io.SEEK_END)
    file.seek(0)
    for expected in (_MAGIC_NUMBER, _PROTOCOL):
        found = _Unpickler(path).load(file)
        if type(found) is not int or found != expected:
            raise ValueError("a pickle that torch.save did not write")
    _Unpickler(path).load(file)  # what machine it was written on
    unpickler = _Unpickler(path)
    tensors = _find_tensors(unpickler.load(file), path)
    wanted = {tensor.storage.key for tensor in tensors.values()}
    flat: dict[str, np.ndarray] = {}
    keys = _Unpickler(path).load(file)
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
        raise UserError(f"Weights {path}", "a PyTorch file without named arrays", "a state_dict", do)
    for name, tensor in tensors.items():
        if not _is_sound(tensor):
            raise ValueError(f"no array where {name:.80} is described")
    return tensors


def _is_sound(tensor: _Tensor) -> bool:
    """Whether the parts of a description are of their types, and numbers small enough to compute with."""
    storage, offset, shape, strides = tensor
    if not isinstance(storage, _Storage) or type(shape) is not tuple or type(strides) is not tuple:
        return False
    return len(shape) == len(strides) <= _MOST_DIMENSIONS and all(
        type(number) is int and 0 <= number < 2**63 for number in (offset, *shape, *strides)
    )


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
        expected = "a whole, undamaged torch.save file"
        raise UserError(f"Weights {path}", first_line(error), expected, "Copy or download it again.") from None
