"""Tables written by people: photos and boxes as CSV, boxes as XML, class names, phases of an experiment."""

import contextlib
import tempfile
from pathlib import Path

from resnet_tpu import storage
from resnet_tpu.data.boxes import Box, read_boxes
from resnet_tpu.data.folders import find_photos
from resnet_tpu.errors import UserError
from resnet_tpu.pruning.outcome import _read_rows

_FOLDER = tempfile.TemporaryDirectory()
_CSV, _XML = Path(_FOLDER.name) / "photos.csv", Path(_FOLDER.name) / "boxes" / "photo.xml"
(Path(_FOLDER.name) / "a, c.jpg").touch()  # of the first table: one whose photos are all missing is refused


def one_input(data: bytes) -> None:
    """`data` as each of these."""
    _CSV.write_bytes(data)
    _XML.parent.mkdir(exist_ok=True)
    _XML.write_bytes(data)
    for place in (_CSV, _XML.parent):
        with contextlib.suppress(UserError):
            for boxes in read_boxes(str(place)).values():
                assert all(0 <= side <= 1 for box in boxes for side in box)
                assert all(isinstance(box, Box) and box.xmin <= box.xmax and box.ymin <= box.ymax for box in boxes)
    with contextlib.suppress(UserError):
        found = find_photos(str(_CSV))
        assert len({photo.class_name for photo in found.photos}) > 1
    for read in (storage.read_names, _read_rows):
        with contextlib.suppress(UserError):
            read(str(_CSV))
