"""A server answers as docs/serving.md shows."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.serving.server.conftest import Server

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "serving.md").read_text()
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_its_commands_work(server: "Server", images: list[bytes], tmp_path: Path) -> None:
    (tmp_path / "rose.jpg").write_bytes(images[0])
    (tmp_path / "daisy.jpg").write_bytes(images[1])
    answers = []
    for kind, text in BLOCK.findall(PAGE):
        command = {"sh": ["bash", "-ec"], "python": [sys.executable, "-c"]}.get(kind)
        if command:
            text = re.sub(r"\bcurl ", "curl -sSf -w '\\n' ", text.replace("http://127.0.0.1:8501", server.url))
            done = subprocess.run([*command, text], cwd=tmp_path, capture_output=True, text=True, check=True)
            answers += [json.loads(line) for line in done.stdout.splitlines()]
    uploaded, by_rows, by_columns, number = answers
    shown = json.loads(next(text for kind, text in BLOCK.findall(PAGE) if kind == "json"))
    assert shape(uploaded) == shape(shown)
    assert by_rows["predictions"][0]["classes"] == by_columns["outputs"]["classes"][0] == number


def shape(value: object) -> object:
    """The structure of a value: types in place of values, except names of files."""
    if isinstance(value, dict):
        return {key: item if key == "name" else shape(item) for key, item in value.items()}
    return [shape(item) for item in value] if isinstance(value, list) else type(value)
