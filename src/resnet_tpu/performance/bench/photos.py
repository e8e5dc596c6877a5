"""Writes records for benchmarks: from the user's photos, or from drawn pictures if none are given."""

import functools
import itertools
import logging
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import simplejpeg

from resnet_tpu import storage
from resnet_tpu.data.cleaning import BadImageError, Limits, clean_image
from resnet_tpu.data.records.example import encode_example
from resnet_tpu.data.records.tfrecord import RecordWriter
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import DataConfig

log = logging.getLogger(__name__)

SHARDS = 8
_DRAWN = 100
_SUFFIXES = (".jpg", ".jpeg")
_CLASSES = ("dark", "light")


class Jpeg(NamedTuple):
    """A JPEG: where it is, and a function that reads it."""

    name: str
    read: Callable[[], bytes]


def draw_photos(folder: Path, count: int, *, height: int = 375, width: int = 500) -> None:
    """Draws `count` JPEGs of two classes, `folder/<class>/<number>.jpg`.

    They are noise whose amplitude grows with its wavelength, as in photos. At 375 x 500 px a file has about 100 kB and
    takes as long to decode as a photo of ImageNet.
    """
    rng = np.random.default_rng(0)
    for number in range(count):
        pixels = np.full((height, width, 3), 90 + 70 * (number % 2), np.float32)
        for octave in range(8):
            shape = (-(-height >> octave) + 1, -(-width >> octave) + 1, 3)
            noise = rng.normal(0, 5 * 1.4**octave, shape).astype(np.float32)
            pixels += cv2.resize(noise, (width, height))
        path = folder / _CLASSES[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        encoded = simplejpeg.encode_jpeg(np.clip(pixels, 0, 255).astype(np.uint8), quality=95, colorsubsampling="420")
        path.write_bytes(encoded)


def find_jpegs(where: str) -> Sequence[Jpeg]:
    """The JPEGs below the folder `where`, or those of its training records if it holds any.

    Raises UserError when there is no such folder, or no JPEG in it.
    """
    if not storage.is_dir(where):
        raise UserError("Photos to measure with", where, "an existing folder", "Check the path.")
    if any(re.match(r"train-\d", name) for name in storage.list_dir(where)):
        source = open_source(DataConfig(data_dir=where), "train")
        numbers = range(len(source))
        return [Jpeg(f"record {i} of {where}", lambda i=i: bytes(source[i].encoded)) for i in numbers]
    paths = [path for path in storage.files_below(where) if path.lower().endswith(_SUFFIXES)]
    found = [Jpeg(path, functools.partial(storage.read_bytes, path)) for path in paths]
    if not found:
        do = "Name another folder; without one, pictures are drawn."
        raise UserError("Photos to measure with", f"no JPEG below {where}", "TFRecords or JPEG files", do)
    return found


def write_photos(where: str, folder: Path, count: int) -> None:
    """Writes `count` training records of the photos in `where`, or drawn ones if it is empty, into the new `folder`."""
    with tempfile.TemporaryDirectory() as drawn:
        if not where:
            log.info("No photos given: drawing some. Yours may be larger or smaller.")
            draw_photos(Path(drawn), min(_DRAWN, count))
        write_records(find_jpegs(where or drawn), folder, count)


def write_records(jpegs: Sequence[Jpeg], folder: Path, count: int, limits: Limits | None = None) -> None:
    """Writes `count` training records of the JPEGs, in turn, into the new `folder`.

    limits: as those of `prepare`, whose refusals are UserErrors here; None: the JPEGs are stored unchanged.
    """
    folder.mkdir(parents=True)
    for shard in range(SHARDS):
        with RecordWriter(str(folder / f"train-{shard:05}-of-{SHARDS:05}")) as writer:
            for jpeg in itertools.islice(itertools.cycle(jpegs), shard, count, SHARDS):
                encoded = jpeg.read()
                try:
                    encoded = clean_image(encoded, jpeg.name, limits).encoded if limits else encoded
                except BadImageError:
                    do = "Remove it, or name another folder."
                    raise UserError("Photos to measure with", jpeg.name, "a whole image", do) from None
                writer.write(encode_example({"image/encoded": encoded, "image/class/label": 1}))
