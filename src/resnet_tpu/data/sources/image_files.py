"""Image files as a source: a data set with a folder per class, or files that are named one by one."""

import errno
import functools
import logging
from collections.abc import Sequence

from resnet_tpu import storage
from resnet_tpu.data.class_names import normalize_name
from resnet_tpu.data.findings import Finding, Kind, group_findings
from resnet_tpu.data.folders import empty_classes, find_photos
from resnet_tpu.data.photos import class_names_of, find_small_classes, split_at_random
from resnet_tpu.data.pixels.decode import OR_SKIP, DecodeError
from resnet_tpu.data.pixels.pillow import IMAGE_SUFFIXES
from resnet_tpu.data.sources.labels import UNKNOWN_LABEL, make_labels
from resnet_tpu.data.sources.source import Sample
from resnet_tpu.data.split import SPLITS, NoSplitError, Split, other_split_advice
from resnet_tpu.errors import UserError, listed
from resnet_tpu.options.config import DataConfig

log = logging.getLogger(__name__)

_MOST_SHOWN = 3  # paths in a warning
_TOLD = (Kind.NESTED, Kind.STRAY, Kind.HIDDEN, Kind.MISSING_IN_SPLIT)
_UNREAD_SUFFIXES = (".heic", ".heif", ".avif", ".jxl", ".jp2", ".dng")  # photos in formats that cannot be read


class FolderSource:
    """Image files in class folders, with or without split folders above, or listed in a CSV file.

    Found, numbered and split by the rules of `prepare`.
    """

    honour_exif = True

    def __init__(self, data: DataConfig, split: Split) -> None:
        found = find_photos(data.data_dir)
        self.location = data.data_dir
        self.is_split_at_random = not found.has_splits
        """Whether `split_at_random` decides which photo is in which split."""
        names = class_names_of(found.photos)
        if empty := empty_classes(found):
            (folder, got), expected = empty[0], f"at least one ({', '.join(IMAGE_SUFFIXES)})"
            do = "Add images or remove the folder; `prepare` leaves it out."
            raise UserError(f"Class folder {storage.join(data.data_dir, folder)}", got, expected, do)
        told = [item for item in found.findings if item.kind in _TOLD or item.path.lower().endswith(_UNREAD_SUFFIXES)]
        classes = make_labels(data, names)
        self.class_names, self.num_classes = classes.names, classes.num_classes
        stored = {name: number for number, name in enumerate(names, 1)}
        if found.has_splits:
            photos = [photo for photo in found.photos if photo.split == split]
        else:
            shares = split_at_random(found.photos)
            photos = shares[split]
            told += find_small_classes(shares, names, SPLITS)
        _warn(data.data_dir, tuple(told))
        if not photos:
            got, add = f"none of its {len(found.photos)} images", f"Add {split} images"
            if not found.has_splits:
                got = f"{got}, which are split at random"
                add = f"Name them, as {split}/CLASS/photo.jpg or in a column split of a CSV"
            do = f"{add}; or {other_split_advice(split)}"
            raise NoSplitError(f"data_dir {data.data_dir}", got, f"{split} images", do)
        self._photos = [
            (
                photo.path,
                photo.name,
                classes.of(stored[photo.class_name], photo.path.rpartition("/")[2], lambda: data.data_dir),
            )
            for photo in photos
        ]

    @property
    def names(self) -> list[str]:
        """The names of the photos, which are paths below `data_dir`, or as in the CSV file."""
        return [name for _, name, _ in self._photos]

    def __len__(self) -> int:
        return len(self._photos)

    def __getitem__(self, i: int) -> Sample:
        path, name, label = self._photos[i]
        return Sample(_read(path), label, name)

    def where(self, i: int) -> str:
        return self._photos[i][0]


class FileSource:
    """The images at these paths, and all images below folders; labelled if an image's folder is named after a class."""

    honour_exif = True

    def __init__(self, paths: Sequence[str], class_names: Sequence[str]) -> None:
        """Raises UserError for a path that does not exist and for a folder without images."""
        self.class_names = list(class_names)
        self.num_classes = len(class_names)
        self._labels = {normalize_name(name): label for label, name in enumerate(class_names)}
        self._paths = [file for path in paths for file in _files_of(path)]

    @property
    def names(self) -> list[str]:
        """The paths of the images."""
        return self._paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, i: int) -> Sample:
        path = self._paths[i]
        folder = storage.parent_of(storage.absolute(path)).rpartition("/")[2]
        return Sample(_read(path), self._labels.get(normalize_name(folder), UNKNOWN_LABEL), path)

    def where(self, i: int) -> str:
        """The path of image `i`."""
        return self._paths[i]


@functools.cache
def _warn(data_dir: str, unused: tuple[Finding, ...]) -> None:
    """Warns, once for all splits, of unused files and folders that may hold images."""
    for group in group_findings(unused, {}, first=_MOST_SHOWN + 1):
        log.warning(
            "%s: %s, %s: %d (%s)", data_dir, group.what, group.action, group.count, listed(group.first, _MOST_SHOWN)
        )


def _read(path: str) -> bytes:
    try:
        return storage.read_image(path)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):  # nothing is wrong with this image
            do = "Raise the limit, as with `ulimit -n 4096`."
            raise UserError(f"Image {path}", error.strerror, "a free file descriptor", do) from None
        do = f"Check path and permissions, {OR_SKIP}."
        raise DecodeError(f"Image {path}", error.strerror or error, "a readable file", do) from None


def _files_of(path: str) -> list[str]:
    if not storage.exists(path):
        storage.check_reachable(path)
        raise UserError("Image", path, "an existing file or folder", "Check the path.")
    if not storage.is_dir(path):
        if path.lower().endswith(".csv"):
            do = "Give the images that it lists, or their folder. A CSV path,label,split is for --data_dir."
            raise UserError("Image", path, "an image or a folder of images", do)
        return [path]
    try:
        files = storage.files_below(path)
    except OSError as error:
        do = "Check its permissions."
        raise UserError(f"Folder {error.filename}", error.strerror or error, "a readable folder", do) from None
    images = [file for file in files if file.lower().endswith(IMAGE_SUFFIXES)]
    if not images:
        raise UserError("Folder", path, f"images in it ({', '.join(IMAGE_SUFFIXES)})", "Check the path.")
    return images
