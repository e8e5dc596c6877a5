"""The notebooks run in a kernel, scaled down, and their stored outputs are fit to be published."""

import itertools
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from packaging.requirements import Requirement

from tests.test_docs import ROOT, draw_photos

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_BYTES = 300_000
MACHINE_PATHS = re.compile(r"/(?:work|root|tmp|home|opt|content)/(?!drive)")
LINK = re.compile(r"\]\(([^)#]+)\)")

SMALL = {
    "photos": {
        "PHOTOS": "photos",
        "EPOCHS": "2",
        "OPTIONS": "image_size=32,resnet_width=4,train_batch_size=8,iterations_per_loop=4",
    },
    "scale": {"NUM_IMAGES": "128", "EPOCHS": "4", "SLICE": ""},
    "rewinding": {"PHOTOS": "photos", "EPOCHS": "1", "WIDTH": "4", "DENSITIES": "20"},
}
"""The settings that the first cell of each reads from the environment, for short runs."""


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("photos", marks=pytest.mark.long),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("scale", "rewinding")),
    ],
)
def test_every_cell_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_photos(tmp_path / "photos", 80 if name == "rewinding" else 20)
    path = [str(Path(sys.executable).parent), os.environ["PATH"]]  # the command `resnet-tpu` of this Python
    for variable, value in {**SMALL[name], "PATH": os.pathsep.join(path), "JAX_NUM_CPU_DEVICES": "1"}.items():
        monkeypatch.setenv(variable, value)
    notebook = read(ROOT / "notebooks" / f"{name}.ipynb")
    cells = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute().cells
    assert "Not in Colab" in json.dumps(cells) or name == "rewinding"
    assert "ipywidgets" not in json.dumps(cells)  # the widget that a progress line would need
    shown = [output for cell in cells for output in cell.get("outputs", ()) if "image/png" in output.get("data", {})]
    assert len(shown) == {"photos": 5, "scale": 1, "rewinding": 2}[name]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_pictures_are_described_for_those_who_hear_the_page(path: Path) -> None:
    cells = [cell for cell in read(path).cells if "image/png" in json.dumps(cell.get("outputs", ()))]
    assert cells
    assert all(cell.metadata["mystnb"]["image"]["alt"] for cell in cells)


def test_every_notebook_is_run() -> None:
    assert [path.stem for path in NOTEBOOKS] == sorted(SMALL)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_stored_is_fit_to_be_shown(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert path.stat().st_size < MOST_BYTES
    pictures = 0
    for cell in notebook.cells:
        streams = [output.get("name") for output in cell.get("outputs", ())]
        assert not any(name and name == after for name, after in itertools.pairwise(streams)), "cut into pieces"
        for output in cell.get("outputs", ()):
            assert output.output_type != "error"
            pictures += "image/png" in output.get("data", {})
            text = json.dumps(
                {kind: value for kind, value in output.get("data", output).items() if "image" not in kind}
            )
            assert not MACHINE_PATHS.search(text), text[:300]
        if cell.cell_type == "markdown":
            for target in LINK.findall(cell.source):
                assert "://" in target or (path.parent / target).exists(), target
    assert pictures


@pytest.mark.parametrize("name", ["photos", "scale"])
@pytest.mark.parametrize("extra", ["tpu,", "cuda,", ""])
def test_pip_can_read_the_extras_that_are_installed_in_colab(name: str, extra: str) -> None:
    cells = "".join(cell.source for cell in read(ROOT / "notebooks" / f"{name}.ipynb").cells)
    (extras,) = re.findall(r'extras = f"(.*)"', cells)
    assert Requirement(f"resnet-tpu{extras.format(extra=extra)}").extras >= {*filter(None, extra.split(","))}
