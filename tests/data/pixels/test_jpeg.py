"""JPEG headers that lie, are odd or claim too much: the size that is checked is the size that is decoded."""

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from resnet_tpu.data.cleaning import BadImageError, clean_image
from resnet_tpu.data.loader.batches import train_batches
from resnet_tpu.data.pixels import jpeg, native
from resnet_tpu.data.pixels.decode import DecodeError, TooLargeError, decode
from resnet_tpu.data.pixels.preprocess import eval_image, train_image
from resnet_tpu.data.sources.image_files import FileSource
from resnet_tpu.options.config import Config

START, FRAME, SCAN = b"\xff\xd8", b"\xff\xc0", b"\xff\xda"
BARE = [0x01, *range(0xD0, 0xD8)]  # TEM, RST0 ... RST7


def picture(height: int, width: int, **options: object) -> bytes:
    coarse = np.random.default_rng(3).integers(0, 256, (5, 7, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize((width, height)).save(file, "JPEG", **options)
    return file.getvalue()


def with_size(encoded: bytes, height: int, width: int, frame: bytes = FRAME) -> bytes:
    """The file with another size in its header."""
    at = encoded.index(frame) + 5
    return encoded[:at] + struct.pack(">HH", height, width) + encoded[at + 4 :]


def segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", 2 + len(content)) + content


def with_hidden_size(encoded: bytes, height: int, width: int, marker: int) -> bytes:
    """The same image after a marker that has no length, and comments.

    A parser that takes the two bytes after that marker for a length jumps into the comments, finds a frame of this size
    there, and jumps from it to the pixels.
    """
    frame = encoded[encoded.index(FRAME) :]
    frame = with_size(frame[: 2 + struct.unpack_from(">H", frame, 2)[0]], height, width)
    jump = b"\xff\xe1" + struct.pack(">H", 2 + encoded.index(SCAN) - len(START))
    first = segment(0xFE, bytes(65530) + b"\xff\xe1\0")
    return START + bytes([0xFF, marker]) + first + segment(0xFE, bytes(250) + frame + jump) + encoded[2:]


@pytest.fixture(params=["C", "Python"], autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs each test with and without the library in C."""
    if request.param == "Python":
        monkeypatch.setattr(native, "load", lambda: None)
    elif not native.load():
        pytest.skip("the library in C was not built")
    return request.param


def pixels(encoded: bytes, *, honour_exif: bool = False) -> list[np.ndarray]:
    """The result of each way to decode the file."""
    found = [decode(encoded, honour_exif=honour_exif)]
    for seed in range(3):
        out = np.zeros((2, 16, 16, 3), np.uint8)
        train_image(encoded, 16, np.random.default_rng(seed), out[0], honour_exif=honour_exif)
        eval_image(encoded, 16, out[1], honour_exif=honour_exif)
        found += [*out]
    return found


@pytest.mark.parametrize("marker", BARE)
@pytest.mark.parametrize("hidden", [(3000, 4000), (16, 16), (20_000, 20_000)])
@pytest.mark.parametrize("size", [(8, 8), (60, 80)])
def test_markers_without_a_length_hide_no_size(size: tuple[int, int], hidden: tuple[int, int], marker: int) -> None:
    plain = picture(*size)
    lying = with_hidden_size(plain, *hidden, marker)
    header = jpeg.read_header(lying)
    assert header
    assert (header.height, header.width) == size
    if library := native.load():
        assert library.read_facts(lying) == (*size, False)
    for found, expected in zip(pixels(lying), pixels(plain), strict=True):
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(TooLargeError, match=rf"{size[1]} x {size[0]} pixels, expected at most 63 pixels"):
        decode(lying, max_pixels=63)


@pytest.mark.parametrize("hidden", [(3000, 4000), (16, 16)])
def test_a_lying_header_stops_no_training(tmp_path: Path, hidden: tuple[int, int]) -> None:
    for number in range(4):
        (tmp_path / "a").mkdir(exist_ok=True)
        encoded = picture(60 + number, 80)
        (tmp_path / "a" / f"{number}.jpg").write_bytes(with_hidden_size(encoded, *hidden, 1) if number % 2 else encoded)
    source = FileSource([str(tmp_path)], ["a", "b"])
    data = Config().replace(image_size=16, skip_bad_records=True, num_label_classes=2).data
    batches = train_batches(source, data, batch_size=4, seed=0)
    assert np.asarray(next(batches)["image"]).std((1, 2, 3)).min() > 0


def test_padding_before_markers_is_skipped() -> None:
    plain = picture(60, 80)
    padded = plain
    for marker in (SCAN, b"\xff\xc4", FRAME, b"\xff\xdb"):
        at = padded.index(marker)
        padded = padded[:at] + b"\xff\xff\xff" + padded[at:]
    for found, expected in zip(pixels(padded), pixels(plain), strict=True):
        np.testing.assert_array_equal(found, expected)


def odd() -> dict[str, bytes]:
    plain, progressive = picture(60, 80), picture(60, 80, progressive=True)
    frame = plain.index(FRAME)
    frame_size = 2 + struct.unpack_from(">H", plain, frame + 2)[0]
    own = plain[frame : frame + frame_size]
    scan, half = plain.index(SCAN), len(plain) * 3 // 4

    def framed(other: bytes) -> bytes:
        return plain[:frame] + other + plain[frame + frame_size :]

    return {
        "two frames": framed(own + own),
        "two frames of two sizes": framed(own + with_size(own, 600, 800)),
        "the larger frame first": framed(with_size(own, 600, 800) + own),
        "a frame behind the scan": plain[:half] + with_size(own, 600, 800) + plain[half:],
        "a frame at the end": plain[:-2] + with_size(own, 600, 800) + plain[-2:],
        "two images": plain + with_size(plain, 600, 800),
        "height later": with_size(plain, 0, 80)[:-2] + segment(0xDC, struct.pack(">H", 60)) + plain[-2:],
        "no width": with_size(plain, 60, 0),
        "no frame": framed(b""),
        "no components": framed(segment(0xC0, b"\x08\0\x3c\0\x50\0")),
        "more components than there are": framed(own[:9] + b"\x04" + own[10:]),
        "12 bits": framed(own[:4] + b"\x0c" + own[5:]),
        "frame too short": framed(own[:3] + b"\x08" + own[4:]),
        "lengths of 0": plain[:2] + b"\xff\xfe\0\0" + plain[2:],
        "end before the scan": plain[:scan] + b"\xff\xd9" + plain[scan:],
        "tables, then another image": START + b"\xff\xd9" + plain,
        "hierarchical": framed(segment(0xDE, with_size(own, 600, 800)[4:]) + own),
        "size by the number of a number": with_size(plain, 61, 81),
        "progressive with another size": with_size(progressive, 2000, 2000, b"\xff\xc2"),
    } | {f"kind {kind:X}": framed(bytes([0xFF, kind]) + own[2:]) for kind in range(0xC1, 0xD0)}  # fmt: skip


SOUND = {
    "a frame behind the scan", "two images", "tables, then another image", "size by the number of a number",
    "progressive with another size", "kind C1",
}  # fmt: skip
"""Of `odd`, what every decoder takes."""


@pytest.mark.parametrize("name", odd())
@pytest.mark.parametrize("honour_exif", [False, True])
def test_odd_headers_are_decoded_to_the_size_they_say_or_refused(name: str, honour_exif: bool) -> None:
    encoded = odd()[name]
    header = jpeg.read_header(encoded)
    try:
        found = pixels(encoded, honour_exif=honour_exif)
    except DecodeError:
        assert name not in SOUND
        return
    if header:
        assert found[0].shape == (header.height, header.width, 3)
    height, width, _ = found[0].shape
    with pytest.raises(TooLargeError):
        decode(encoded, max_pixels=height * width - 1)
    with pytest.raises(TooLargeError):
        eval_image(encoded, 16, np.empty((16, 16, 3), np.uint8), max_pixels=height * width - 1)


def test_sizes_beyond_the_bound_are_refused_before_decoding() -> None:
    out = np.empty((16, 16, 3), np.uint8)
    for encoded in (
        with_size(picture(60, 80), 20_000, 20_000),
        with_hidden_size(with_size(picture(60, 80), 20_000, 20_000), 16, 16, 1),
        with_size(picture(60, 80, progressive=True), 65_500, 65_500, b"\xff\xc2"),
    ):
        for attempt in (
            lambda file: decode(file),
            lambda file: eval_image(file, 16, out, honour_exif=True),
            lambda file: train_image(file, 16, np.random.default_rng(0), out),
        ):
            with pytest.raises(TooLargeError, match=r"\d+ x \d+ pixels, expected at most 178956970 pixels"):
                attempt(encoded)
        with pytest.raises(BadImageError):
            clean_image(encoded, "a.jpg")


def test_scans_without_end_are_refused() -> None:
    progressive = picture(60, 80, progressive=True)
    last = progressive.rindex(SCAN)
    again = progressive[:last] + progressive[last:-2] * jpeg.MAX_SCANS + b"\xff\xd9"
    for attempt in (decode, pixels):
        with pytest.raises(TooLargeError, match=r"a JPEG of \d+ scans"):
            attempt(again)
    with pytest.raises(BadImageError, match=r"\d+ scans"):
        clean_image(again, "a.jpg")


def test_exif_data_without_end_are_refused() -> None:
    plain, exif = picture(60, 80), b"\xff\xe1\x00\x08Exif\0\0"
    decode((plain[:2] + exif * jpeg.MAX_EXIF + plain[2:]) * 2, preprocessing="pil")  # only the first picture is read
    with pytest.raises(DecodeError, match="101 segments of EXIF data, more than 100"):
        decode(plain[:2] + exif * (jpeg.MAX_EXIF + 1) + plain[2:], preprocessing="pil")


@pytest.mark.parametrize("sampling", [0x14, 0x24, 0x42])
def test_unusual_sampling_is_what_pillow_decodes(sampling: int) -> None:
    plain = picture(64, 64, subsampling=0)
    at = plain.index(FRAME) + 11
    encoded = plain[:at] + bytes([sampling]) + plain[at + 1 :]
    with Image.open(io.BytesIO(encoded)) as image:
        np.testing.assert_array_equal(decode(encoded), np.asarray(image))
