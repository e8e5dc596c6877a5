"""Makes flowers.jpg, flowers_mistakes.jpg and peers.png, from a run on flowers and from what was measured.

python docs/images/flowers.py MODEL_DIR PAGE_PNG         the page: serve_page.py --output=PAGE_PNG
"""

import argparse
import json
import statistics
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from PIL import Image

from resnet_tpu.reports import style

HERE = Path(__file__).parent
MEASURED = HERE.parents[1] / "benchmarks" / "results" / "2026-11-25-input.json"
BARS = {
    "resnet-tpu": "resnet_tpu",
    "tf.data, optimized": "tf.data, the original's pipeline",
    "FFCV": "FFCV, on a file of its own",
    "Grain, OpenCV": "Grain with OpenCV",
    "SPDL, OpenCV": "SPDL with OpenCV",
    "PyTorch DataLoader": "PyTorch DataLoader",
    "DALI": "DALI on the CPU",
}
WIDTH, GAP, MARGIN = 1500, 12, 30  # pixels


def main() -> None:
    """Writes the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("page", type=Path)
    given = parser.parse_args()
    report = given.model_dir / "report"
    pictures = [given.page, report / "test" / "confusion_matrix.png", report / "curves.png"]
    joined = join(*(Image.open(picture).convert("RGB") for picture in pictures))
    joined.save(HERE / "flowers.jpg", quality=85)
    mistakes = Image.open(report / "test" / "mistakes.png").convert("RGB")
    row = mistakes.crop((0, 0, mistakes.width, mistakes.height // 4 - MARGIN))
    row.resize((row.width * 3 // 4, row.height * 3 // 4)).save(HERE / "flowers_mistakes.jpg", quality=80)
    style.write_png(draw_peers(json.loads(MEASURED.read_text())), str(HERE / "peers.png"))


def join(page: Image.Image, matrix: Image.Image, curves: Image.Image) -> Image.Image:
    """The page at the left, the matrix and the curves below each other at its right."""
    right = WIDTH * 3 // 8
    matrix, curves = (image.resize((right, image.height * right // image.width)) for image in (matrix, curves))
    height = matrix.height + GAP + curves.height
    page = page.resize((WIDTH - right - GAP, page.height * (WIDTH - right - GAP) // page.width))
    joined = Image.new("RGB", (WIDTH, max(height, page.height)), "white")
    joined.paste(page, (0, 0))
    joined.paste(matrix, (WIDTH - right, 0))
    joined.paste(curves, (WIDTH - right, matrix.height + GAP))
    return joined


@mpl.rc_context(style.STYLE)
def draw_peers(record: dict) -> Figure:
    """Images per second of ours and of others."""
    runs = record["figures"]["runs"]
    speeds = [statistics.median(run["images_per_sec"] for run in runs[name]) for name in BARS]
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    style.add_title(figure, "Photos of ImageNet decoded for training, images/s")
    axes = figure.subplots()
    bars = axes.barh(
        list(BARS.values()), speeds, color=[style.COLORS[0], *[style.COLORS[7]] * (len(BARS) - 1)], height=0.65
    )
    axes.bar_label(bars, [f"{speed:,.0f}" for speed in speeds], padding=4)
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(bottom=False, labelbottom=False, left=False)
    machine = record["machine"]
    note = (
        f"{machine['cores']} cores of an {machine['processor']}, {record['date']}; 224 px, bicubic; median of 3 rounds"
    )
    axes.set_xlabel(note, loc="left", fontsize=8, color=style.GRAY)
    return figure


if __name__ == "__main__":
    main()
