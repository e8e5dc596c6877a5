"""From image files to pixels: they equal the original's, for every kind of file; errors are clear."""

import contextlib
import io
import struct
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Literal
from unittest.mock import Mock

import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageOps

from resnet_tpu.data.cleaning import clean_image
from resnet_tpu.data.pixels import jpeg
from resnet_tpu.data.pixels.decode import DecodeError, TooLargeError, decode
from resnet_tpu.data.pixels.preprocess import eval_image, train_image


def picture(height: int = 90, width: int = 120) -> Image.Image:
    """A smooth coloured picture without any symmetry."""
    coarse = np.random.default_rng(3).integers(0, 256, (5, 7, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    "encoded",
    [
        saved(Image.fromarray(np.full((1000, 1000), 300, np.uint16)), "PNG"),
        saved(Image.new("CMYK", (1000, 1000)), "JPEG"),
    ],
    ids=["16 bits", "CMYK"],
)
def test_decoding_takes_little_memory_beside_the_pixels(encoded: bytes) -> None:
    tracemalloc.start()
    decode(encoded)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 9 * 1000 * 1000


JPEGS = {
    "4:2:0": saved(picture(), "JPEG", subsampling=2),
    "4:2:2": saved(picture(), "JPEG", subsampling=1),
    "4:4:4": saved(picture(), "JPEG", subsampling=0),
    "progressive": saved(picture(), "JPEG", progressive=True),
    "restart markers": saved(picture(), "JPEG", restart_marker_rows=1),
    "grey": saved(picture().convert("L"), "JPEG"),
    "CMYK": saved(picture().convert("CMYK"), "JPEG"),
    "YCCK": simplejpeg.encode_jpeg(np.asarray(picture().convert("CMYK")), 95, "CMYK", "420"),
    "odd size": saved(picture(61, 37), "JPEG", subsampling=2),
    "EXIF thumbnail": saved(picture(), "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\0\0" + saved(picture(8, 8), "JPEG")),
}


@pytest.mark.parametrize("kind", JPEGS)
def test_jpeg_is_what_others_decode(kind: str) -> None:
    image = decode(JPEGS[kind])
    with Image.open(io.BytesIO(JPEGS[kind])) as file:
        mode, other = file.mode, np.asarray(file).astype(int)
    if mode == "CMYK":  # Pillow gives amounts of ink, which darken each other
        other = (255 - other[..., :3]) * (255 - other[..., 3:]) // 255
    elif mode == "L":
        other = np.repeat(other[..., None], 3, 2)
    assert image.dtype == np.uint8
    assert image.flags.c_contiguous
    # Pillow uses the exact integer transform, this decoder TensorFlow's fast one; they differ by up to 1.4 on average.
    assert np.abs(image - other).max() <= 8
    assert np.abs(image - other).mean() < 1.5


@pytest.mark.parametrize("kind", JPEGS)
def test_rows_of_a_jpeg_are_those_of_the_whole(kind: str) -> None:
    header = jpeg.read_header(JPEGS[kind])
    assert header
    whole = jpeg.decode(JPEGS[kind], header)
    assert whole.shape == (header.height, header.width, 3)
    for rows in range(1, header.height + 1):
        top = jpeg.decode(JPEGS[kind], header, rows)
        assert len(top) >= rows
        np.testing.assert_array_equal(top[:rows], whole[:rows])
    can_stop = kind != "progressive"
    assert (len(jpeg.decode(JPEGS[kind], header, 1)) < header.height) == can_stop


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF", "WEBP", "TIFF"])
@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA"])
def test_other_formats_keep_their_pixels(kind: str, mode: str) -> None:
    image = picture().convert(mode)
    encoded = saved(image, kind, **({"lossless": True} if kind == "WEBP" else {}))
    with Image.open(io.BytesIO(encoded)) as file:
        np.testing.assert_array_equal(decode(encoded), np.asarray(file.convert("RGB")))


def test_16_bit_png_keeps_the_high_bytes() -> None:
    grey = np.asarray(picture().convert("L")).astype(np.uint16) * 256 + 200
    np.testing.assert_array_equal(decode(saved(Image.fromarray(grey), "PNG"))[..., 1], grey >> 8)


@pytest.mark.parametrize(
    ("pixels", "why"),
    [
        (np.random.default_rng(0).random((20, 30), np.float32), "are floats"),
        (np.full((20, 30), 70_000, np.int32), "have more than 16 bits"),
    ],
)
def test_pixels_of_which_nothing_says_what_is_white_are_refused(pixels: np.ndarray, why: str) -> None:
    with pytest.raises(DecodeError, match=rf"bytes that cannot be decoded \(pixels {why}\), expected a whole JPEG"):
        decode(saved(Image.fromarray(pixels), "TIFF"))


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("preprocessing", ["tf", "pil"])
def test_what_lies_behind_the_end_of_a_jpeg_holds_no_scans(
    preprocessing: Literal["tf", "pil"], progressive: bool
) -> None:
    encoded = saved(picture(), "JPEG", progressive=progressive)
    found = [np.empty((16, 16, 3), np.uint8) for _ in range(2)]
    for file, out in zip((encoded, encoded + jpeg.SCAN * 201), found, strict=True):  # a film, or raw data
        eval_image(file, 16, out, preprocessing=preprocessing)
    np.testing.assert_array_equal(found[0], found[1])


def test_scans_are_counted_up_to_the_end_of_the_image() -> None:
    encoded = saved(picture(), "JPEG", progressive=True)
    count = encoded.count(jpeg.SCAN)
    comment = b"\xff\xfe\x00\x06" + jpeg.SCAN + b"\xff\xd9"
    assert jpeg.count_scans(encoded[:2] + comment + encoded[2:] + jpeg.SCAN) == count


def test_animation_gives_its_first_frame() -> None:
    frames = [picture().convert("P"), ImageOps.invert(picture()).convert("P")]
    encoded = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(decode(encoded), np.asarray(frames[0].convert("RGB")))


@pytest.mark.parametrize("kind", ["L", "P", "RGB"])
@pytest.mark.filterwarnings("error")
def test_transparency_is_dropped_without_a_word(kind: str) -> None:
    image = picture().convert(kind)
    for transparency in (0, bytes(range(256))) if kind == "P" else (3,) if kind == "L" else ((1, 2, 3),):
        np.testing.assert_array_equal(decode(saved(image, "PNG", transparency=transparency)), image.convert("RGB"))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("honour_exif", [False, True])
def test_tiff_is_turned_once(orientation: int, honour_exif: bool) -> None:
    """Pillow already rotates it on loading."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    expected = picture()
    expected.getexif()[0x0112] = orientation
    ImageOps.exif_transpose(expected, in_place=True)
    np.testing.assert_array_equal(decode(saved(picture(), "TIFF", exif=exif), honour_exif=honour_exif), expected)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF", "WEBP", "TIFF"])
def test_pixels_are_bounded_in_every_format(kind: str) -> None:
    encoded, out = saved(picture(), kind), np.empty((8, 8, 3), np.uint8)
    assert decode(encoded, max_pixels=90 * 120).shape == (90, 120, 3)
    eval_image(encoded, 8, out, max_pixels=90 * 120)
    with pytest.raises(TooLargeError, match=r"^Image: got 120 x 90 pixels, expected at most 10799 pixels"):
        decode(encoded, max_pixels=90 * 120 - 1)
    with pytest.raises(TooLargeError):
        eval_image(encoded, 8, out, max_pixels=90 * 120 - 1)


def png_of(height: int, width: int) -> bytes:
    """A small file that claims a large size, with 1 bit per pixel, all zero."""
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(bytes(10_000))), (b"IEND", b"")
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is of Linux")
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    "encoded",
    [
        png_of(12_000, 12_000),
        png_of(13_000, 13_800),
        png_of(100_000, 100_000),
        png_of(1_000_001, 1),
        b"GIF89a\xff\xff\xff\xff" + saved(picture(), "GIF")[10:],
        saved(picture(), "BMP")[:18] + struct.pack("<ii", 60_000, 60_000) + saved(picture(), "BMP")[26:],
    ],
)
def test_too_many_pixels_are_refused_before_they_take_memory(encoded: bytes, growth_mb: Callable[[], float]) -> None:
    out, most = np.empty((8, 8, 3), np.uint8), 100_000_000
    with pytest.raises(TooLargeError):
        decode(encoded, max_pixels=most)
    with pytest.raises(TooLargeError):
        eval_image(encoded, 8, out, honour_exif=True, max_pixels=most)
    assert growth_mb() < 100


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_orientation_is_honoured_on_demand(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    encoded = saved(picture(), kind, exif=exif.tobytes())
    stored = decode(encoded)
    assert stored.shape == (90, 120, 3)
    upright = Image.fromarray(stored)
    upright.getexif()[0x0112] = orientation
    expected = np.asarray(ImageOps.exif_transpose(upright))
    np.testing.assert_array_equal(decode(encoded, honour_exif=True), expected)
    out = np.empty((2, 48, 48, 3), np.uint8)
    eval_image(encoded, 48, out[0], honour_exif=True)
    eval_image(saved(Image.fromarray(expected), "PNG"), 48, out[1])
    np.testing.assert_array_equal(out[0], out[1])


def test_damage_that_does_no_harm_elsewhere_is_let_pass() -> None:
    good = JPEGS["4:4:4"]
    header = jpeg.read_header(good)
    assert header
    middle = len(good) * 2 // 3
    damaged = good[:middle] + bytes(byte ^ 0x55 for byte in good[middle : middle + 3]) + good[middle + 3 :]
    np.testing.assert_array_equal(decode(damaged)[:24], decode(good)[:24])
    tables = good.index(b"\xff\xdb")
    strayed = good[:tables] + b"\0\1\2" + good[tables:]  # stray bytes, as some cameras write them
    assert np.abs(decode(strayed).astype(int) - decode(good)).max() <= 6
    np.testing.assert_array_equal(decode(good + bytes(100)), decode(good))


BROKEN = {
    "nothing": b"",
    "text": b"this is a photo",
    "JPEG cut in the data": JPEGS["4:2:0"][:-40],
    "JPEG cut in the data, with a thumbnail": JPEGS["EXIF thumbnail"][:-40],
    "JPEG cut in the header": JPEGS["4:2:0"][:60],
    "JPEG without end": JPEGS["4:2:0"][:-2],
    "PNG cut": saved(picture(), "PNG")[:-300],
    "PNG with a chunk of 2 GB": saved(picture(), "PNG")[:33] + b"\x77\0\0\0IDAT" + bytes(50),
    "GIF cut": saved(picture(), "GIF")[:-300],
    "WebP cut": saved(picture(), "WEBP")[:-300],
    "EPS": saved(picture(), "EPS"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_image_is_an_error(kind: str) -> None:
    out = np.empty((32, 32, 3), np.uint8)
    for attempt in (
        lambda data: decode(data),
        lambda data: decode(data, honour_exif=True),
        lambda data: eval_image(data, 32, out),
        lambda data: train_image(data, 32, np.random.default_rng(0), out),
    ):
        with pytest.raises(DecodeError, match=r"^Image: got .+, expected a whole JPEG.*skip_bad_records"):
            attempt(BROKEN[kind])


def test_lack_of_memory_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = saved(picture(), "PNG")
    monkeypatch.setattr(Image.Image, "load", Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        decode(encoded)
    with pytest.raises(MemoryError):
        clean_image(encoded, "a.png")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is of Linux")
def test_a_broken_image_takes_no_more_memory_than_it_has_pixels(growth_mb: Callable[[], float]) -> None:
    for encoded in BROKEN.values():
        with pytest.raises(DecodeError):
            decode(encoded)
    assert growth_mb() < 100


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow warns of damaged EXIF data
@pytest.mark.parametrize("kind", [*JPEGS, "PNG", "GIF", "WEBP", "TIFF"])
def test_damage_is_decoded_or_an_error(kind: str) -> None:
    encoded = JPEGS.get(kind) or saved(picture(), kind)
    rng = np.random.default_rng(len(encoded))
    out = np.empty((32, 32, 3), np.uint8)
    for _ in range(60):
        damaged = bytearray(encoded)
        for place in rng.integers(0, min(300, len(encoded)), 3):
            damaged[place] = rng.integers(256)
        with contextlib.suppress(DecodeError):
            train_image(bytes(damaged), 32, rng, out, honour_exif=True)
    for end in range(0, min(300, len(encoded)), 3):
        with pytest.raises(DecodeError):
            decode(encoded[:end], honour_exif=True)
