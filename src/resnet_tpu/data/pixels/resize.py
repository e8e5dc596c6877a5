"""Resizing with the weights of TensorFlow 1's `resize_bicubic` and `resize_bilinear`, as two sparse matrix products."""

import functools
from typing import Literal, NamedTuple

import cv2
import numpy as np
from scipy import sparse

from resnet_tpu.data.pixels import native

Method = Literal["bicubic", "bilinear"]

_A = -0.75
_TABLE_SIZE = 1024


def resize(image: np.ndarray, size: int, *, mirrored: bool = False, method: Method = "bicubic") -> np.ndarray:
    """`image` uint8 [h, w, 3] resized to float32 [size, size, 3], optionally mirrored left to right.

    Pixel i lies at i * (in / out) of the source, without half-pixel centres; four taps per axis (bilinear: two)
    whatever the scale, so no antialiasing; the edge is repeated; values beyond 0 ... 255 are kept. Equal to
    TensorFlow's kernels but for the order of float32 additions (3e-4 for noise). Rows are resized first, then, after a
    transposition, columns; every step runs in C without the GIL.
    """
    vertical = _axis(image.shape[0], size, mirrored=False, method=method)
    horizontal = _axis(image.shape[1], size, mirrored=mirrored, method=method)
    if vertical.used is not None:
        image = image[vertical.used]
    if horizontal.used is not None:
        image = image[:, horizontal.used]
    height, width, _ = image.shape
    rows = vertical.weights @ image.reshape(height, width * 3).astype(np.float32)
    columns = cv2.transpose(rows.reshape(size, width, 3)).reshape(width, size * 3)
    return cv2.transpose((horizontal.weights @ columns).reshape(size, size, 3))


def resize_to_uint8(image: np.ndarray, out: np.ndarray, *, mirrored: bool = False, method: Method = "bicubic") -> None:
    """Fills `out` uint8 [size, size, 3] with `resize`, rounded (half to even) and clipped."""
    library = native.load()
    if library and library.resize_pixels(image, out, mirrored=mirrored, method=method):
        return
    resized = resize(image, len(out), mirrored=mirrored, method=method)
    out[...] = np.clip(np.rint(resized, out=resized), 0, 255, out=resized)


class _Axis(NamedTuple):
    used: np.ndarray | None  # the source pixels that any tap touches; None: all
    weights: sparse.csr_array  # [size, source pixels used]


# Window sides repeat, and making the matrices takes a third as long as using them. Each takes 7 kB.
@functools.lru_cache(maxsize=2048)
def _axis(length: int, size: int, *, mirrored: bool, method: Method) -> _Axis:
    positions = np.arange(size, dtype=np.float32) * (np.float32(length) / np.float32(size))
    if mirrored:
        positions = positions[::-1]
    below = np.floor(positions)
    first, weights = _bicubic(positions - below) if method == "bicubic" else _bilinear(positions - below)
    count = len(weights)
    taps = np.clip(below.astype(np.int32)[:, None] + np.arange(first, first + count, dtype=np.int32), 0, length - 1)
    used = None
    if length > count * size:  # large photos: leave out what no tap touches
        used, taps = np.unique(taps, return_inverse=True)
        length = len(used)
    rows = np.arange(0, count * size + 1, count, dtype=np.int32)
    values = np.stack(weights, 1).astype(np.float32).ravel()
    return _Axis(used, sparse.csr_array((values, taps.astype(np.int32).ravel(), rows), shape=(size, length)))


def _bilinear(t: np.ndarray) -> tuple[int, list[np.ndarray]]:
    """The offset of the first tap from the pixel below, and the weights of all taps, at distance `t` above it."""
    return 0, [1 - t, t]


def _bicubic(t: np.ndarray) -> tuple[int, list[np.ndarray]]:
    """As `_bilinear`; TensorFlow 1 looks Keys' cubic up in a table."""
    t = np.rint(t * _TABLE_SIZE) / _TABLE_SIZE
    return -1, [_far_weight(1 + t), _near_weight(t), _near_weight(1 - t), _far_weight(2 - t)]


def _near_weight(x: np.ndarray) -> np.ndarray:
    """Keys' cubic for distances up to 1."""
    return ((_A + 2) * x - (_A + 3)) * x * x + 1


def _far_weight(x: np.ndarray) -> np.ndarray:
    """Keys' cubic for distances from 1 to 2."""
    return ((_A * x - 5 * _A) * x + 8 * _A) * x - 4 * _A
