"""Options: dataclass fields with a help text, a range and accepted types, and conversion of text to these types."""

import contextlib
import dataclasses
import math
import numbers
import os
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from resnet_tpu.errors import UserError, nearest, with_type
from resnet_tpu.options.lengths import Length, check_length

Rgb = tuple[float, float, float]
"""A value each for red, green and blue."""

FilePath = Annotated[str, "path"]
"""The path of a file or folder, on this machine or in a bucket; see `expand_home`."""

GivenPath = str | os.PathLike[str]
"""A path in any form that a Python program may pass."""

Number = TypeVar("Number", int, float)


def expand_home(path: GivenPath) -> str:
    """The path with a leading `~` or `~user` replaced by the home folder, as in a shell, and `file:///a` by `/a`.

    A file whose own name begins with `~` is written `./~...`; that becomes absolute, so that nothing expands it later.
    Raises UserError for `~` if the home folder is unknown, and for a value that cannot be a path.
    """
    if not isinstance(path, str | os.PathLike):  # programs may pass anything
        raise UserError("Path", with_type(path), "text or a pathlib.Path", "Give one of these.")
    path = os.fspath(path).removeprefix("file://")  # not every reader of files accepts such a URL
    try:
        _check_text(path)
    except ValueError:
        raise UserError("Path", repr(path), "text without zero bytes or incomplete characters", "Correct it.") from None
    expanded = os.path.expanduser(path)  # noqa: PTH111 - pathlib drops a trailing slash, and the `./` of `./~`
    if expanded == path and path.split("/", 1)[0] == "~":
        do = "Set HOME or write the whole path; ./~ is a folder of that name."
        raise UserError("Path", f"{path}, and no home folder is known", "a path that can be found", do)
    return os.path.abspath(path) if os.path.normpath(expanded).startswith("~") else expanded  # noqa: PTH100


def option(
    default: Any,
    text: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    is_repeatable: bool = False,
) -> Any:
    """A field with the help text and the range that the command line shows and `Option.convert` enforces."""
    metadata = {"help": text, "at_least": at_least, "at_most": at_most, "is_repeatable": is_repeatable}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Option:
    """An option with its types, range and help text, as the command line needs it."""

    name: str
    kinds: tuple[Any, ...]  # accepted types, tried in this order
    help: str = ""
    default: Any = None
    choices: tuple[str, ...] = ()
    group: str = ""  # the field of `Config` that holds it
    at_least: float | None = None
    at_most: float | None = None
    is_repeatable: bool = False  # if given several times on a command line, its values form a list

    @property
    def is_length(self) -> bool:
        """Whether the option is a `Length`."""
        return Length in self.kinds

    @property
    def is_path(self) -> bool:
        """Whether the option is a `FilePath`."""
        return FilePath in self.kinds

    def convert(self, value: Any) -> Any:
        """Converts a value from Python, YAML or the command line to this option's type. Raises UserError."""
        if value is None and self.default == "":
            return ""
        if value is None or (types.NoneType in self.kinds and str(value).lower() in ("none", "null", "")):
            if types.NoneType in self.kinds:
                return None
            raise self._wrong(value)
        if self.choices:
            if not isinstance(value, str) or value not in self.choices:
                raise self._wrong(value)
            return value
        for kind in self.kinds:
            try:
                converted = _PARSERS[kind](value)
            except (KeyError, ValueError, TypeError, OverflowError):
                continue
            if self.is_length:
                check_length(converted, what=self.name)
            if not isinstance(converted, str | tuple):
                self._check_range(converted, value)
            return converted
        raise self._wrong(value)

    def _check_range(self, number: float, got: Any) -> None:
        if self.at_least is not None and number < self.at_least:
            raise UserError(self.name, got, f"at least {self.at_least:g}", "Change the value.")
        if self.at_most is not None and number > self.at_most:
            raise UserError(self.name, got, f"at most {self.at_most:g}", "Change the value.")

    def _wrong(self, value: Any) -> UserError:
        do = f"Change the value.{nearest(str(value), self.choices)}"
        if isinstance(value, list | tuple) and value and str in self.kinds and not self.choices:
            do = f"Write it as one text: {','.join(map(str, value))!r}."
        return UserError(self.name, repr(value), self.expected(), do)

    def expected(self) -> str:
        """A description of the values that this option accepts."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        words = {
            bool: "true or false", int: "a whole number", float: "a number", str: "text", FilePath: "a path",
            Rgb: "three numbers such as 0.5,0.5,0.5", Length: "steps or epochs such as 15epochs",
            types.NoneType: "null",
        }  # fmt: skip
        return " or ".join(words[kind] for kind in self.kinds)


def _parse_bool(value: Any) -> bool:
    names = {"true": True, "t": True, "yes": True, "1": True, "false": False, "f": False, "no": False, "0": False}
    return names[str(value).lower()]


def _parse_int(value: Any) -> int:
    if isinstance(value, bool):
        raise ValueError(value)
    number = value
    if not isinstance(value, int):
        number = float(value)
        with contextlib.suppress(ValueError):  # plain digits: a float would round numbers beyond 2**53
            number = int(str(value))
    if number != int(number) or not -(2**63) <= number < 2**63:
        raise ValueError(value)
    return int(number)


def _parse_float(value: Any) -> float:
    if isinstance(value, bool) or not math.isfinite(float(value)):
        raise ValueError(value)
    return float(value)


def _check_text(text: str) -> None:
    """Raises ValueError for text that the system does not accept in file names or arguments."""
    os.fsencode(text)  # ValueError for unpaired surrogates
    if "\0" in text:
        raise ValueError(text)


def _parse_str(value: Any) -> str:
    # refuses bools, because YAML reads `model_name: no` as one
    if isinstance(value, bool) or not isinstance(value, str | os.PathLike | numbers.Number):
        raise TypeError(value)
    text = str(value)
    _check_text(text)
    return text


def _parse_path(value: Any) -> str:
    return expand_home(_parse_str(value))


def _parse_length(value: Any) -> Length:
    try:
        return _parse_int(value)
    except (ValueError, TypeError, OverflowError):
        return _parse_str(value)


def _parse_rgb(value: Any) -> Rgb:
    red, green, blue = (_parse_float(part) for part in (value.split(",") if isinstance(value, str) else value))
    return red, green, blue


_PARSERS: dict[Any, Callable[[Any], Any]] = {
    bool: _parse_bool, int: _parse_int, float: _parse_float, str: _parse_str, FilePath: _parse_path, Rgb: _parse_rgb,
    Length: _parse_length,
}  # fmt: skip


def options_of(owner: type, group: str = "") -> dict[str, Option]:
    """The options by name of the dataclass `owner`, whose fields are made by `option`."""
    hints = typing.get_type_hints(owner, include_extras=True)
    return {field.name: _describe(field, hints[field.name], group) for field in dataclasses.fields(owner)}


def convert_fields(owner: Any) -> None:
    """Converts the fields of a dataclass of options from any accepted type; for its `__post_init__`."""
    for name, found in options_of(type(owner)).items():
        object.__setattr__(owner, name, found.convert(getattr(owner, name)))  # the dataclass is frozen


def _describe(field: dataclasses.Field, hint: Any, group: str) -> Option:
    parts = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    choices = tuple(choice for part in parts if typing.get_origin(part) is Literal for choice in typing.get_args(part))
    kinds = tuple(str if typing.get_origin(part) is Literal else part for part in parts)
    return Option(field.name, kinds, default=field.default, choices=choices, group=group, **field.metadata)


def numbers_in(text: str, kind: Callable[[str], Number]) -> list[Number] | None:
    """The numbers in `text`, separated by commas; empty for empty text. None if it contains anything else."""
    try:
        return [kind(part) for part in text.split(",")] if text else []
    except ValueError:
        return None
