"""The style of pictures, and how they are written."""

import functools
import io
import itertools
import logging
import unicodedata
import warnings
from typing import Any

import matplotlib as mpl
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, MaxNLocator

from resnet_tpu import storage

log = logging.getLogger(__name__)

COLORS = ("#0b62c4", "#d9480f", "#16803c", "#8b3fc7", "#b8860b", "#0e8a9c", "#c2255c", "#5c6370")
# used together with colours, for colour-blind readers and for print
DASHES, MARKERS = ("-", "--", ":", "-."), ("o", "s", "^", "D", "v", "P", "X", "<")
DARK, GRAY, LIGHT = "#1f2328", "#656d76", "#e4e7eb"
# for class names in other scripts: the installed ones are used for letters that the first font lacks
_OTHER_FONTS = {
    "Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "Microsoft YaHei", "PingFang SC", "Malgun Gothic",
    "Noto Sans Devanagari", "Noto Sans Bengali", "Noto Sans Tamil", "Noto Sans Thai", "Nirmala UI", "Arial Unicode MS",
}  # fmt: skip
STYLE: dict[Any, Any] = {
    "font.family": ["DejaVu Sans", *sorted(_OTHER_FONTS.intersection(font_manager.get_font_names()))],
    "font.size": 10,
    "figure.dpi": 120,
    "figure.facecolor": "white",
    "text.color": DARK,
    "axes.labelcolor": DARK,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": GRAY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LIGHT,
    "xtick.color": GRAY,
    "ytick.color": GRAY,
    "xtick.labelcolor": DARK,
    "ytick.labelcolor": DARK,
    "legend.framealpha": 0.85,  # a curve may run behind it
    "legend.edgecolor": "none",
    "figure.constrained_layout.h_pad": 0.1,  # inches
    "figure.constrained_layout.w_pad": 0.1,
    "lines.linewidth": 1.8,
}


class Picture(Figure):
    """A figure that notebooks show even if they have not imported pyplot."""

    def _repr_png_(self) -> bytes:
        return to_png(self)


@mpl.rc_context(STYLE)
def to_png(figure: Figure) -> bytes:
    """`figure` as a PNG file. Logs once if letters are drawn as boxes because no font has them."""
    png = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # we log it once instead
        figure.savefig(png, format="png", dpi=figure.dpi)
    if _has_boxes(figure):
        _warn_of_boxes()
    return png.getvalue()


def _has_boxes(figure: Figure) -> bool:
    fonts = [font_manager.get_font(font_manager.findfont(name)) for name in STYLE["font.family"]]
    letters = {letter for text in figure.findobj(Text) for letter in text.get_text() if letter.isprintable()}
    return not all(any(font.get_char_index(ord(letter)) for font in fonts) for letter in letters)


@functools.cache
def _warn_of_boxes() -> None:
    log.warning(
        "Pictures show boxes for letters that no installed font has. Install a font that has them, such as one of %s; "
        "then delete Matplotlib's list of fonts in %s.",
        ", ".join(sorted(_OTHER_FONTS)),
        mpl.get_cachedir(),
    )


def write_png(figure: Figure, path: str) -> None:
    """Writes `figure` as PNG, completely or not at all. Creates the folder if it does not exist."""
    png = to_png(figure)
    storage.make_dir(storage.parent_of(path))
    storage.write_bytes(path, png)


def add_title(figure: Figure, title: str) -> None:
    """Writes `title` at the top left."""
    figure.suptitle(shorten(title, 90), x=0.01, ha="left", fontsize=13, fontweight="bold")


def shorten(text: str, width: int) -> str:
    """`text` on one line, cut in the middle to `width` columns, with dollar signs and invalid UTF-8 escaped.

    A wide letter, such as a Chinese one, takes two columns.
    """
    text = " ".join(text.encode(errors="backslashreplace").decode().split())
    if sum(map(_columns, text)) > width:  # cut in the middle: names of classes and files differ at both ends
        text = _beginning(text, width // 2) + "…" + _beginning(text[::-1], width - width // 2 - 1)[::-1]
    return text.replace("$", r"\$")


def _beginning(text: str, width: int) -> str:
    """As much of `text` as fits into `width` columns."""
    return text[: sum(end <= width for end in itertools.accumulate(map(_columns, text)))]


def _columns(letter: str) -> int:
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def count_axis(axis: Any) -> None:
    """Labels `axis` with whole numbers with thousands separators."""
    axis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
    axis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}"))
