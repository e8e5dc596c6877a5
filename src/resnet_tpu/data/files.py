"""Image files named one by one, as a source."""

from collections.abc import Sequence

from resnet_tpu import storage
from resnet_tpu.data.images import IMAGE_SUFFIXES
from resnet_tpu.data.labels import UNKNOWN_LABEL
from resnet_tpu.data.source import Sample
from resnet_tpu.data.tfrecord import RecordError
from resnet_tpu.errors import UserError


class FileSource:
    """The images that paths name, those below folders included; labelled where a folder is named like a class."""

    honour_exif = True
    damage: Sequence[RecordError] = ()

    def __init__(self, paths: Sequence[str], class_names: Sequence[str]) -> None:
        """Raises UserError for a path that is not there and for a folder without images."""
        self.class_names = list(class_names)
        self.num_classes = len(class_names)
        self._paths = [file for path in paths for file in _files_of(path)]

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, i: int) -> Sample:
        path = self._paths[i]
        folder = path.replace("\\", "/").rpartition("/")[0].rpartition("/")[2]
        label = self.class_names.index(folder) if folder in self.class_names else UNKNOWN_LABEL
        return Sample(storage.read_bytes(path), label, path)

    def where(self, i: int) -> str:
        """The path of image `i`."""
        return self._paths[i]


def _files_of(path: str) -> list[str]:
    if not storage.exists(path):
        raise UserError("Image", path, "an existing file or folder", "Check the path.")
    if not storage.is_dir(path):
        return [path]
    below = storage.glob(storage.join(path, "**"))
    images = [name for name in below if name.lower().endswith(IMAGE_SUFFIXES)]
    if not images:
        raise UserError("Folder", path, f"images in it ({', '.join(IMAGE_SUFFIXES)})", "Check the path.")
    return images
