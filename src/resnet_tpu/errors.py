"""Errors that the user can fix: what failed, what was given, what is accepted, and what to do next."""

import copy
import difflib
import errno
from collections.abc import Iterable, Sequence
from typing import Any, Self

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


class UserError(Exception):
    """A wrong input, file or setting. Shown as one message without a traceback, exit code 2.

    The message is `<what>: got <got>, expected <expected>. <do>`; of a long <got> only the beginning and end appear.
    """

    exit_code = 2

    def __init__(self, what: str, got: object, expected: str, do: str) -> None:
        self.what, self.got, self.expected, self.do = what, got, expected, do
        super().__init__(visible(f"{self.finding} {do}"))

    @property
    def finding(self) -> str:
        """The message without its advice."""
        return f"{self.what}: got {_shorten(str(self.got)) or 'nothing'}, expected {self.expected}."

    def but(self, *, what: str | None = None, do: str | None = None) -> Self:
        """The same error, with another subject or other advice."""
        error = copy.copy(self)
        UserError.__init__(error, what or self.what, self.got, self.expected, do or self.do)
        return error

    def __reduce__(self) -> tuple[Any, ...]:  # so that pickle can rebuild it on the other side of a process pool
        return type(self), (self.what, self.got, self.expected, self.do)


class LostProcessError(UserError):
    """Another process of the group ended or cannot be reached. Exit code 3: a restart helps."""

    exit_code = 3


class NonFiniteError(UserError):
    """A computed value is not finite, so there is no valid result, and none is written."""


def check_kind(what: str, value: object, kind: type, do: str) -> None:
    """Raises UserError unless `value` is a `kind`. The usual mistake is to pass a path instead of the opened object."""
    if not isinstance(value, kind):
        raise UserError(what, with_type(value), f"type {kind.__name__}", do)


def with_type(value: object) -> str:
    """A value of an unexpected type, on one line: `3 of type int`."""
    return f"{' '.join(repr(value).split())} of type {type(value).__name__}"


def is_lack_of_memory(error: Exception) -> bool:
    """Whether the error means that the machine or a device has too little memory."""
    in_jax = type(error).__name__ == "JaxRuntimeError" and "RESOURCE_EXHAUSTED" in str(error)  # importing JAX is slow
    return in_jax or isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)


def missing_extra(feature: str, package: str, extra: str) -> UserError:
    """The error for an optional package that is not installed, naming the extra that installs it."""
    return UserError(feature, f"no package {package!r}", "it to be installed", f"pip install 'resnet-tpu[{extra}]'.")


def _shorten(text: str) -> str:
    """`text`, or its beginning and its end if it is longer than 500 characters."""
    return text if len(text) <= 500 else f"{text[:250]} ... {text[-250:]}"


def first_line(error: BaseException) -> str:
    """A library's error as one line, its type if it says nothing: at most 300 characters, without its full stop."""
    line = next(filter(None, str(error).splitlines()), type(error).__name__)[:300]
    return line if line.endswith("..") else line.removesuffix(".")


def describe(error: BaseException) -> str:
    """An error on one line: the message of a `UserError`; of any other error its type and `first_line`."""
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {first_line(error)}"


def visible(text: str) -> str:
    r"""`text` with its control characters, except tabs and line ends, as `\x1b`: a terminal would obey them."""
    return text.translate(_CONTROLS)


def listed(names: Sequence[str], most: int) -> str:
    """'a, b, ...': the names, or the first `most` of them."""
    return ", ".join([*names[:most], *(["..."] if len(names) > most else [])])


def nearest(name: object, known: Iterable[str], count: int = 3) -> str:
    """' Did you mean a, b?' for the known names that look like `name`, or an empty string."""
    close = difflib.get_close_matches(str(name)[:100], list(known), n=count, cutoff=0.6)
    return f" Did you mean {', '.join(close)}?" if close else ""
