"""The library in C gives the same pixels as the plain path, to the bit, and leaves unusual files to it."""

import errno
import io
import itertools
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from resnet_tpu.data.pixels import native
from resnet_tpu.data.pixels.crop import Window
from resnet_tpu.data.pixels.decode import DecodeError, decode
from resnet_tpu.data.pixels.native.build import LIBRARY, BuildError, build
from resnet_tpu.data.pixels.operations import OPERATIONS
from resnet_tpu.data.pixels.preprocess import eval_image, train_image
from resnet_tpu.data.pixels.resize import Method, resize, resize_to_uint8
from resnet_tpu.system.c_libraries import SWITCH

METHODS: tuple[Method, ...] = ("bicubic", "bilinear")
FUZZ = Path(__file__).parents[2] / "fuzz"
SAMPLINGS = ("444", "422", "420", "440", "Gray")


@pytest.fixture(scope="module")
def library() -> native.Library:
    if not LIBRARY.exists():
        pytest.skip("the library in C was not built: no compiler, or no libjpeg-turbo with its headers")
    return native.Library(str(LIBRARY))


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The environment; after changing RESNET_TPU_NATIVE, call `native.load.cache_clear()`, so that it is read again."""
    yield monkeypatch
    monkeypatch.undo()
    native.load.cache_clear()


def picture(height: int, width: int) -> np.ndarray:
    """A coloured image with edges, flat parts and noise."""
    rng = np.random.default_rng(height * 1000 + width)
    coarse = np.asarray(
        Image.fromarray(rng.integers(0, 256, (4, 5, 3), np.uint8)).resize((width, height), Image.Resampling.NEAREST)
    )
    noise = rng.integers(-40, 41, (height, width, 3)) * (np.arange(width) > width // 2)[:, None]
    return np.clip(coarse + noise, 0, 255).astype(np.uint8)


def encode(height: int, width: int, sampling: str = "420", quality: int = 90) -> bytes:
    image = picture(height, width)
    if sampling == "Gray":
        return simplejpeg.encode_jpeg(np.ascontiguousarray(image[..., :1]), quality, "GRAY", "Gray")
    return simplejpeg.encode_jpeg(image, quality, "RGB", sampling)


def saved(image: np.ndarray, **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", **options)
    return file.getvalue()


def expected(image: np.ndarray, size: int, *, mirrored: bool = False, method: Method = "bicubic") -> np.ndarray:
    return np.clip(np.rint(resize(image, size, mirrored=mirrored, method=method)), 0, 255).astype(np.uint8)


def windows(height: int, width: int) -> list[Window]:
    """Windows in every kind of position: at each edge or away from it, on or next to the border of a coding unit."""
    ys, xs = (sorted({0, 1, 7, 8, 9, 15, 16, 17, 18, n // 2, n - 9, n - 1} & set(range(n))) for n in (height, width))
    rng = np.random.default_rng(height * width)
    found = [Window(0, 0, height, width)]
    for y, x in itertools.product(ys, xs):
        found.append(Window(y, x, int(rng.integers(1, height - y + 1)), int(rng.integers(1, width - x + 1))))
    for y, x in zip(ys, itertools.cycle(xs), strict=False):
        found.append(Window(y, x, height - y, width - x))
    return found


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (3, 2), (8, 8), (9, 5), (16, 17), (37, 61), (64, 48), (50, 131)])
def test_every_window_has_the_pixels_of_the_plain_path(
    library: native.Library, sampling: str, shape: tuple[int, int]
) -> None:
    encoded = encode(*shape, sampling)
    assert library.read_facts(encoded) == native.Facts(*shape, False)
    image = decode(encoded)
    for number, window in enumerate(windows(*shape)):
        size, mirrored, method = (1, 5, 16, 40)[number % 4], bool(number // 4 % 2), METHODS[number // 8 % 2]
        out = np.empty((size, size, 3), np.uint8)
        assert library.resize_jpeg(encoded, window, out, mirrored=mirrored, method=method)
        np.testing.assert_array_equal(out, expected(window.cut(image), size, mirrored=mirrored, method=method))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("size", [1, 7, 32, 64])
def test_decoded_pixels_are_resized_as_by_the_plain_path(
    library: native.Library, method: Method, mirrored: bool, size: int
) -> None:
    for height, width in [(1, 1), (2, 1), (1, 3), (13, 40), (64, 64), (200, 77), (300, 290)]:
        image = np.random.default_rng(width).choice([0, 3, 128, 255], (height + 2, width + 3, 3)).astype(np.uint8)
        out = np.empty((size, size, 3), np.uint8)
        for view in (image[1 : height + 1, 2 : width + 2], np.ascontiguousarray(image[:height, :width])[::-1]):
            assert library.resize_pixels(view, out, mirrored=mirrored, method=method)
            np.testing.assert_array_equal(out, expected(view, size, mirrored=mirrored, method=method))


def test_arrays_that_lie_otherwise_in_memory_are_left_to_the_plain_path(library: native.Library) -> None:
    image = picture(20, 30)
    out, wide = np.empty((8, 8, 3), np.uint8), np.empty((8, 8, 4), np.uint8)
    for odd in (image[:, ::-1], image[..., ::-1], image.transpose(1, 0, 2)):
        assert not library.resize_pixels(odd, out, mirrored=False, method="bicubic")
        resize_to_uint8(odd, out)
        np.testing.assert_array_equal(out, expected(odd, 8))
    assert not library.resize_pixels(image, wide[..., :3], mirrored=False, method="bicubic")
    assert not library.resize_jpeg(encode(20, 30), Window(0, 0, 9, 9), wide[..., :3], mirrored=False, method="bicubic")
    assert not library.resize_pixels(image[:0], out, mirrored=False, method="bicubic")


UNUSUAL = {
    "no JPEG": b"a photo",
    "nothing": b"",
    "4:1:1": encode(40, 50, "411"),
    "progressive": saved(picture(40, 50), progressive=True),
    "CMYK": simplejpeg.encode_jpeg(np.dstack([picture(40, 50), picture(40, 50)[..., :1]]), 90, "CMYK", "420"),
    "cut": encode(40, 50)[:-100],
    "without end": encode(40, 50)[:-2],
    "header only": encode(40, 50)[:500],
    "restart missing": saved(picture(40, 50), restart_marker_rows=1).replace(b"\xff\xd1", b""),
    "restart in disorder": saved(picture(40, 50), restart_marker_rows=1).replace(b"\xff\xd1", b"\xff\xd3"),
    "marker in the data": encode(90, 50).replace(b"\xff\0", b"\xff\xc4", 1),
    "padding at the end": encode(90, 50)[:-2] + b"\xff\xff\xff\xd9",
}


@pytest.mark.parametrize("kind", UNUSUAL)
def test_refuses_unusual_images_and_windows(library: native.Library, kind: str) -> None:
    out = np.empty((8, 8, 3), np.uint8)
    assert not library.resize_jpeg(UNUSUAL[kind], Window(0, 0, 30, 30), out, mirrored=False, method="bicubic")
    good = encode(40, 50)
    for window in [(-1, 0, 5, 5), (0, -1, 5, 5), (0, 0, 0, 5), (36, 0, 5, 5), (0, 46, 5, 5), (0, 0, 2**31 - 1, 5)]:
        assert not library.resize_jpeg(good, Window(*window), out, mirrored=False, method="bicubic")
    assert library.resize_jpeg(good, Window(0, 0, 40, 50), out, mirrored=False, method="bicubic")


USUAL = {
    "high quality": encode(61, 47, "444", 100),
    "low quality": encode(61, 47, "420", 5),
    "own Huffman code": saved(picture(61, 47), quality=97, optimize=True),
    "restart in rows": saved(picture(61, 47), restart_marker_rows=1),
    "restart in blocks": saved(picture(61, 47), restart_marker_blocks=3, subsampling=0),
    "grey, restart in blocks": saved(picture(61, 47)[..., 0], restart_marker_blocks=1),
    "EXIF": saved(picture(61, 47), exif=b"Exif\0\0II*\0\x08\0\0\0\0\0" + encode(16, 16)),
    "bytes after the end": encode(61, 47) + b"\xff\xd8 and more",
}


@pytest.mark.parametrize("kind", USUAL)
def test_the_usual_is_not_refused(library: native.Library, kind: str) -> None:
    facts = library.read_facts(USUAL[kind])
    assert facts == native.Facts(61, 47, kind == "EXIF")
    image = decode(USUAL[kind])
    for window in windows(61, 47):
        out = np.empty((20, 20, 3), np.uint8)
        assert library.resize_jpeg(USUAL[kind], window, out, mirrored=True, method="bicubic")
        np.testing.assert_array_equal(out, expected(window.cut(image), 20, mirrored=True))


@pytest.mark.parametrize("length", [0, 1, 2, 9])
def test_many_metadata_segments_are_skipped_like_one(library: native.Library, length: int) -> None:
    plain, out = encode(61, 47), np.empty((2, 20, 20, 3), np.uint8)
    segment = b"\xff\xe1" + length.to_bytes(2, "big") + bytes(max(0, length - 2))
    for count in (1, 300_000):  # so many that quadratic time would exceed the test's limit
        file = plain[:2] + segment * count + plain[2:]
        assert library.read_facts(file) == native.Facts(61, 47, True)
        for encoded, target in zip((plain, file), out, strict=True):
            assert library.resize_jpeg(encoded, Window(3, 2, 50, 40), target, mirrored=False, method="bicubic")
        np.testing.assert_array_equal(out[0], out[1])
    for end in range(2, 4 + len(segment)):
        assert library.read_facts(file[:end]) is None


def damaged(count: int) -> list[bytes]:
    """JPEGs with a few wrong bytes in the header or the data, truncated, or with parts exchanged."""
    rng = np.random.default_rng(7)
    kinds = [*USUAL.values(), *UNUSUAL.values(), *(encode(45, 70, sampling) for sampling in SAMPLINGS)]
    kinds = [kind for kind in kinds if len(kind) > 100]
    found = []
    for number in range(count):
        file = bytearray(kinds[number % len(kinds)])
        size = len(file) if number % 3 else 700
        for _ in range(rng.integers(1, 4)):
            place = int(rng.integers(2, min(size, len(file))))
            file[place] = (0, 255, int(rng.integers(256)), file[place] ^ 1 << int(rng.integers(8)))[rng.integers(4)]
        if number % 10 == 0:
            cut, again = sorted(rng.integers(0, len(file), 2).tolist())
            file = file[:cut] + file[again:]
        found.append(bytes(file))
    return found


def test_damaged_files_end_as_on_the_plain_path(library: native.Library, switch: pytest.MonkeyPatch) -> None:
    outcomes = []
    for value in ("1", "0"):
        switch.setenv(SWITCH, value)
        native.load.cache_clear()
        assert (native.load() is None) == (value == "0")
        outcomes.append([])
        for number, file in enumerate(damaged(600)):
            out = np.zeros((24, 24, 3), np.uint8)
            try:
                train_image(file, 24, np.random.default_rng(number), out, honour_exif=bool(number % 2))
            except DecodeError as error:
                outcomes[-1].append(str(error))
            else:
                outcomes[-1].append(out.tobytes())
    differs = [number for number, pair in enumerate(zip(*outcomes, strict=True)) if pair[0] != pair[1]]
    assert differs == []


@pytest.mark.parametrize("resize_method", METHODS)
def test_images_are_the_same_with_and_without_the_library(
    library: native.Library, photos: Path, switch: pytest.MonkeyPatch, resize_method: Method
) -> None:
    files = [path.read_bytes() for path in sorted((photos / "imagenet_samples").glob("*"))[::4]]
    found = []
    for value in ("1", "0"):
        switch.setenv(SWITCH, value)
        native.load.cache_clear()
        rows = np.empty((3 * len(files), 112, 112, 3), np.uint8)
        for number, file in enumerate(files):
            rng = np.random.default_rng(number)
            train_image(file, 112, rng, rows[3 * number], resize_method=resize_method)
            train_image(decode(file), 112, rng, rows[3 * number + 1], resize_method=resize_method)
            eval_image(file, 112, rows[3 * number + 2], resize_method=resize_method)
        found.append(rows)
    np.testing.assert_array_equal(*found)


def test_threads_do_not_disturb_each_other(library: native.Library) -> None:
    jobs = [(encode(90 + i, 80, sampling), i) for i, sampling in enumerate(SAMPLINGS * 4)]
    found: dict[int, np.ndarray] = {}

    def work(encoded: bytes, number: int) -> None:
        out = np.empty((32, 32, 3), np.uint8)
        for _ in range(20):
            assert library.resize_jpeg(encoded, Window(3, 4, 70, 60), out, mirrored=False, method="bicubic")
        found[number] = out

    threads = [threading.Thread(target=work, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for encoded, number in jobs:
        np.testing.assert_array_equal(found[number], expected(Window(3, 4, 70, 60).cut(decode(encoded)), 32))


def test_orientation_is_honoured(library: native.Library) -> None:
    exif = Image.Exif()
    for orientation in range(1, 9):
        exif[0x0112] = orientation
        encoded = saved(picture(40, 70), exif=exif.tobytes())
        out, plain = np.empty((2, 16, 16, 3), np.uint8)
        eval_image(encoded, 16, out, honour_exif=True)
        eval_image(decode(encoded, honour_exif=True), 16, plain)
        np.testing.assert_array_equal(out, plain)


def test_compiler_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "crop.so"
    target.write_text("present")
    for compiler in ("false", "no_such_compiler -m", "cc '"):
        monkeypatch.setenv("CC", compiler)
        with pytest.raises(BuildError):
            build(target)
    assert [path.name for path in tmp_path.iterdir()] == ["crop.so"]
    assert target.read_text() == "present"


@pytest.mark.parametrize("variable", ["CPPFLAGS", "CFLAGS", "LDFLAGS"])
def test_flags_of_the_environment_are_used(variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "echo")  # in place of a compiler
    monkeypatch.setenv(variable, "--mine '-I/a folder'")
    called = Mock(wraps=subprocess.run)
    monkeypatch.setattr(subprocess, "run", called)
    with pytest.raises(BuildError):
        build(tmp_path / "crop.so")
    words = called.call_args.args[0]
    at = words.index("--mine")
    assert words[at + 1] == "-I/a folder"
    assert (at < words.index("-std=gnu11")) == (variable != "LDFLAGS")  # so that the library's own flags win


def test_where_nothing_can_be_written_there_is_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = OSError(errno.EROFS, "Read-only file system")
    monkeypatch.setattr(tempfile, "TemporaryDirectory", Mock(side_effect=refused))
    with pytest.raises(BuildError, match="Read-only file system"):
        build(tmp_path / "crop.so")


@pytest.mark.long
@pytest.mark.parametrize("compiler", ["clang", ""])
def test_any_compiler_makes_the_same_library(
    compiler: str, library: native.Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shutil.which(compiler or "cc"):
        pytest.skip(f"no {compiler} here")
    monkeypatch.setenv("CC", compiler)  # empty: as if it were not set
    made = native.Library(str(build(tmp_path / "crop.so")))
    image = np.random.default_rng(0).integers(0, 256, (40, 70, 3), np.uint8)
    for one in (lambda of: of.color(image, 0.7), lambda of: of.sharpness(image, 1.9)):
        np.testing.assert_array_equal(one(made), one(library))


SANITIZED = """
import pickle, sys
import numpy as np
from resnet_tpu.system.c_libraries import SWITCH
from resnet_tpu.data.pixels import native
from resnet_tpu.data.pixels.crop import sample_crop_window
library = native.Library(sys.argv[1])
rng, done = np.random.default_rng(0), 0
for file in pickle.load(open(sys.argv[2], "rb")):
    facts = library.read_facts(file)
    for method in ("bicubic", "bilinear"):
        size = int(rng.integers(1, 40))
        window = sample_crop_window(rng, *(facts[:2] if facts else (40, 50)), 0.01)
        out = np.empty((size, size, 3), np.uint8)
        done += library.resize_jpeg(file, window, out, mirrored=bool(rng.integers(2)), method=method)
print(done)
"""


@pytest.mark.long
def test_no_input_makes_a_memory_error(library: native.Library, tmp_path: Path) -> None:
    try:
        built = build(
            tmp_path / "crop.so", "-fsanitize=address,undefined", "-fno-sanitize-recover", "-g", "-DMOST_KEPT=0"
        )
    except BuildError:
        pytest.skip("the compiler has no sanitizers")
    runtime = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    if not Path(runtime).is_absolute():
        pytest.skip("the compiler's sanitizers are no library of their own")
    files = damaged(1500)
    fuzzed = [path.read_bytes() for path in sorted(FUZZ.glob("*/image/*"))]
    assert fuzzed
    (tmp_path / "files").write_bytes(pickle.dumps([*files, *USUAL.values(), *UNUSUAL.values(), *fuzzed]))
    run = subprocess.run(
        [sys.executable, "-c", SANITIZED, str(built), str(tmp_path / "files")],
        env=os.environ | {"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert 100 < int(run.stdout) < 2 * len(files)  # some damage is noticed, some is not


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (3, 2), (40, 513), (31, 1100)])
@pytest.mark.parametrize("name", ["Color", "Sharpness", "Rotate", "ShearX", "ShearY"])
def test_operations_give_the_pixels_of_the_plain_ones(
    library: native.Library, name: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = OPERATIONS["tf"][name]
    images = [picture(*shape), np.full((*shape, 3), 77, np.uint8)]
    for image, amount in itertools.product(images, (-30.0, -0.3, 0.1, 1.0, 1.9, 1e30)):
        monkeypatch.setattr(native, "load", lambda: library)
        found = operation(image, amount)
        monkeypatch.setattr(native, "load", lambda: None)
        np.testing.assert_array_equal(found, operation(image, amount), err_msg=str(amount))
