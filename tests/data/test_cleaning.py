"""Each kind of photo becomes a JPEG of the same picture, upright and small enough, or is reported as bad."""

import io
import struct
import zlib
from pathlib import Path
from typing import get_args

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps, PngImagePlugin

from resnet_tpu.data.cleaning import BadImageError, Limits, Subsampling, clean_image
from resnet_tpu.data.findings import Kind
from resnet_tpu.data.pixels.decode import decode


def pixels(encoded: bytes) -> np.ndarray:
    image = Image.open(io.BytesIO(encoded))
    assert image.format == "JPEG"
    assert image.mode in ("RGB", "L")
    return np.asarray(image.convert("RGB")).astype(float)


def kinds(data: bytes, name: str, limits: Limits = Limits()) -> list[Kind]:  # noqa: B008
    return [kind for kind, _ in clean_image(data, name, limits).notes]


@pytest.mark.parametrize(("mode", "progressive"), [("RGB", False), ("RGB", True), ("L", False)])
def test_a_good_jpeg_keeps_its_bytes(tmp_path: Path, draw, mode: str, progressive: bool) -> None:
    data = draw(tmp_path / "a.JPG", mode=mode, progressive=progressive).read_bytes()
    assert clean_image(data, "a.JPG") == (data, 18, 24, [])
    assert clean_image(data, "a.JPG", Limits(max_side=24, short_side=18, quality=50)).encoded == data


@pytest.mark.parametrize("suffix", ["png", "bmp", "gif", "webp", "tiff", "TIF"])
def test_other_formats_become_jpeg(tmp_path: Path, draw, suffix: str) -> None:
    save = {"lossless": True} if suffix == "webp" else {}
    data = draw(tmp_path / f"a.{suffix}", size=(150, 140), **save).read_bytes()
    image = clean_image(data, f"a.{suffix}")
    assert [kind for kind, _ in image.notes] == [Kind.CONVERTED]
    assert (image.height, image.width) == (140, 150)
    original = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(float)
    assert abs(pixels(image.encoded) - original).mean() < (3 if suffix == "gif" else 2)  # dithering compresses badly
    assert kinds(data, "a.jpg") == [Kind.MISNAMED]


def test_a_comment_may_be_longer_than_a_jpeg_can_hold() -> None:
    for length in (10, 65_533, 65_534, 100_000):
        file = io.BytesIO()
        Image.new("RGB", (9, 8)).save(file, "GIF", comment=b"c" * length)
        assert pixels(clean_image(file.getvalue(), "x.gif").encoded).shape == (8, 9, 3)
    text = PngImagePlugin.PngInfo()
    text.add_text("comment", "é" * 40_000)  # in UTF-8 twice as long
    file = io.BytesIO()
    Image.new("RGB", (9, 8)).save(file, "PNG", pnginfo=text)
    assert pixels(clean_image(file.getvalue(), "x.png").encoded).shape == (8, 9, 3)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA"])
def test_every_mode_of_png(tmp_path: Path, draw, mode: str) -> None:
    data = draw(tmp_path / "a.png", mode=mode).read_bytes()
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(float)
    assert abs(pixels(clean_image(data, "a.png").encoded) - expected).mean() < 3


def test_sixteen_bits_are_scaled(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    cv2.imwrite(str(tmp_path / "a.png"), ramp)
    found = pixels(clean_image((tmp_path / "a.png").read_bytes(), "a.png").encoded)[..., 0]
    assert abs(found - (ramp >> 8)).max() <= 3


def test_a_jpeg_named_png_is_kept(tmp_path: Path, draw) -> None:
    data = draw(tmp_path / "a.jpg").read_bytes()
    image = clean_image(data, "a.png")
    assert (image.encoded, image.notes) == (data, [(Kind.MISNAMED, "is JPEG")])


def test_cmyk_becomes_rgb(tmp_path: Path, draw) -> None:
    rgb = draw(tmp_path / "rgb.png", size=(150, 140))
    data = draw(tmp_path / "a.jpg", size=(150, 140), mode="CMYK", quality=100).read_bytes()
    image = clean_image(data, "a.jpg")
    assert [kind for kind, _ in image.notes] == [Kind.CMYK]
    assert abs(pixels(image.encoded) - np.asarray(Image.open(rgb)).astype(float)).mean() < 3


@pytest.mark.parametrize("orientation", [1, 6])
def test_cmyk_has_the_colours_that_training_gives_it(tmp_path: Path, draw, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    inverted = draw(tmp_path / "a.jpg", size=(150, 140), mode="CMYK", quality=100, exif=exif).read_bytes()
    start = inverted.index(b"\xff\xee")  # Adobe's segment, which says so
    plain = inverted[:start] + inverted[start + 2 + int.from_bytes(inverted[start + 2 : start + 4], "big") :]
    for data in (inverted, plain):
        assert abs(pixels(clean_image(data, "a.jpg").encoded) - decode(data, honour_exif=True)).mean() < 3
    assert abs(decode(plain).astype(float) - decode(inverted)).mean() > 50


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
def test_exif_rotation_is_honoured(tmp_path: Path, draw, orientation: int, suffix: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = draw(tmp_path / f"a.{suffix}", size=(150, 130), exif=exif)
    upright = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    image = clean_image(path.read_bytes(), path.name)
    assert (Kind.TURNED in [kind for kind, _ in image.notes]) == (orientation > 1)
    assert (image.width, image.height) == upright.size
    assert abs(pixels(image.encoded) - np.asarray(upright)).mean() < 4
    if orientation > 1:
        assert Image.open(io.BytesIO(image.encoded)).getexif().get(0x0112, 1) == 1
    small = clean_image(path.read_bytes(), path.name, Limits(max_side=60))
    assert max(small.width, small.height) == 60
    assert (small.width > small.height) == (upright.width > upright.height)


@pytest.mark.parametrize("suffix", ["gif", "webp", "png", "tiff"])
def test_the_first_of_several_frames(tmp_path: Path, suffix: str) -> None:
    frames = [Image.new("RGB", (20, 20), colour) for colour in ("red", "lime", "blue")]
    path = tmp_path / f"a.{suffix}"
    frames[0].save(path, save_all=True, append_images=frames[1:])
    image = clean_image(path.read_bytes(), path.name)
    assert (Kind.ANIMATED, "3 frames") in image.notes
    assert abs(pixels(image.encoded).mean((0, 1)) - [255, 0, 0]).max() < 5


@pytest.mark.parametrize(
    ("limits", "size"),
    [
        (Limits(max_side=100), (100, 75)),
        (Limits(short_side=100), (133, 100)),
        (Limits(max_side=100, short_side=100), (100, 75)),
        (Limits(max_side=1000), (400, 300)),
        (Limits(max_side=1), (1, 1)),
    ],
)
def test_large_photos_are_made_smaller(tmp_path: Path, draw, limits: Limits, size: tuple[int, int]) -> None:
    data = draw(tmp_path / "a.jpg", size=(400, 300), quality=95).read_bytes()
    image = clean_image(data, "a.jpg", limits)
    assert (image.width, image.height) == size
    assert pixels(image.encoded).shape == (size[1], size[0], 3)
    assert [kind for kind, _ in image.notes] == ([] if size == (400, 300) else [Kind.SCALED])
    reference = Image.open(io.BytesIO(data)).resize(size, Image.Resampling.LANCZOS)
    assert abs(pixels(image.encoded) - np.asarray(reference)).mean() < 3


def test_quality_is_of_what_is_encoded_again(tmp_path: Path, draw) -> None:
    data = draw(tmp_path / "a.png", size=(200, 200)).read_bytes()
    sizes = [len(clean_image(data, "a.png", Limits(quality=quality)).encoded) for quality in (20, 80, 100)]
    assert sizes == sorted(sizes)
    assert sizes[2] == len(clean_image(data, "a.png").encoded)


@pytest.mark.parametrize("size", [(300, 200), (90, 60)])
def test_recompressed_the_picture_stays_and_the_file_shrinks(tmp_path: Path, draw, size: tuple[int, int]) -> None:
    data = draw(tmp_path / "a.jpg", size=size, quality=100, subsampling="4:4:4").read_bytes()
    image = clean_image(data, "a.jpg", Limits(recompress=True))
    assert [kind for kind, _ in image.notes] == [Kind.RECOMPRESSED]
    assert (image.width, image.height) == size
    assert len(image.encoded) < len(data)
    difference = pixels(image.encoded) - pixels(data)
    assert 10 * np.log10(255**2 / (difference**2).mean()) > 36  # dB
    assert simplejpeg.decode_jpeg_header(image.encoded)[3] == ("420" if min(size) >= 128 else "444")


def test_how_it_is_recompressed(tmp_path: Path, draw) -> None:
    data = draw(tmp_path / "a.jpg", size=(300, 200), quality=100, subsampling="4:4:4").read_bytes()
    found = [clean_image(data, "a.jpg", Limits(recompress=True, quality=quality)).encoded for quality in (95, 90, 50)]
    assert found[0] == clean_image(data, "a.jpg", Limits(recompress=True)).encoded
    assert len(found[0]) > len(found[1]) > len(found[2])
    for name in get_args(Subsampling):
        encoded = clean_image(data, "a.jpg", Limits(recompress=True, subsampling=name)).encoded
        assert simplejpeg.decode_jpeg_header(encoded)[3] == name.replace(":", "")
    small = clean_image(data, "a.jpg", Limits(short_side=150, subsampling="4:4:4"))
    assert simplejpeg.decode_jpeg_header(small.encoded)[3] == "444"
    assert small == clean_image(data, "a.jpg", Limits(short_side=150, subsampling="4:4:4", recompress=True))


def test_what_would_not_shrink_keeps_its_bytes(tmp_path: Path, draw) -> None:
    data = draw(tmp_path / "a.jpg", size=(300, 200), quality=60).read_bytes()
    assert clean_image(data, "a.jpg", Limits(recompress=True)) == (data, 200, 300, [])
    once = clean_image(data, "a.jpg", Limits(recompress=True, quality=40)).encoded
    assert len(once) < len(data)
    again = clean_image(once, "a.jpg", Limits(recompress=True, quality=40)).encoded
    assert len(again) <= len(once)


def test_conversions_are_no_larger_than_what_is_recompressed(tmp_path: Path, draw) -> None:
    data = draw(tmp_path / "a.png", size=(200, 200)).read_bytes()
    image = clean_image(data, "a.png", Limits(recompress=True))
    assert image == clean_image(data, "a.png", Limits(quality=95))
    assert [kind for kind, _ in image.notes] == [Kind.CONVERTED]


@pytest.mark.parametrize(
    ("data", "name", "kind"),
    [
        (b"", "a.jpg", Kind.EMPTY_FILE),
        (b"some text", "a.jpg", Kind.UNREADABLE),
        (b"\xff\xd8\xff" + bytes(100), "a.jpg", Kind.UNREADABLE),
        (b"%PDF-1.4 ...", "a.png", Kind.UNREADABLE),
    ],
)
def test_refuses_bytes_that_are_no_image(data: bytes, name: str, kind: Kind) -> None:
    with pytest.raises(BadImageError) as caught:
        clean_image(data, name)
    assert caught.value.kind is kind


def test_what_is_too_long_for_a_jpeg_says_what_to_do(tmp_path: Path, draw) -> None:
    data = draw(tmp_path / "a.png", size=(65_501, 2)).read_bytes()
    with pytest.raises(BadImageError, match=r"65501 x 2 pixels; a JPEG has at most 65,500 a side: give max_side"):
        clean_image(data, "a.png")
    assert clean_image(data, "a.png", Limits(max_side=60_000)).width == 60_000


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("limits", [Limits(), Limits(max_side=20), Limits(recompress=True)])
def test_every_truncation_of_a_jpeg_is_noticed(tmp_path: Path, draw, progressive: bool, limits: Limits) -> None:
    data = draw(tmp_path / "a.jpg", size=(64, 48), progressive=progressive).read_bytes()
    for size in range(1, len(data) - 1):
        with pytest.raises(BadImageError):
            clean_image(data[:size], "a.jpg", limits)


def test_truncated_files_are_called_so(tmp_path: Path, draw) -> None:
    for name in ("a.jpg", "a.png"):
        data = draw(tmp_path / name, size=(200, 200)).read_bytes()
        with pytest.raises(BadImageError) as caught:
            clean_image(data[: len(data) // 2], name)
        assert caught.value.kind is Kind.TRUNCATED


def test_stray_bytes_in_a_jpeg_are_reported_and_kept(tmp_path: Path, draw) -> None:
    data = draw(tmp_path / "a.jpg", progressive=True).read_bytes()
    last_scan = data.rindex(b"\xff\xda")
    stray = data[:last_scan] + b"\x12\x34\x56" + data[last_scan:]
    image = clean_image(stray, "a.jpg")
    assert image.encoded == stray
    assert [kind for kind, _ in image.notes] == [Kind.DAMAGED]


def test_too_many_pixels_are_refused() -> None:
    file = io.BytesIO()
    Image.new("1", (1, 1)).save(file, "PNG")
    header = b"IHDR" + struct.pack(">IIBBBBB", 20_000, 20_000, 1, 0, 0, 0, 0)
    with pytest.raises(BadImageError) as caught:
        clean_image(
            file.getvalue()[:12] + header + struct.pack(">I", zlib.crc32(header)) + file.getvalue()[33:], "a.png"
        )
    assert caught.value.kind is Kind.UNSUPPORTED


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damage_is_an_image_or_a_bad_image(tmp_path: Path, draw, data: st.DataObject) -> None:
    suffix = data.draw(st.sampled_from(["jpg", "png", "gif", "bmp", "webp", "tiff"]))
    whole = bytearray(draw(tmp_path / f"a.{suffix}").read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        image = clean_image(bytes(whole), f"a.{suffix}", Limits(max_side=data.draw(st.sampled_from([None, 10]))))
    except BadImageError:
        return
    assert pixels(image.encoded).shape == (image.height, image.width, 3)


@pytest.mark.parametrize("suffix", ["png", "webp"])
def test_broken_exif_does_not_make_a_photo_worse(tmp_path: Path, draw, suffix: str) -> None:
    plain = draw(tmp_path / f"plain.{suffix}", size=(150, 130))
    broken = draw(tmp_path / f"broken.{suffix}", size=(150, 130), exif=b"Exif\0\0garbage-not-tiff")
    assert clean_image(broken.read_bytes(), broken.name) == clean_image(plain.read_bytes(), plain.name)
