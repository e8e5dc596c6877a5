"""Reads options from YAML files and override strings, and merges them layer by layer."""

import contextlib
import io
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from resnet_tpu import storage
from resnet_tpu.errors import UserError
from resnet_tpu.options import plain_yaml
from resnet_tpu.options.config import OF_ONE_START, Config
from resnet_tpu.options.fields import expand_home

_PAIR = re.compile(  # possessive: blanks that two parts can match would cause backtracking
    r"""\s*+([A-Za-z][\w.]*+)\s*+=\s*+("[^"]*+"|'[^']*+'|\[[^\[\]]*+\]|[^,\[]*+)\s*+(?:,|$)""",
)


@dataclass(frozen=True)
class Layer:
    """Values of options by flat name, and their origin, such as `command line` or `flowers.yaml`."""

    origin: str
    values: Mapping[str, Any]


def merge(base: Config, layers: Iterable[Layer]) -> Config:
    """`base` overridden by the layers, of which later ones take precedence.

    Raises UserError, naming the layer, for an unknown option or an invalid value.
    """
    for layer in layers:
        try:
            base = base.replace(**layer.values)
        except UserError as error:
            raise error.but(what=f"{error.what} ({layer.origin})") from None
    return base


def read_yaml(path: str) -> dict[str, Any]:
    """The options in a YAML file: one flat mapping, like the config.json of a run.

    Raises UserError if the file is missing or not a mapping.
    """
    path = expand_home(path)
    if not storage.exists(path) or storage.is_dir(path):
        got = f"{path}, a folder" if path and storage.exists(path) else path or "no name"
        raise UserError("YAML file", got, "an existing file", "Check the path.")
    try:
        with storage.open_read(path) as file, io.TextIOWrapper(file, "utf-8") as text:
            options = _parse_mapping(text.read(plain_yaml.MAX_CHARACTERS + 1), path)
    except UnicodeDecodeError:
        raise UserError("YAML file", f"{path}, which is not text", "UTF-8 text", "Check the path.") from None
    left_out = ("version", *OF_ONE_START) if "version" in options else ()  # it is the config.json of a run
    return {name: value for name, value in options.items() if name not in left_out}


def to_yaml(config: Config, given: Collection[str] = ()) -> str:
    """The options that differ from their defaults or are named in `given`, as text for `read_yaml`.

    Those in `OF_ONE_START` are left out.
    """
    names = {*config.changed(), *given} - {*OF_ONE_START}
    return plain_yaml.dump({name: value for name, value in config.flat().items() if name in names})


def parse_overrides(text: str) -> dict[str, Any]:
    """The options in an override string: `a=1,b=x`, or YAML/JSON `{"a": 1}`, or the path of a YAML file.

    This is the grammar of the original's `--params_override`. Values of the first form stay text unless quoted or
    lists; the option determines their type. Raises UserError if the text is none of the three.
    """
    if (values := _parse_text(text)) is not None:
        return values
    if storage.exists(expand_home(text)) or _can_only_be_path(text):
        return read_yaml(text)
    expected = "a=1,b=2, a YAML mapping or a YAML file"
    raise UserError("Override", repr(text), expected, "Quote values with commas or brackets.")


def names_file(text: str) -> bool:
    """Whether an override string is the path of a file, not the options themselves."""
    return _parse_text(text) is None


def _parse_text(text: str) -> dict[str, Any] | None:
    """Parses an override string that contains options; returns None if it cannot be parsed."""
    values: dict[str, Any] = {}
    position = 0
    while position < len(text) and (match := _PAIR.match(text, position)):
        value = match[2].rstrip()
        values[match[1]] = _parse_yaml(value, "Override") if value[:1] in ("'", '"', "[") else value
        position = match.end()
    if position == len(text):
        return values
    with contextlib.suppress(UserError):
        return _parse_mapping(text, "Override")
    return None


def _can_only_be_path(text: str) -> bool:
    """Whether text that contains no options was meant as the path of a file."""
    return text.endswith((".yaml", ".yml", ".json")) or ("/" in text and "=" not in text)


def _parse_yaml(text: str, what: str) -> Any:
    try:
        return plain_yaml.parse(text)
    except ValueError as error:
        raise UserError(what, error, "one mapping `name: value`", "Correct it.") from None


def _parse_mapping(text: str, what: str) -> dict[str, Any]:
    values = _parse_yaml(text, what)
    if not isinstance(values, dict):
        raise UserError(
            what,
            "nothing" if values is None else repr(values),
            "one mapping `name: value`",
            "Write one option per line.",
        )
    return {str(name): value for name, value in values.items()}
