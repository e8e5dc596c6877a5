"""Evaluation as in timm and torchvision, compared with Pillow; tests/checkpoints/test_torch_peers.py runs them."""

import io

import numpy as np
import pytest
from PIL import Image

from resnet_tpu.data.pixels.decode import DecodeError, TooLargeError
from resnet_tpu.data.pixels.preprocess import eval_image
from resnet_tpu.data.pixels.resize import Method


def photo(width: int, height: int, kind: str = "JPEG", orientation: int = 1) -> bytes:
    """Noise on a coarse picture, so that resizing without antialiasing gives clearly different pixels."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 7, 3), np.uint8)).resize((width, height))
    noisy = np.clip(np.asarray(coarse) + rng.normal(0, 40, (height, width, 3)), 0, 255).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    Image.fromarray(noisy).save(file, kind, exif=exif)
    return file.getvalue()


@pytest.mark.parametrize("method", ["bicubic", "bilinear"])
@pytest.mark.parametrize(
    ("size", "crop_pct", "resized", "corner"),
    [
        ((640, 427), 0.875, (383, 256), (80, 16)),  # 79.5 is rounded to even
        ((640, 427), 0.95, (352, 235), (64, 6)),
        ((100, 161), 0.875, (256, 412), (16, 94)),
        ((230, 300), 1.0, (224, 292), (0, 34)),
    ],
)
def test_pixels_are_those_of_pillow(
    size: tuple[int, int], crop_pct: float, resized: tuple[int, int], corner: tuple[int, int], method: Method
) -> None:
    encoded = photo(*size)
    with Image.open(io.BytesIO(encoded)) as image:
        left, top = corner
        expected = image.resize(resized, Image.Resampling[method.upper()])
        expected = np.asarray(expected.crop((left, top, left + 224, top + 224)))
    found, original = np.empty((2, 224, 224, 3), np.uint8)
    eval_image(encoded, 224, found, resize_method=method, crop_pct=crop_pct, preprocessing="pil")
    np.testing.assert_array_equal(found, expected)
    eval_image(encoded, 224, original, resize_method=method, crop_pct=crop_pct)
    assert np.abs(found.astype(int) - original).mean() > 1


def test_photos_are_turned_upright_first() -> None:
    found, expected = np.empty((2, 64, 64, 3), np.uint8)
    lying = photo(100, 80, "PNG", orientation=6)
    eval_image(lying, 64, found, honour_exif=True, preprocessing="pil")
    with Image.open(io.BytesIO(lying)) as image:
        eval_image(np.rot90(np.asarray(image), -1), 64, expected, preprocessing="pil")
    np.testing.assert_array_equal(found, expected)


def test_what_would_take_too_much_memory_is_refused() -> None:
    out = np.empty((16, 16, 3), np.uint8)
    for encoded, limit, message in (
        (photo(100, 80), 7999, "got 100 x 80 pixels, expected at most 7999 pixels"),
        (photo(400, 2), 20_000, "got 3600 x 18 pixels when resized, expected at most 20000 pixels"),
    ):
        with pytest.raises(TooLargeError, match=message):
            eval_image(encoded, 16, out, preprocessing="pil", max_pixels=limit)


def test_damage_is_named() -> None:
    with pytest.raises(DecodeError, match="that cannot be decoded"):
        eval_image(photo(100, 80)[:-300], 16, np.empty((16, 16, 3), np.uint8), preprocessing="pil")
