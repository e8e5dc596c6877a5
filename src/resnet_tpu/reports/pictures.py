"""Draws the confusion matrix, and a sheet of the worst mistakes."""

import math
from collections.abc import Sequence

import cv2
import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.ticker import PercentFormatter
from matplotlib.transforms import Bbox, TransformedBbox

from resnet_tpu.data.pixels.decode import DecodeError, decode
from resnet_tpu.reports.predictions import Mistake
from resnet_tpu.reports.style import COLORS, DARK, GRAY, LIGHT, STYLE, Picture, count_axis, shorten

_WRONG = "#b3261e"
_MAX_CELLS_WITH_COUNTS = 25
_MAX_NAMED_CLASSES = 60
_MAX_DRAWN_CLASSES = 300
_MAX_CONFUSIONS = 16
_TILE_PX = 224


@mpl.rc_context(STYLE)
def draw_confusion(matrix: np.ndarray, class_names: Sequence[str]) -> Picture:
    """Draws counts [true, predicted], coloured by the fraction of the true class, for any number of classes.

    Up to 25 classes, the cells show counts; up to 60, the axes show names; beyond 25, the most frequent confusions
    are listed next to the matrix. Beyond 300, neighbouring classes share a cell, which shows their highest fraction.
    """
    classes = len(class_names)
    is_small = classes <= _MAX_CELLS_WITH_COUNTS
    side = min(max(0.55 * classes, 2.4), 9) + 2.2 if is_small else 8.0
    figure = Picture(figsize=(side + 0.8, side) if is_small else (14.5, 8), layout="constrained")
    if is_small:
        axes = figure.subplots()
    else:
        axes, beside = figure.subplots(1, 2, width_ratios=(9, 4.5))
        _list_confusions(beside, matrix, class_names)
    fractions = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    block = math.ceil(classes / _MAX_DRAWN_CLASSES)
    # with many classes, rare errors would be too pale on a linear scale
    norm = PowerNorm(1.0 if is_small else 0.5, 0, 1)
    extent = (-0.5, classes - 0.5, classes - 0.5, -0.5)
    image = axes.imshow(_pool(fractions, block), cmap="Blues", norm=norm, extent=extent, interpolation="nearest")
    bar = figure.colorbar(image, ax=axes, format=PercentFormatter(1, decimals=0), shrink=0.8, pad=0.02)
    bar.set_label("fraction of the true class")
    bar.outline.set_visible(False)
    _label_classes(axes, class_names)
    if is_small:
        _write_counts(axes, matrix, fractions)
    total, right = int(matrix.sum()), int(np.trace(matrix))
    axes.set_title(f"{right:,} of {total:,} images right ({right / max(total, 1):.1%})")
    return figure


@mpl.rc_context(STYLE)
def draw_mistakes(
    mistakes: Sequence[Mistake], images: Sequence[bytes | np.ndarray], *, num_wrong: int, honour_exif: bool = False
) -> Picture:
    """Draws a sheet of wrongly classified images with true class, predicted class and its probability.

    images: one per mistake, uint8 [h, w, 3], or encoded, which is rotated by its EXIF orientation if `honour_exif`;
    a tile says if it cannot be decoded. num_wrong: the total number of mistakes.
    """
    columns = min(max(len(mistakes), 3), 5)
    rows = math.ceil(len(mistakes) / columns)
    width, height, header = 2.15, 2.65, 0.65  # inches
    figure = Picture(figsize=(columns * width + 0.15, rows * height + header))
    figure_width, figure_height = figure.get_size_inches()
    title = f"{len(mistakes)} of {num_wrong:,} mistakes, the most confident first" if mistakes else "No mistakes"
    figure.text(0.15 / figure_width, 1 - 0.3 / figure_height, title, fontsize=13, fontweight="bold")
    if mistakes:
        legend = "Red: the class predicted and its probability."
        figure.text(0.15 / figure_width, 1 - 0.52 / figure_height, legend, fontsize=8, color=_WRONG)
    for i, (mistake, image) in enumerate(zip(mistakes, images, strict=True)):
        left, bottom = 0.15 + i % columns * width, figure_height - header - i // columns * height - 2
        axes = figure.add_axes((left / figure_width, bottom / figure_height, 2 / figure_width, 2 / figure_height))
        axes.imshow(_tile(image, honour_exif))
        axes.set_axis_off()
        lines = (
            (f"{mistake.probability:.0%}  {shorten(mistake.predicted, 24)}", _WRONG, 8),
            (f"true: {shorten(mistake.true, 24)}", DARK, 8),
            (shorten(mistake.name, 34), GRAY, 6),
        )
        own = TransformedBbox(Bbox([[0, -0.3], [1.05, 0]]), axes.transAxes)
        for line, (text, color, size) in enumerate(lines):
            y = -0.03 - 0.075 * line
            written = axes.text(0, y, text, color=color, fontsize=size, va="top", transform=axes.transAxes)
            written.set(clip_path=None, clip_box=own, clip_on=True)  # so that it does not cover the next image's
    return figure


def _pool(fractions: np.ndarray, block: int) -> np.ndarray:
    """The highest fraction in each block of `block` x `block` cells."""
    starts = np.arange(0, len(fractions), block)
    return np.maximum.reduceat(np.maximum.reduceat(fractions, starts, axis=0), starts, axis=1)


def _label_classes(axes: Axes, class_names: Sequence[str]) -> None:
    classes = len(class_names)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set(xlabel="predicted class", ylabel="true class")
    if classes > _MAX_NAMED_CLASSES:
        axes.set(xlabel="predicted class (number in label order)", ylabel="true class (number in label order)")
        count_axis(axes.xaxis)
        count_axis(axes.yaxis)
        return
    names = [shorten(name, 24) for name in class_names]
    size = 9 if classes <= _MAX_CELLS_WITH_COUNTS else 6.5
    axes.set_xticks(range(classes), names, fontsize=size)
    if classes > _MAX_CELLS_WITH_COUNTS:
        axes.tick_params(axis="x", labelrotation=90)
    elif max(map(len, names)) > 8:
        for label in axes.get_xticklabels():
            label.set(rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(classes), names, fontsize=size)
    axes.tick_params(length=0)


def _write_counts(axes: Axes, matrix: np.ndarray, fractions: np.ndarray) -> None:
    for i in range(1, len(matrix)):  # seams between the cells
        axes.axhline(i - 0.5, color="white", linewidth=1.5)
        axes.axvline(i - 0.5, color="white", linewidth=1.5)
    size = 10 if len(matrix) <= 12 else 8
    for true, predicted in np.argwhere(matrix).tolist():
        color = "white" if fractions[true, predicted] > 0.55 else DARK
        text = f"{matrix[true, predicted]:,}"
        axes.text(predicted, true, text, ha="center", va="center", color=color, fontsize=size)


def _list_confusions(axes: Axes, matrix: np.ndarray, class_names: Sequence[str]) -> None:
    errors = matrix - np.diag(np.diagonal(matrix))
    order = np.argsort(-errors, axis=None, kind="stable")[:_MAX_CONFUSIONS]
    pairs = [divmod(int(cell), len(matrix)) for cell in order if errors.flat[cell]]
    axes.set_axis_off()
    axes.set_title("Most frequent confusions" if pairs else "No confusions")
    counts = [int(errors[pair]) for pair in pairs]
    axes.barh(range(len(pairs)), counts, height=0.22, color=COLORS[1])
    for row, ((true, predicted), number) in enumerate(zip(pairs, counts, strict=True)):
        text = f"{shorten(class_names[true], 24)} → {shorten(class_names[predicted], 24)}"
        axes.text(0, row - 0.22, text, fontsize=8.5, va="bottom")
        of_class = f"  {number:,} of {int(matrix[true].sum()):,}"
        axes.text(number, row, of_class, fontsize=8.5, va="center", color=GRAY)
    axes.set(ylim=(_MAX_CONFUSIONS - 0.4, -0.8), xlim=(0, 1.35 * max(counts, default=1)))


def _tile(image: bytes | np.ndarray, honour_exif: bool) -> np.ndarray:
    """`image` scaled to fit into a light grey square, uint8 [s, s, 3]."""
    tile = np.full((_TILE_PX, _TILE_PX, 3), int(LIGHT[1:3], 16), np.uint8)
    try:
        pixels = decode(image, honour_exif=honour_exif) if isinstance(image, bytes) else image
    except DecodeError:
        return cv2.putText(tile, "cannot be decoded", (28, _TILE_PX // 2), cv2.FONT_HERSHEY_SIMPLEX, 0.6, (90,) * 3)
    scale = _TILE_PX / max(pixels.shape[:2])
    height, width = (max(round(scale * side), 1) for side in pixels.shape[:2])
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST
    top, left = (_TILE_PX - height) // 2, (_TILE_PX - width) // 2
    tile[top : top + height, left : left + width] = cv2.resize(pixels, (width, height), interpolation=method)
    return tile
