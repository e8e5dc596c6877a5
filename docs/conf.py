"""Sphinx configuration with which `make docs` builds a site from these pages, the notebooks and the benchmarks."""

import shutil
from pathlib import Path

from sphinx.application import Sphinx

from resnet_tpu import __version__

project = "resnet_tpu"
author = "the resnet_tpu authors"
copyright = "the resnet_tpu authors, Apache-2.0"  # noqa: A001 - Sphinx's name for it
release = __version__
extensions = ["myst_nb"]
html_theme = "furo"
html_title = project
html_copy_source = False
smartquotes = False  # they would make one dash of the two before an option
html_show_sphinx = False
myst_heading_anchors = 3
nb_execution_mode = "off"  # pages show the stored outputs

DOCS = Path(__file__).parent
NEIGHBOURS = {"notebooks": "*.ipynb", "benchmarks": "*.md"}
"""Folders beside `docs/` of which the site has pages, and which files these are."""


def copy_neighbours(*_: object) -> None:
    """Copies the notebooks and the pages on benchmarks into `docs/`, as Sphinx reads nothing outside it.

    Git ignores the copies.
    """
    for folder, pattern in NEIGHBOURS.items():
        shutil.rmtree(DOCS / folder, ignore_errors=True)
        (DOCS / folder).mkdir()
        for file in (DOCS.parent / folder).glob(pattern):
            shutil.copy2(file, DOCS / folder)  # with its time, so that only what changed is built again


def point_to_copies(_app: Sphinx, _page: str, source: list[str]) -> None:
    """Makes links from pages to these copies, and back, point to them."""
    for folder in NEIGHBOURS:
        source[0] = source[0].replace(f"](../{folder}/", f"]({folder}/")
    source[0] = source[0].replace("](../docs/", "](../")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("config-inited", copy_neighbours)
    app.connect("source-read", point_to_copies)
