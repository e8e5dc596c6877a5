"""Pictures: they show the right numbers, nothing is cut off or overlaps, whatever the names, and PNGs are valid."""

import io
import itertools
import logging
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from resnet_tpu.reports import style
from resnet_tpu.reports.pictures import draw_confusion, draw_mistakes
from resnet_tpu.reports.predictions import Mistake
from resnet_tpu.reports.style import shorten, write_png

WIDE = "漢字の花の名前がとても長いものです"
LONG = "a name of a class, $5 or $6, so long that it cannot fit beside a picture_in_any_font or layout"


def _png(figure: Figure, path: Path) -> np.ndarray:
    """The pixels of `figure` written as PNG."""
    write_png(figure, str(path))
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        pixels = np.asarray(picture.convert("RGB"))
    width, height = figure.get_size_inches() * figure.dpi
    assert pixels.shape == (round(height), round(width), 3)
    return pixels


def _texts(figure: Figure) -> list[Text]:
    FigureCanvasAgg(figure).draw()
    return [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_visible() and text.get_text()]


def _matrix(classes: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.diag(rng.integers(20, 50, classes)) + rng.integers(0, 2, (classes, classes)) * rng.integers(0, 9)


@pytest.mark.parametrize(
    ("classes", "name"),
    [
        (2, "c"),
        (120, LONG),
        *(pytest.param(classes, name, marks=pytest.mark.long) for classes in (25, 60) for name in ("c", LONG)),
        *(pytest.param(classes, name, marks=pytest.mark.long) for classes, name in ((120, "c"), (2, LONG))),
    ],
)
def test_confusion_matrix_of_any_size_is_inside_its_picture(tmp_path: Path, classes: int, name: str):
    figure = draw_confusion(_matrix(classes), [f"{c} {name} {c}" for c in range(classes)])
    FigureCanvasAgg(figure).draw()
    drawn = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    assert drawn.x0 > 0 and drawn.y0 > 0 and drawn.x1 < width and drawn.y1 < height
    # The matrix, not the names, takes up most of the space.
    assert figure.axes[0].get_window_extent().height > 0.5 * figure.bbox.height
    assert _png(figure, tmp_path / "x.png").std() > 10


def test_confusion_matrix_shows_counts_and_shares():
    matrix = np.array([[8, 2, 0], [0, 1234, 0], [0, 0, 0]])
    figure = draw_confusion(matrix, ["a", "b", "c"])
    axes = figure.axes[0]
    counts = {text.get_position(): text.get_text() for text in axes.texts}
    assert counts == {(0, 0): "8", (1, 0): "2", (1, 1): "1,234"}
    shares = np.asarray(axes.images[0].get_array())
    assert np.array_equal(shares, [[0.8, 0.2, 0], [0, 1, 0], [0, 0, 0]])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b", "c"]
    assert axes.get_title("left") == "1,242 of 1,244 images right (99.8%)"


def test_one_confusion_among_a_thousand_classes_can_be_seen(tmp_path: Path):
    names = [f"class {c}" for c in range(1000)]
    matrix = 50 * np.eye(1000, dtype=np.int64)
    clean = _png(draw_confusion(matrix, names), tmp_path / "clean.png")
    matrix[700, 123] = 1
    figure = draw_confusion(matrix, names)
    marked = _png(figure, tmp_path / "marked.png")
    axes = figure.axes[0]
    x, y = axes.transData.transform((123, 700))
    column, row = int(x), int(figure.bbox.height - y)
    spot = np.s_[row - 3 : row + 4, column - 3 : column + 4]
    assert (clean[spot].astype(int) - marked[spot]).max() > 20
    assert "class 700 → class 123" in [text.get_text() for text in figure.axes[1].texts]


def test_most_frequent_confusions_are_listed_in_order():
    matrix = 9 * np.eye(30, dtype=np.int64)
    matrix[3, 4], matrix[5, 6], matrix[7, 8] = 2, 7, 1
    beside = draw_confusion(matrix, [f"c{c}" for c in range(30)]).axes[1]
    texts = [text.get_text().strip() for text in beside.texts]
    assert texts == ["c5 → c6", "7 of 16", "c3 → c4", "2 of 11", "c7 → c8", "1 of 10"]
    assert draw_confusion(9 * np.eye(30, dtype=np.int64), ["c"] * 30).axes[1].get_title("left") == "No confusions"


def _mistakes(count: int, name: str) -> list[Mistake]:
    return [Mistake(i, f"{name}/{i}.jpg", f"{name} {i}", f"{name} {i + 1}", 1 - i / 100) for i in range(count)]


@pytest.mark.filterwarnings("ignore:Glyph .* missing")
@pytest.mark.parametrize("count", [5, *(pytest.param(count, marks=pytest.mark.long) for count in (1, 7))])
@pytest.mark.parametrize("name", ["n", LONG, WIDE])
def test_texts_of_mistakes_do_not_overlap(count: int, name: str):
    images = [np.full((20 + i, 60 - i, 3), 8 * i, np.uint8) for i in range(count)]
    figure = draw_mistakes(_mistakes(count, name), images, num_wrong=count)
    boxes = [text.get_window_extent() for text in _texts(figure)]
    assert len(boxes) == 2 + 3 * count
    for box in boxes:
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.width and box.y1 <= figure.bbox.height
    pictures = [axes.get_window_extent() for axes in figure.axes]
    for one, other in itertools.combinations([*boxes, *pictures], 2):
        assert not one.overlaps(other)


def test_mistakes_show_their_images_in_order(tmp_path: Path):
    colours = [(200, 0, 0), (0, 200, 0), (0, 0, 200)]
    encoded = []
    for colour in colours:
        file = io.BytesIO()
        Image.new("RGB", (50, 50), colour).save(file, "PNG")
        encoded.append(file.getvalue())
    figure = draw_mistakes(_mistakes(4, "flower"), [*encoded, b"no image"], num_wrong=17)
    pixels = _png(figure, tmp_path / "mistakes.png")
    for axes, colour in zip(figure.axes[:3], colours, strict=True):
        box = axes.get_window_extent()
        centre = pixels[int(figure.bbox.height - (box.y0 + box.y1) / 2), int((box.x0 + box.x1) / 2)]
        assert tuple(centre) == colour
    texts = {text.get_text() for text in _texts(figure)}
    assert {"4 of 17 mistakes, the most confident first", "100%  flower 1", "true: flower 0", "flower/0.jpg"} <= texts


@pytest.mark.parametrize("honour_exif", [False, True])
def test_photo_is_turned_upright_as_the_network_sees_it(honour_exif: bool):
    pixels = np.zeros((40, 40, 3), np.uint8)
    pixels[:20] = 255
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", exif=exif)
    figure = draw_mistakes(_mistakes(1, "x"), [file.getvalue()], num_wrong=1, honour_exif=honour_exif)
    tile = np.asarray(figure.axes[0].images[0].get_array())
    assert (tile[50].mean() > tile[170].mean()) != honour_exif


def test_no_mistakes(tmp_path: Path):
    figure = draw_mistakes([], [], num_wrong=0)
    assert [text.get_text() for text in _texts(figure)] == ["No mistakes"]
    assert _png(figure, tmp_path / "x.png").min() < 100


def test_the_widest_names_of_mistakes_stay_below_their_image(tmp_path: Path):
    images = [np.full((9, 9, 3), 200, np.uint8)] * 2
    figure = draw_mistakes([Mistake(i, "", 24 * "W", 24 * "W", 0.5) for i in range(2)], images, num_wrong=2)
    pixels = _png(figure, tmp_path / "x.png")
    left, right = (axes.get_window_extent() for axes in figure.axes)
    between = pixels[int(figure.bbox.height - left.y0) :, int(left.x1 + 0.06 * left.width) : int(right.x0)]
    assert between.size and between.min() == 255


def test_letters_that_no_font_has_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    style._warn_of_boxes.cache_clear()
    for _ in range(2):
        confusion = draw_confusion(np.eye(2, dtype=np.int64), ["rose", "🌼"])
        assert _png(confusion, tmp_path / "x.png").min() < 100
    (record,) = (record for record in caplog.records if record.levelno == logging.WARNING)
    assert "Pictures show boxes for letters that no installed font has. Install a font" in record.getMessage()


def test_folder_of_a_picture_is_made(tmp_path: Path):
    _png(draw_mistakes([], [], num_wrong=0), tmp_path / "new" / "folder" / "x.png")


def test_shorten_keeps_both_ends_and_one_line():
    assert shorten("short name", 10) == "short name"
    assert shorten("a\n b\t c", 10) == "a b c"
    assert shorten("0123456789abcdef", 9) == "0123…cdef"
    assert len(shorten("x" * 99, 24)) == 24
    assert shorten("漢字の花", 8) == "漢字の花"  # two columns each
    assert shorten("漢字の花x", 8) == "漢字…花x"
    assert shorten("5$ or 6$", 20) == r"5\$ or 6\$"
    assert shorten("a\udcff.jpg", 20) == r"a\udcff.jpg"  # a name that is not UTF-8, which Matplotlib cannot draw
