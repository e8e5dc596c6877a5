"""The libraries in C: where they can be compiled, the installation has them; elsewhere their tests are skipped."""

import platform
import subprocess

import pytest

from resnet_tpu.data.pixels.native import build as pixels
from resnet_tpu.kernels.native import build as kernels


def needs(*headers: str) -> None:
    """Skips the test where no C compiler finds these headers."""
    source = "".join(f"#include <{name}>\n" for name in ("stdio.h", *headers))
    try:
        subprocess.run(["cc", "-E", "-"], input=source.encode(), capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"no C compiler with {', '.join(headers)}")


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the kernels are those of x86-64")
def test_the_kernels_are_compiled() -> None:
    needs("pthread.h", "dlfcn.h")
    assert kernels.LIBRARY.exists()


def test_the_decoder_is_compiled() -> None:
    needs("jpeglib.h")
    assert pixels.LIBRARY.exists()
