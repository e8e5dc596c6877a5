"""Images damaged by a seeded fuzzer: each is decoded or refused by itself; nothing crashes, hangs or leaks memory.

For the same over HTTP, see `tests/serving/server/test_abuse.py`.
"""

import contextlib
import io
import random
import re
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from resnet_tpu.data.cleaning import BadImageError, Limits, clean_image
from resnet_tpu.data.loader.batches import eval_batches
from resnet_tpu.data.pixels.decode import DecodeError
from resnet_tpu.data.pixels.preprocess import eval_image, train_image
from resnet_tpu.data.prepare.options import PrepareOptions
from resnet_tpu.data.prepare.prepare import prepare
from resnet_tpu.data.prepare.reservation import REPORT
from resnet_tpu.data.sources.image_files import FileSource
from resnet_tpu.options.config import Config, DataConfig
from resnet_tpu.serving.server.images import network_input
from resnet_tpu.serving.server.refusal import Refusal

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL", "ignore:Image size:Warning:PIL")

IMAGES, SHORT_IMAGES = 10_000, 200
SIZE = 32
GROWTH_MB = 1500
"""Several times the memory that decoding one image of 50 million pixels takes, at 3 bytes per pixel."""

WARM_UP = 20
"""Images after which libraries have allocated what they keep."""
LEFT_MB = 100
"""What may be left of the memory taken for all other images: less than 1 MB for each of the short form."""

FORMATS = {
    "jpg": [("JPEG", {}), ("JPEG", {"progressive": True}), ("JPEG", {"quality": 100, "subsampling": 0})],
    "png": [("PNG", {})],
    "gif": [("GIF", {})],
    "bmp": [("BMP", {})],
    "webp": [("WEBP", {}), ("WEBP", {"lossless": True})],
    "tif": [("TIFF", {}), ("TIFF", {"compression": "tiff_lzw"})],
}


def whole_images() -> list[tuple[str, bytes]]:
    """(suffix, file contents) of small images in every format and several modes."""
    rng = np.random.default_rng(0)
    found = []
    for suffix, forms in FORMATS.items():
        for form, options in forms:
            for mode in ("RGB", "L", *(["CMYK"] if suffix == "jpg" else ["P"] if suffix in ("png", "gif") else [])):
                low = Image.fromarray(rng.integers(0, 256, (5, 6, 3), np.uint8)).resize((60, 50))
                exif = Image.Exif()
                exif[0x0112] = int(rng.integers(1, 9))
                file = io.BytesIO()
                low.convert(mode).save(file, form, **options, **({} if suffix in ("bmp", "gif") else {"exif": exif}))
                found.append((suffix, file.getvalue()))
    return found


def mutated(rng: random.Random, whole: list[tuple[str, bytes]]) -> tuple[str, bytes]:
    """One of the images with one to three mutations, half of them near its beginning."""
    suffix, content = rng.choice(whole)
    data = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        other = rng.choice(whole)[1]
        near = len(data) if rng.random() < 0.5 else min(100, len(data))
        at, length = rng.randrange(max(near, 1)), rng.randint(1, 40)
        match rng.randrange(8):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                data[at : at + length] = rng.randbytes(length)
            case 2:
                del data[at : at + length]
            case 3:
                del data[at:]
            case 4:
                data[at:at] = data[at : at + length] * 3
            case 5:  # the beginning of another image
                data[: 2 * length] = other[: 2 * length]
            case 6:  # a number in the format's structure, or the bytes after a JPEG marker
                marker = data.find(b"\xff", at)
                place = at if marker < 0 else marker + rng.randint(1, 5)
                data[place : place + 2] = rng.choice([b"\x00\x00", b"\xff\xff", b"\x7f\xff", rng.randbytes(2)])
            case _:
                data[at : at + length] = other[at : at + length]
    return suffix, with_checksums(bytes(data)) if rng.random() < 0.5 else bytes(data)


def with_checksums(data: bytes) -> bytes:
    """The file; in a PNG, the checksums of the chunks are recomputed, so that the damage gets past them."""
    found, at = bytearray(data), 8
    while data.startswith(b"\x89PNG") and at + 12 <= len(data):
        length = struct.unpack_from(">I", data, at)[0]
        end = at + 8 + length
        if end + 4 > len(data):
            break
        found[end : end + 4] = struct.pack(">I", zlib.crc32(data[at + 4 : end]))
        at = end + 4
    return bytes(found)


def mutants(count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    rng, whole = random.Random(seed), whole_images()
    for _ in range(count):
        yield mutated(rng, whole)


def memory_mb(what: str) -> float:
    """Memory of this process: VmRSS, what is resident; VmHWM, its peak."""
    status = Path("/proc/self/status").read_text()
    return int(re.findall(rf"^{what}:\s+(\d+) kB", status, re.MULTILINE)[0]) / 1000


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Fails if the process grows by more than GROWTH_MB during the block."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak of what ran before is forgotten
    resident = memory_mb("VmHWM")
    yield
    assert memory_mb("VmHWM") < resident + GROWTH_MB


def stored(data: bytes, name: str, limits: Limits) -> str:
    """What `prepare` does with the image: "stored", or the kind of error."""
    try:
        image = clean_image(data, name, limits)
    except BadImageError as error:
        return error.kind.name
    pixels = np.empty((SIZE, SIZE, 3), np.uint8)
    eval_image(image.encoded, SIZE, pixels)  # whatever it stores can be read
    assert Image.open(io.BytesIO(image.encoded)).size == (image.width, image.height)
    return "stored"


def seen(data: bytes) -> np.ndarray | None:
    """The pixels that `predict` sees of the image; None if it refuses it."""
    pixels = np.empty((SIZE, SIZE, 3), np.uint8)
    try:
        eval_image(data, SIZE, pixels, honour_exif=True)
        train_image(data, SIZE, np.random.default_rng(0), np.empty_like(pixels))
    except DecodeError:
        return None
    return pixels


def served(data: bytes) -> np.ndarray | int:
    """The pixels that `serve` sees of the image, or the status code with which it refuses it."""
    try:
        return network_input(data, DataConfig(image_size=SIZE), 50_000_000)
    except Refusal as refusal:
        return refusal.status


def check_mutants(count: int, seed: int) -> None:
    found: Counter[str] = Counter()
    before = 0.0
    for number, (suffix, data) in enumerate(mutants(count, seed)):
        if number == WARM_UP:
            before = memory_mb("VmRSS")
        with bounded():
            found[f"prepare: {stored(data, f'a.{suffix}', Limits(max_side=40) if number % 2 else Limits())}"] += 1
            pixels, answer = seen(data), served(data)
        found[f"predict: {'refused' if pixels is None else 'seen'}"] += 1
        found[f"serve: {answer if isinstance(answer, int) else 'seen'}"] += 1
        if isinstance(answer, int):
            assert answer in (400, 413)  # 400 also for images that OpenCV can decode, but of unknown size beforehand
        else:
            assert pixels is not None
            np.testing.assert_array_equal(answer, pixels)
    assert memory_mb("VmRSS") < before + LEFT_MB
    print(dict(sorted(found.items())))
    for name in ("predict: refused", "predict: seen", "serve: 400", "serve: seen", "prepare: stored"):
        assert found[name] > count / 20, found  # mutations are neither too mild nor too wild to test anything


def test_mutated_images_are_decoded_or_refused() -> None:
    check_mutants(SHORT_IMAGES, seed=0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_10000_mutated_images_are_decoded_or_refused() -> None:
    check_mutants(IMAGES, seed=1)


def check_folder(tmp_path: Path, count: int, workers: int) -> None:
    """`prepare` lists each bad image of a folder and keeps the rest; `predict` leaves out images it cannot decode."""
    expected: set[str] = set()
    for number, (suffix, data) in enumerate(mutants(count, seed=2)):
        name = f"{'ab'[number % 2]}/{number:05d}.{suffix}"
        (tmp_path / "raw" / name[0]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "raw" / name).write_bytes(data)
        if stored(data, name, Limits()) != "stored":
            expected.add(name)
    out = tmp_path / "out"
    manifest = prepare(str(tmp_path / "raw"), str(out), PrepareOptions(max_bad_fraction=1.0, workers=workers))
    assert sum(split.num_images for split in manifest.splits.values()) == count - len(expected)
    report = (out / REPORT).read_text()
    assert [name for name in expected if name not in report] == []
    source = FileSource([str(tmp_path / "raw")], ["a", "b"])
    data_config = Config().replace(image_size=SIZE, skip_bad_records=True, num_label_classes=2).data
    batches = eval_batches(source, data_config, batch_size=50)
    kept = np.concatenate([np.asarray(batch["weight"]) for batch in batches])[: len(source)]
    decodable = [seen(Path(source.where(i)).read_bytes()) is not None for i in range(len(source))]
    np.testing.assert_array_equal(kept, np.asarray(decodable, kept.dtype))


def test_a_folder_of_mutated_images(tmp_path: Path) -> None:
    check_folder(tmp_path, 60, workers=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_folder_of_10000_mutated_images(tmp_path: Path) -> None:
    check_folder(tmp_path, IMAGES, workers=2)
