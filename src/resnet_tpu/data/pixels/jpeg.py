"""JPEG files: what the header says, and pixels equal to those of TensorFlow's decoder.

libjpeg-turbo reads the size and decodes the pixels. This module finds the other facts by following the markers, as
libjpeg-turbo does, and uses them only if both find the same size.
"""

import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import simplejpeg

MAX_SCANS = 200
"""The most scans that a progressive JPEG may have. Real ones have about ten; each costs a pass over all pixels."""

MAX_EXIF = 100
"""The most segments of EXIF data that a JPEG may have. Photos have one; Pillow joins them in quadratic time."""

START = b"\xff\xd8"
SCAN = b"\xff\xda"
_END = b"\xff\xd9"
_EXIF, _EXIF_NAME = b"\xff\xe1", b"Exif\0\0"
_SCAN, _ADOBE = 0xDA, 0xEE
_SEGMENT = re.compile(rb"\xff[\x02-\xcf\xd8-\xfe]")  # a marker with a length, or the end: no restart, no stuffed zero
_BARE = frozenset((0x01, *range(0xD0, 0xD8)))  # markers without a length: TEM, and restarts
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SEQUENTIAL_FRAMES = (0xC0, 0xC1)


class Header(NamedTuple):
    """The facts that a file states before its pixels."""

    height: int
    width: int
    components: int  # 1 grey, 3 colour, 4 CMYK or YCCK
    is_adobe: bool  # four components are stored inverted
    is_whole: bool  # the end marker is there
    height_offset: int  # where in the file the height is stored
    unit_rows: int | None  # rows in a coding unit; None if rows are not stored from top to bottom in one scan


def read_header(encoded: bytes) -> Header | None:
    """The header of a JPEG file; None when the bytes are not a JPEG, or one that simplejpeg cannot decode."""
    if not encoded.startswith(START):
        return None
    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(encoded, strict=False)
    except (ValueError, KeyError):  # KeyError: for a colour sampling that simplejpeg does not know
        return None
    header = _follow_markers(encoded)
    return header if header and (header.height, header.width) == (height, width) else None


def too_many_scans(encoded: bytes, header: Header | None) -> int:
    """The number of scans of a JPEG that has more than `MAX_SCANS`; else 0. header: None if it cannot be read."""
    count = 0 if header and header.unit_rows else count_scans(encoded)
    return count if count > MAX_SCANS else 0


def count_scans(encoded: bytes) -> int:
    """The number of scans before the end marker of a JPEG: phones append a video after it, some cameras raw data."""
    return sum(marker == SCAN for marker, _ in _segments(encoded))


def count_exif(encoded: bytes) -> int:
    """The number of segments of EXIF data before the pixels of a JPEG; 0 for other files."""
    if not encoded.startswith(START):
        return 0
    before_pixels = itertools.takewhile(lambda segment: segment[0] != SCAN, _segments(encoded))
    return sum(marker == _EXIF and encoded.startswith(_EXIF_NAME, start + 2) for marker, start in before_pixels)


def _segments(encoded: bytes) -> Iterator[tuple[bytes, int]]:
    """(marker, where its length is stored) of each segment before the end marker."""
    position = len(START)
    while (found := _SEGMENT.search(encoded, position)) and found[0] != _END:
        yield found[0], found.end()
        position = found.end() + max(2, int.from_bytes(encoded[found.end() : found.end() + 2], "big"))


def _follow_markers(encoded: bytes) -> Header | None:
    """The header, found by following the markers to the first scan; None when they do not lead there."""
    position, frame_marker, frame, is_adobe = 2, 0, 0, False
    while True:
        position = encoded.find(b"\xff", position)  # stray bytes are skipped
        while 0 < position < len(encoded) and encoded[position] == 0xFF:  # so is padding
            position += 1
        if not 0 < position < len(encoded) - 3:
            return None
        marker = encoded[position]
        position += 1
        if not marker or marker in _BARE:
            continue
        if marker in _FRAMES:
            frame_marker, frame = marker, position + 3
        elif marker == _ADOBE:
            is_adobe = is_adobe or encoded.startswith(b"Adobe", position + 2)
        elif marker == _SCAN:
            break
        position += max(2, int.from_bytes(encoded[position : position + 2], "big"))
    if not frame or len(encoded) < frame + 5 + 3 * encoded[frame + 4]:
        return None
    components = encoded[frame + 4]
    in_one_scan = frame_marker in _SEQUENTIAL_FRAMES and encoded[position + 2] == components
    unit = 8 * max((encoded[frame + 6 + 3 * i] & 15 for i in range(components)), default=1)
    return Header(
        height=int.from_bytes(encoded[frame : frame + 2], "big"),
        width=int.from_bytes(encoded[frame + 2 : frame + 4], "big"),
        components=components,
        is_adobe=is_adobe,
        is_whole=encoded.rfind(_END) > position,
        height_offset=frame,
        unit_rows=unit if in_one_scan else None,
    )


def decode(encoded: bytes, header: Header, rows: int | None = None) -> np.ndarray:
    """The pixels as uint8 [h, w, 3], h at least `rows` (default: all of the image).

    If the file allows it, the rows below `rows` are not decoded: a changed header ends the image one coding unit
    further down, which changes no pixel above. The pixels equal those of TensorFlow's `decode_jpeg(channels=3)` bit for
    bit, with its default fast integer transform, CMYK and YCCK included; as there, errors in the middle of the data
    affect only the pixels they hit. Raises ValueError if the data cannot be decoded, or not to the size in the header.
    """
    data, decoded_height = encoded, header.height
    if rows is not None and header.unit_rows:
        height = ((rows - 1) // header.unit_rows + 2) * header.unit_rows  # one unit more for chroma interpolation
        if height < header.height:
            data = bytearray(encoded)
            data[header.height_offset : header.height_offset + 2] = height.to_bytes(2, "big")
            decoded_height = height
    space = "CMYK" if header.components == 4 else "RGB"
    # Not every error in the data raises an exception; pixels that stay undecoded must not show old memory contents.
    pixels = np.zeros((decoded_height, header.width, len(space)), np.uint8)
    image = simplejpeg.decode_jpeg(data, space, fastdct=True, fastupsample=False, strict=False, buffer=pixels)
    if image.shape != pixels.shape:
        raise ValueError(f"{image.shape[1]} x {image.shape[0]} pixels instead of {header.width} x {decoded_height}")
    if header.components != 4:
        return image
    colors = np.empty((*image.shape[:2], 3), np.uint8)
    for y, row in enumerate(image):  # the whole image in 16 bits would take 20 bytes a pixel
        inks = (row if header.is_adobe else 255 - row).astype(np.uint16)
        colors[y] = inks[:, :3] * inks[:, 3:] // 255
    return colors
