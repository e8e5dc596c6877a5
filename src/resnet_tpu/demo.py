"""The whole way on data at hand: photos, prepare, train, evaluate, predict, pictures."""

import logging
import shutil
import sys
from pathlib import Path

from rich.table import Table

from resnet_tpu.data.prepare.prepare import PrepareOptions, prepare
from resnet_tpu.data.prepare.report import render_report
from resnet_tpu.errors import UserError, missing_extra
from resnet_tpu.recipes import find_recipe
from resnet_tpu.reports.console import make_console
from resnet_tpu.reports.predictions import accuracy
from resnet_tpu.train.loop import train
from resnet_tpu.train.predict import predict

log = logging.getLogger(__name__)

DIGIT_PX = 32
"""The scans are 8 x 8 pixels; their JPEGs are this large."""


def demo(photos: str, output_dir: str) -> None:
    """Prepares, trains, evaluates and predicts on `photos` (class folders), by default on real scanned digits.

    Everything goes below `output_dir`; run again, it goes on where it was. Prints a table of what was done, the files,
    and what to type next. Raises UserError.
    """
    out = Path(output_dir)
    raw, data, model = (str(out / name) for name in ("photos", "data", "model"))
    pictures = Path(model) / "report"
    if photos:
        raw, recipe = photos, "flowers_cpu"
    else:
        write_digits(raw)
        recipe = "digits"
    log.info("1. prepare %s", raw)
    console = make_console()
    console.print(render_report(prepare(raw, data, PrepareOptions())))
    log.info("2. train, recipe %s", recipe)
    config = find_recipe(recipe).replace(data_dir=data, model_dir=model)
    train(config)
    log.info("3. predict the test images")
    predictions = predict(config)
    score = accuracy(predictions)
    if score is None:
        raise UserError("Test images", "none", "at least one", "Give more photos per class.")
    table = Table(title="Demo", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")  # a path is to be copied whole
    for name, value in {
        "test accuracy": f"{score.top_1:.2%}",
        "data": data,
        "checkpoints, metrics": model,
        "curves": str(pictures / "curves.png"),
        "confusion matrix": str(pictures / "test" / "confusion_matrix.png"),
        "worst mistakes": str(pictures / "test" / "mistakes.png"),
    }.items():
        table.add_row(name, value)
    console.print(table)
    here = sys.argv[0] if Path(sys.argv[0]).name == "resnet-tpu" else f"{sys.executable} -m resnet_tpu"
    command = "resnet-tpu" if shutil.which("resnet-tpu") else here  # in an environment that is not activated
    console.print(
        "With your own photos, one folder per class:\n"
        f"  {command} prepare PHOTOS data\n"
        f"  {command} train --recipe=flowers_cpu --data_dir=data --model_dir=model\n"
        f"  {command} predict model PHOTO.jpg",
        markup=False,
        soft_wrap=True,  # commands are to be copied whole
    )


def write_digits(folder: str) -> None:
    """The 1,797 scanned digits of scikit-learn as JPEG files, `folder/<digit>/<number>.jpg`.

    Source: UCI, Optical Recognition of Handwritten Digits. Raises UserError without scikit-learn.
    """
    import cv2
    import numpy as np

    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise missing_extra("demo", "scikit-learn", "demo") from None
    scans, digits = load_digits(return_X_y=True)
    for digit in range(10):
        (Path(folder) / str(digit)).mkdir(parents=True, exist_ok=True)
    for number, (scan, digit) in enumerate(zip(scans.reshape(-1, 8, 8), digits, strict=True)):
        grey = np.clip(255 - scan * (255 / 16), 0, 255).astype(np.uint8)  # ink 0..16 to black on white
        image = cv2.resize(grey, (DIGIT_PX, DIGIT_PX), interpolation=cv2.INTER_CUBIC)
        path = Path(folder) / str(digit) / f"{number:04d}.jpg"
        if not path.exists():
            partial = path.with_suffix(".partial")  # a demo that is killed leaves no half digit to be taken for one
            partial.write_bytes(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes())
            partial.replace(path)
