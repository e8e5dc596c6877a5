"""Sphinx configuration with which `make docs` builds a site from these pages and the notebooks."""

import shutil
from pathlib import Path

from sphinx.application import Sphinx

from resnet_tpu import __version__

project = "resnet_tpu"
author = "the resnet_tpu authors"
copyright = "the resnet_tpu authors, Apache-2.0"  # noqa: A001 - Sphinx's name for it
release = __version__
extensions = ["myst_nb", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = project
html_copy_source = False
smartquotes = False  # they would make one dash of the two before an option
html_show_sphinx = False
myst_heading_anchors = 3
nb_execution_mode = "off"  # pages show the stored outputs
autodoc_typehints = "description"
autodoc_member_order = "bysource"

DOCS = Path(__file__).parent


def copy_notebooks(*_: object) -> None:
    """Copies the notebooks into `docs/`, as Sphinx reads nothing outside it; git ignores the copies."""
    shutil.copytree(DOCS.parent / "notebooks", DOCS / "notebooks", dirs_exist_ok=True)


def point_to_copies(_app: Sphinx, _page: str, source: list[str]) -> None:
    """Makes links from pages to notebooks, and back, point to the copies."""
    source[0] = source[0].replace("](../notebooks/", "](notebooks/").replace("](../docs/", "](../")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("config-inited", copy_notebooks)
    app.connect("source-read", point_to_copies)
