"""The scanned digits that come with scikit-learn, as a folder of photos."""

from pathlib import Path

import cv2
import numpy as np

from resnet_tpu import storage
from resnet_tpu.errors import UserError, missing_extra
from resnet_tpu.options.fields import GivenPath, expand_home

DIGIT_PX = 32
"""The scans are 8 x 8 pixels; their JPEGs are this large."""


def write_digits(folder: GivenPath) -> None:
    """Writes the 1,797 scanned digits of scikit-learn as JPEG files, `folder/<digit>/<number>.jpg`.

    They are enlarged from 8 x 8 to 32 x 32 pixels, black on white. Source: UCI, Optical Recognition of Handwritten
    Digits. Raises UserError without scikit-learn, and when `folder` is in a bucket or holds anything else.
    """
    folder = expand_home(folder)
    if storage.is_remote(folder):
        do = "Write them here, or `prepare` photos of your own."
        raise UserError("Folder of digits", folder, "a folder on this machine", do)
    classes = [str(digit) for digit in range(10)]
    if strange := [name for name in storage.list_dir(folder) if name[0] != "." and name not in classes]:
        expected = "a new folder, or one that holds these digits"
        raise UserError(f"Folder {folder}", f"{strange[0]} in it", expected, "Choose another folder.")
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise missing_extra("demo", "scikit-learn", "demo") from None
    scans, digits = load_digits(return_X_y=True)
    for name in classes:
        (Path(folder) / name).mkdir(parents=True, exist_ok=True)
    for number, (scan, digit) in enumerate(zip(scans.reshape(-1, 8, 8), digits, strict=True)):
        gray = np.clip(255 - scan * (255 / 16), 0, 255).astype(np.uint8)  # ink 0..16 to black on white
        image = cv2.resize(gray, (DIGIT_PX, DIGIT_PX), interpolation=cv2.INTER_CUBIC)
        path = Path(folder) / str(digit) / f"{number:04d}.jpg"
        if not path.exists():
            partial = path.with_suffix(".partial")  # so that a killed demo leaves no half-written digit
            partial.write_bytes(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes())
            partial.replace(path)
