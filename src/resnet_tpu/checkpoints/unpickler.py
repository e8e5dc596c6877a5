"""Follows a pickle with arrays of PyTorch without running anything that it asks for.

A pickle may name any function to be called, and make objects that crash Python's own unpickler. Here its opcodes are
followed one by one, as PyTorch does for `weights_only`: they make text, numbers, lists, tuples and dictionaries with
plain keys. Stand-ins, which only record their arguments, replace the few names that weights need; every other name is
an error. The work is proportional to the file's size. Source: torch/_weights_only_unpickler.py of PyTorch 2.13.
"""

import io
import itertools
import pickle
import pickletools
from collections.abc import Callable
from typing import IO, Any, NamedTuple, cast

import jax.numpy as jnp
import numpy as np

from resnet_tpu.errors import UserError

_DTYPES = {
    "Float": np.float32, "Double": np.float64, "Half": np.float16, "BFloat16": jnp.bfloat16, "Long": np.int64,
    "Int": np.int32, "Short": np.int16, "Char": np.int8, "Byte": np.uint8, "Bool": np.bool_,
}  # fmt: skip
_MOST_WORK = 5_000_000  # opcodes and copied items of a pickle; the largest checkpoints have a few hundred thousand
_MOST_NUMBER_BYTES = 255  # of a whole number
_MOST_KEY = 2**60  # larger numbers can be chosen so that their hashes collide, which makes a dictionary very slow


class Storage(NamedTuple):
    """The elements under one or more arrays, as the pickle describes them, unchecked."""

    key: str
    dtype: np.dtype
    size: int


class Tensor(NamedTuple):
    """An array as the pickle describes it, unchecked."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements

    def __setstate__(self, state: object) -> None:
        """Ignores attributes of a tensor."""


class _Unused:
    """Stands for objects that training saves along with the weights."""

    __slots__ = ()


class _Function(NamedTuple):
    """Stands for a function or class that a pickle may call."""

    call: Callable[..., object]


class _StorageType(NamedTuple):
    """Stands for a class of storages."""

    dtype: np.dtype


def _rebuild_tensor(elements: Any, offset: Any, shape: Any, strides: Any, *_: object) -> Tensor:
    return Tensor(elements, offset, shape, strides)


def _first(data: object, *_: object) -> object:
    """Stands for `Parameter`: returns the tensor itself."""
    return data


def _mapping(pairs: object = (), *_: object) -> dict[str | int, object]:
    """Stands for `OrderedDict`: returns a dictionary."""
    if not isinstance(pairs, (list, tuple)) or not all(isinstance(p, (list, tuple)) and len(p) == 2 for p in pairs):
        raise pickle.UnpicklingError("a dictionary that is not made of pairs")
    return {key: value for key, value in pairs if _is_key(key)}


def _is_key(key: object) -> bool:
    """Whether a key can be that of weights or lead to them; entries with other keys are left out."""
    return type(key) is str or (type(key) is int and abs(key) < _MOST_KEY)


# options, best accuracies and the like
_UNUSED = (
    ("argparse", "Namespace"), ("torch", "Size"), ("torch", "device"), ("numpy", "dtype"),
    ("numpy.core.multiarray", "scalar"), ("numpy._core.multiarray", "scalar"), ("_codecs", "encode"),
    ("collections", "Counter"), *itertools.product(("pathlib", "pathlib._local"), ("PosixPath", "WindowsPath")),
    *itertools.product(("builtins", "__builtin__"), ("set", "frozenset", "complex", "bytearray")),
    *(("torch", kind) for kind in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8",
                                   "uint8", "bool")),
)  # fmt: skip

_STAND_INS: dict[tuple[str, str], _Function | _StorageType] = {
    ("collections", "OrderedDict"): _Function(_mapping),
    ("torch._utils", "_rebuild_tensor"): _Function(_rebuild_tensor),
    ("torch._utils", "_rebuild_tensor_v2"): _Function(_rebuild_tensor),
    ("torch._utils", "_rebuild_parameter"): _Function(_first),
    ("torch._utils", "_rebuild_parameter_with_state"): _Function(_first),
    ("torch.nn.parameter", "Parameter"): _Function(_first),
    **{("torch", f"{name}Storage"): _StorageType(np.dtype(dtype)) for name, dtype in _DTYPES.items()},
    **dict.fromkeys(_UNUSED, _Function(lambda *_: _Unused())),
}

_VALUES = frozenset((
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
))  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}


class _Bounded:
    """A file from which no more bytes are requested than it has, however many a pickle claims."""

    def __init__(self, file: IO[bytes]) -> None:
        at = file.tell()
        self._num_bytes = file.seek(0, io.SEEK_END)
        file.seek(at)
        self._file, self.readline, self.tell = file, file.readline, file.tell

    def read(self, size: int) -> bytes:
        """At most `size` bytes."""
        return self._file.read(min(size, self._num_bytes))


class Unpickler:
    """Follows the opcodes of a pickle without importing or calling anything that it names."""

    def __init__(self, path: str) -> None:
        self.storages: dict[str, Storage] = {}
        self._path = path
        self._stack: list[Any] = []
        self._marks: list[int] = []  # where on the stack
        self._memo: dict[int, Any] = {}
        self._work = 0

    def load(self, file: IO[bytes]) -> Any:
        """The next object in the file; reading stops right after it."""
        for opcode, argument, _ in pickletools.genops(cast("IO[bytes]", _Bounded(file))):
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
                self._drop_state()
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
            if _is_key(key):
                target[key] = value

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

    def _drop_state(self) -> None:
        """Drops the state of tensors and options, and a state_dict's `_metadata`."""
        self._stack.pop()
        if not isinstance(self._stack[-1], (Tensor, _Unused, dict)):
            raise pickle.UnpicklingError(f"a state for a {type(self._stack[-1]).__name__}")

    def _find_storage(self, pid: object) -> Storage:
        match pid:
            case ("storage", _StorageType(dtype), str(key), _location, int(size), *view) if size >= 0:
                if not any(part is not None for part in view):
                    return self.storages.setdefault(key, Storage(key, dtype, size))
        raise pickle.UnpicklingError("a reference to something other than a storage")
