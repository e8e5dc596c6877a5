"""Image files: whatever they contain is decoded to the size that was checked, by all verbs alike, or refused."""

import io
import os
import warnings

import numpy as np
from PIL import Image

from resnet_tpu.data.cleaning import BadImageError, Limits, clean_image
from resnet_tpu.data.pixels import jpeg, native
from resnet_tpu.data.pixels.decode import DecodeError, Preprocessing, decode
from resnet_tpu.data.pixels.preprocess import eval_image, train_image
from resnet_tpu.options.config import DataConfig
from resnet_tpu.serving.server.images import network_input as serve
from resnet_tpu.serving.server.refusal import Refusal
from resnet_tpu.system.c_libraries import SWITCH

_SIZE = 16
_MAX_PIXELS = 1 << 18


def one_input(data: bytes) -> None:
    """`data` as a file for training, evaluation, serving and `prepare`."""
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = _MAX_PIXELS // 2  # the limit of `prepare` is twice that
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _check(data)
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _check(data: bytes) -> None:
    image = _decoded(data)
    for mode in ("C", "Python"):
        os.environ[SWITCH] = str(int(mode == "C"))
        native.load.cache_clear()
        seen = _evaluated(data)
        _train(data, bounded=image is not None)
        assert (seen is None) == (image is None)
        if seen is not None and image is not None:
            expected = np.empty_like(seen)
            eval_image(image, _SIZE, expected)
            np.testing.assert_array_equal(seen, expected)
            np.testing.assert_array_equal(_served(data), seen)
        else:
            assert _served(data) is None
    _evaluated(data, "pil")
    os.environ.pop(SWITCH)
    native.load.cache_clear()
    for limits in (Limits(), Limits(max_side=12)):
        _prepare(data, limits)


def _decoded(data: bytes) -> np.ndarray | None:
    try:
        image = decode(data, honour_exif=True, max_pixels=_MAX_PIXELS)
    except DecodeError:
        return None
    assert image.dtype == np.uint8
    assert 0 < image.shape[0] * image.shape[1] <= _MAX_PIXELS
    if header := jpeg.read_header(data):
        assert sorted(image.shape[:2]) == sorted((header.height, header.width))
    return image


def _evaluated(data: bytes, preprocessing: Preprocessing = "tf") -> np.ndarray | None:
    out = np.empty((_SIZE, _SIZE, 3), np.uint8)
    try:
        eval_image(data, _SIZE, out, honour_exif=True, preprocessing=preprocessing, max_pixels=_MAX_PIXELS)
    except DecodeError:
        return None
    return out


def _train(data: bytes, *, bounded: bool) -> None:
    """Training has no limit of its own, so it only gets images small enough for the others."""
    if bounded:
        out = np.empty((_SIZE, _SIZE, 3), np.uint8)
        train_image(data, _SIZE, np.random.default_rng(len(data)), out)


def _served(data: bytes) -> np.ndarray | None:
    try:
        return serve(data, DataConfig(image_size=_SIZE), _MAX_PIXELS)
    except Refusal as refusal:
        assert refusal.status in (400, 413)
        return None


def _prepare(data: bytes, limits: Limits) -> None:
    try:
        image = clean_image(data, "a.jpg", limits)
    except BadImageError:
        return
    stored = decode(image.encoded)
    assert stored.shape == (image.height, image.width, 3)
    assert Image.open(io.BytesIO(image.encoded)).size == (image.width, image.height)
