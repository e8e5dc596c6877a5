"""Bicubic resizing with the weights of TensorFlow 1's `resize_bicubic`, as two sparse matrix products."""

import functools
from typing import NamedTuple

import cv2
import numpy as np
from scipy import sparse

_A = -0.75
_TABLE_SIZE = 1024


def resize_bicubic(image: np.ndarray, size: int, *, mirrored: bool = False) -> np.ndarray:
    """`image` uint8 [h, w, 3] as float32 [size, size, 3], optionally with left and right exchanged.

    Pixel i lies at i * (in / out) of the source, without half-pixel centres; four taps per axis whatever the scale, so
    no antialiasing; the edge is repeated; values beyond 0 ... 255 are kept. Equal to TensorFlow's kernel but for the
    order of float32 additions (2e-4).
    """
    return cv2.transpose(_transposed(image, size, mirrored))


def resize_to_uint8(image: np.ndarray, out: np.ndarray, *, mirrored: bool = False) -> None:
    """Fills `out` uint8 [size, size, 3] with `resize_bicubic`, rounded (half to even) and clipped."""
    size = len(out)
    columns = _transposed(image, size, mirrored).reshape(size, size * 3)
    rounded = np.clip(np.rint(columns, out=columns), 0, 255, out=columns).astype(np.uint8)
    out[...] = cv2.transpose(rounded.reshape(size, size, 3))


def _transposed(image: np.ndarray, size: int, mirrored: bool) -> np.ndarray:
    """The resized image as float32 [x, y, 3]: rows are resized first, then, after a transposition, columns.

    Every step runs in C without Python's lock.
    """
    vertical, horizontal = _axis(image.shape[0], size, False), _axis(image.shape[1], size, mirrored)
    if vertical.used is not None:
        image = image[vertical.used]
    if horizontal.used is not None:
        image = image[:, horizontal.used]
    height, width, _ = image.shape
    rows = vertical.weights @ image.reshape(height, width * 3).astype(np.float32)
    columns = cv2.transpose(rows.reshape(size, width, 3)).reshape(width, size * 3)
    return (horizontal.weights @ columns).reshape(size, size, 3)


class _Axis(NamedTuple):
    used: np.ndarray | None  # the source pixels that any tap touches; None: all
    weights: sparse.csr_array  # [size, source pixels used]


# Sides of windows repeat: making the matrices takes a third of the time of using them. 7 kB each.
@functools.lru_cache(maxsize=2048)
def _axis(length: int, size: int, mirrored: bool) -> _Axis:
    positions = np.arange(size, dtype=np.float32) * (np.float32(length) / np.float32(size))
    if mirrored:
        positions = positions[::-1]
    first = np.floor(positions)
    near = np.rint((positions - first) * _TABLE_SIZE) / _TABLE_SIZE  # distance to the tap at `first`
    weights = np.stack([_far_weight(1 + near), _near_weight(near), _near_weight(1 - near), _far_weight(2 - near)], 1)
    taps = np.clip(first.astype(np.int32)[:, None] + np.arange(-1, 3, dtype=np.int32), 0, length - 1)
    used = None
    if length > 4 * size:  # large photos: leave out what no tap touches
        used, taps = np.unique(taps, return_inverse=True)
        length = len(used)
    rows = np.arange(0, 4 * size + 1, 4, dtype=np.int32)
    values = weights.astype(np.float32).ravel()
    return _Axis(used, sparse.csr_array((values, taps.astype(np.int32).ravel(), rows), shape=(size, length)))


def _near_weight(x: np.ndarray) -> np.ndarray:
    """Keys' cubic for distances up to 1."""
    return ((_A + 2) * x - (_A + 3)) * x * x + 1


def _far_weight(x: np.ndarray) -> np.ndarray:
    """Keys' cubic for distances from 1 to 2."""
    return ((_A * x - 5 * _A) * x + 8 * _A) * x - 4 * _A
