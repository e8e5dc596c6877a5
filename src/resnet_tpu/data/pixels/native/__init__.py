"""The optional C library: decodes only the wanted window of a JPEG, resizes it, and computes the slow augmentations.

The pixels are the same as without it. It exists if a compiler and libjpeg-turbo were available when the package was
installed (build.py), and is used unless RESNET_TPU_NATIVE=0 is set in the environment.
"""

import ctypes
import functools
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from resnet_tpu.data.pixels.crop import Window
from resnet_tpu.data.pixels.native.build import LIBRARY
from resnet_tpu.system.c_libraries import are_off

_INTERFACE = 3
_METHODS = {"bicubic": 0, "bilinear": 1}


class Facts(NamedTuple):
    """What the markers before the pixels of a JPEG say."""

    height: int
    width: int
    may_be_turned: bool  # there are EXIF or XMP metadata, which can hold an orientation


class Library:
    """The functions of the library."""

    def __init__(self, path: str) -> None:
        """Raises OSError when the library is missing, or does not belong to this version of the package."""
        library = ctypes.CDLL(path)  # every call releases the GIL
        pointer, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
        window, target = [number] * 4, [pointer, number, number, number]
        if library.interface_version() != _INTERFACE:
            raise OSError(f"{path} is of another version")
        library.decoder_new.restype = pointer
        library.decoder_free.argtypes = [pointer]
        library.resize_jpeg.argtypes = [pointer, ctypes.c_char_p, size, *window, *target]
        library.resize_pixels.argtypes = [pointer, pointer, ctypes.c_ssize_t, number, number, *target]
        library.color.argtypes = [pointer, size, ctypes.c_float, pointer]
        library.sharpness.argtypes = [pointer, number, number, ctypes.c_float, pointer]
        library.warp.argtypes = [pointer, number, number, *[ctypes.c_float] * 7, ctypes.c_uint8, pointer]
        self._library = library
        self._read_facts = ctypes.PyDLL(path).read_facts  # keeps the GIL: reacquiring it would take longer
        self._read_facts.argtypes = [pointer, ctypes.c_char_p, size, pointer]
        self._of_thread = threading.local()

    def read_facts(self, encoded: bytes) -> Facts | None:
        """The facts of a JPEG that `resize_jpeg` may accept; None for other files."""
        facts = (ctypes.c_int * 3)()
        if not self._read_facts(self._decoder(), encoded, len(encoded), facts):
            return None
        height, width, may_be_turned = facts
        return Facts(height, width, bool(may_be_turned))

    def resize_jpeg(self, encoded: bytes, window: Window, out: np.ndarray, *, mirrored: bool, method: str) -> bool:
        """Fills `out` uint8 [S, S, 3] with a window of a JPEG. False: the plain Python path must do it."""
        if not out.flags.c_contiguous:
            return False
        target = out.ctypes.data, len(out), mirrored, _METHODS[method]
        return bool(self._library.resize_jpeg(self._decoder(), encoded, len(encoded), *window, *target))

    def resize_pixels(self, image: np.ndarray, out: np.ndarray, *, mirrored: bool, method: str) -> bool:
        """Fills `out` uint8 [S, S, 3] with `image` uint8 [h, w, 3]. False: the arrays have another memory layout."""
        row, column, channel = image.strides
        if (column, channel) != (3, 1) or not out.flags.c_contiguous:
            return False
        source = image.ctypes.data, row, image.shape[0], image.shape[1]
        target = out.ctypes.data, len(out), mirrored, _METHODS[method]
        return bool(self._library.resize_pixels(self._decoder(), *source, *target))

    def color(self, image: np.ndarray, factor: float) -> np.ndarray:
        """As `operations.color`, for a C-contiguous image, which the methods below require too."""
        out = np.empty_like(image)
        self._library.color(image.ctypes.data, image.size // 3, factor, out.ctypes.data)
        return out

    def sharpness(self, image: np.ndarray, factor: float) -> np.ndarray:
        """As `operations.sharpness`."""
        out = np.empty_like(image)
        self._library.sharpness(image.ctypes.data, *image.shape[:2], factor, out.ctypes.data)
        return out

    def warp(self, image: np.ndarray, rows: Sequence[float], below_half: float, fill: int) -> np.ndarray:
        """out(x, y) = image(rows[:3] . (x, y, 1), rows[3:] . (x, y, 1)), the nearest pixel, or `fill`."""
        out = np.empty_like(image)
        self._library.warp(image.ctypes.data, *image.shape[:2], *rows, below_half, fill, out.ctypes.data)
        return out

    def _decoder(self) -> int | None:
        """The library's memory for this thread."""
        try:
            return self._of_thread.decoder.address
        except AttributeError:
            self._of_thread.decoder = _Decoder(self._library)
            return self._of_thread.decoder.address


class _Decoder:
    """Memory of the library, freed with the thread that holds it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.address: int = library.decoder_new()
        if not self.address:
            raise MemoryError
        self._free = library.decoder_free

    def __del__(self) -> None:
        if getattr(self, "address", None):
            self._free(self.address)


@functools.cache
def load() -> Library | None:
    """The library; None when it is missing or switched off."""
    if are_off():
        return None
    try:
        return Library(str(LIBRARY))
    except (OSError, AttributeError):  # the library, or a function in it, is missing
        return None
