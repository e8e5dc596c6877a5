"""The "how it works" page is right about the calls by which an option gets from the command line to where it acts."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import resnet_tpu
from resnet_tpu import cli
from resnet_tpu.models import from_options
from resnet_tpu.training import loop, run

Way = list[tuple[str, str]]
"""(function, its file relative to the package) of each call on the way."""

PACKAGE = f"{Path(resnet_tpu.__file__).parent}/"
ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "how_it_works.md").read_text()
BEFORE, TABLE = re.split(r"\n\n(?=\|)", PAGE.partition("## From an option to where it acts")[2].partition("\n## ")[0])

ACTS = {
    "data_dir": (run, "open_source"),
    "train_batch_size": (loop, "train_batches"),
    "resnet_depth": (from_options, "resolve_architecture"),
    "precision": (from_options, "Network"),
}
"""Where each option of the table acts: a module, and the name in it that is called."""


def told(text: str) -> Way:
    """The way that a part of the page describes; a file belongs to the functions named just before it."""
    way: Way = []
    names: list[str] = []
    for word in re.findall(r"`([\w./]+)`", text):
        if word.endswith(".py"):
            way += [(name, word) for name in names]
            names = []
        elif word not in ACTS:
            names.append(word)
    return way


def passed() -> Way:
    """The package's functions on the call stack, outermost first."""
    found: Way = []
    frame = inspect.currentframe()
    while frame:
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE):
            found.append((code.co_qualname, code.co_filename.removeprefix(PACKAGE)))
        frame = frame.f_back
    return found[::-1]


@pytest.mark.usefixtures("blank_curves")
def test_options_act_where_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways: dict[str, list[Way]] = {option: [] for option in ACTS}

    def watch(option: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            ways[option].append(passed())
            return act(*args, **kwargs)

        return watched

    for option, (module, name) in ACTS.items():
        monkeypatch.setattr(module, name, watch(option, getattr(module, name)))
    command = [
        "train", "--data_dir=null", f"--model_dir={tmp_path}", "--mode=train", "--train_steps=1",
        "--num_train_images=8", "--num_label_classes=3", "--resnet_depth=8", "--resnet_width=2", "--image_size=16",
        "--train_batch_size=8", "--precision=float32", "--num_cores=1",
    ]  # fmt: skip
    assert cli.main(command) == 0
    rows = [line.strip("| ").split(" | ") for line in TABLE.splitlines()[2:] if line.startswith("|")]
    assert [re.findall(r"\w+", option)[0] for option, _ in rows] == [*ACTS]
    for option, way in rows:
        *functions, last = told(BEFORE.partition(". From there")[0]) + told(way)
        assert ways[option.strip("`")] == [functions]  # once
        assert last[0] == ACTS[option.strip("`")][1]
        assert len({*functions, last}) == len(functions) + 1
        assert len(told(way)) in (2, 3, 4)
