"""How `make docs` makes a site of these pages; Sphinx reads it."""

from resnet_tpu import __version__

project = "resnet_tpu"
author = "the resnet_tpu authors"
copyright = "the resnet_tpu authors, Apache-2.0"  # noqa: A001 - Sphinx's name for it
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = project
html_copy_source = False
html_show_sphinx = False
myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_member_order = "bysource"
