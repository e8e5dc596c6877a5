"""oneDNN's convolutions stay within the memory that they are given."""

import ctypes
import itertools
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from resnet_tpu.kernels import native
from resnet_tpu.kernels.native.build import FOLDER, locate_headers

pytestmark = pytest.mark.skipif("float32" not in native.load(), reason="needs the library in C, and oneDNN")

FORWARD, TO_INPUT, TO_KERNEL = range(3)
TYPES = {"float32": 11, "bfloat16": 16}  # values of XLA_FFI_DataType
MARK, BEYOND = 0x3C, 1 << 16


class Geometry(ctypes.Structure):
    """As in onednn.h: images, height, width and channels of the input and of the output; the kernel."""

    _fields_ = (
        ("input", ctypes.c_int64 * 4),
        ("output", ctypes.c_int64 * 4),
        ("size", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("before", ctypes.c_int64),
        ("dtype", ctypes.c_int64),
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """A library of onednn.c alone, with its scratch memory guarded."""
    if not shutil.which("cc"):
        pytest.skip("there is no C compiler")
    output = tmp_path_factory.mktemp("library") / "guarded.so"
    sources = [str(FOLDER / "onednn.c"), str(Path(__file__).with_name("guarded_memory.c"))]
    headers = f"-I{FOLDER}", f"-I{locate_headers()}"
    subprocess.run(["cc", "-fPIC", "-shared", *headers, "-o", str(output), *sources, "-ldl"], check=True)
    made = ctypes.CDLL(str(output))
    made.find_convolution.restype = ctypes.c_void_p
    made.kernel_bytes.argtypes, made.kernel_bytes.restype = [ctypes.c_void_p], ctypes.c_size_t
    made.convolve.argtypes, made.convolve.restype = [ctypes.c_void_p] * 4, ctypes.c_char_p
    assert made.load_onednn(native.locate_onednn())
    return made


def marked(size: int) -> np.ndarray:
    """`size` bytes of zeros, 64-byte aligned like XLA's, followed by marks."""
    memory = np.full(size + BEYOND + 64, MARK, np.uint8)
    memory = memory[-memory.ctypes.data % 64 :]
    memory[:size] = 0
    return memory


@pytest.mark.parametrize("dtype", [name for name in TYPES if name in native.load()])
@pytest.mark.parametrize("direction", [FORWARD, TO_INPUT, TO_KERNEL])
@pytest.mark.parametrize(("size", "stride"), [(1, 1), (1, 2), (3, 1), (3, 2), (7, 2)])
def test_nothing_is_written_beyond_the_end(
    library: ctypes.CDLL, size: int, stride: int, direction: int, dtype: str
) -> None:
    item = 4 if dtype == "float32" else 2
    for side, before, after in itertools.product((56, 100), (3, 4, 8, 12, 16, 20), (8, 32)):
        out = -(-side // stride)
        sides = (2, side, side, before), (2, out, out, after)
        geometry = Geometry(*((ctypes.c_int64 * 4)(*shape) for shape in sides), size, stride, size // 2, TYPES[dtype])
        convolution = library.find_convolution(ctypes.byref(geometry), direction)
        sizes = [int(np.prod(sides[0])) * item, library.kernel_bytes(convolution), int(np.prod(sides[1])) * item]
        buffers = [marked(size) for size in sizes]
        assert library.convolve(convolution, *(buffer.ctypes.data for buffer in buffers)) is None
        assert all((buffer[size:] == MARK).all() for buffer, size in zip(buffers, sizes, strict=True))
        assert not library.was_overrun(), (side, before, after)
