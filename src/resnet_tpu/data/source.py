"""Where training and evaluation images come from: TFRecords, folders of images, or nothing but made-up pixels."""

import bisect
import functools
import itertools
import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from resnet_tpu import storage
from resnet_tpu.config import DataConfig
from resnet_tpu.data.blocks import Stretch, open_reader
from resnet_tpu.data.example import parse_image_example
from resnet_tpu.data.findings import Kind
from resnet_tpu.data.folders import Found, Photo, find_photos
from resnet_tpu.data.labels import DEFAULT_CLASSES, make_labels
from resnet_tpu.data.manifest import MANIFEST, read_manifest
from resnet_tpu.data.shards import STATE_FOLDER
from resnet_tpu.data.split import SPLITS, Split, split_files
from resnet_tpu.data.tfrecord import RecordError, RecordFile
from resnet_tpu.errors import UserError

log = logging.getLogger(__name__)

_IMAGENET_SIZES = {"train": 1_281_167, "validation": 50_000, "test": 50_000}
_OPEN_FILES_AT_ONCE = 16


class Sample(NamedTuple):
    """One example before decoding."""

    encoded: bytes | np.ndarray  # an image file; or the finished image, uint8 [image_size, image_size, 3]
    label: int  # from 0; -1 when a test example has none
    name: str  # of the image file, as far as known


class Source(Protocol):
    """A split of a data set: examples by number, from any number of threads."""

    @property
    def class_names(self) -> list[str] | None:
        """By label; None where the data does not say."""
        ...

    @property
    def num_classes(self) -> int:
        """As asked for in the options, else as many as there are names, else 1000."""
        ...

    @property
    def honour_exif(self) -> bool:
        """Whether images are to be turned upright."""
        ...

    @property
    def damage(self) -> Sequence[RecordError]:
        """Stretches of files that were left out because of `skip_bad_records`."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, i: int) -> Sample:
        """Example `i`. Raises RecordError for a damaged record, UserError for a wrong label or a lost file."""
        ...

    def where(self, i: int) -> str:
        """Where example `i` lies, for messages."""
        ...


class DistantSource(Source, Protocol):
    """A source for which each request takes its time: many examples are asked for at once, ahead of their use."""

    def fetch(self, records: Sequence[int]) -> Sequence[Sample | RecordError]:
        """The examples of these numbers, which may repeat; an error in the place of each damaged one.

        From any number of threads. Raises UserError as `source[i]`.
        """
        ...


def open_source(data: DataConfig, split: Split) -> Source:
    """The examples of `split` in `data.data_dir`, or in the Bigtable of `data.bigtable_instance`.

    A folder with files named train-*, validation-* or test-* is read as TFRecords. Anything else is what `prepare`
    takes: class folders, split folders of class folders, or a CSV file. Empty or 'null': zeros. 'synthetic': coloured
    noise.
    Raises UserError when there is no such folder, split, class or image, or fewer classes are asked for than found.
    """
    if data.bigtable_instance:
        from resnet_tpu.data.bigtable import BigtableSource  # its library takes two seconds

        if data.data_dir:
            log.warning("data_dir %s is not read: bigtable_instance is given, and takes its place.", data.data_dir)
        return BigtableSource(data, split)
    if data.data_dir in ("", "null"):
        return ZeroSource(data, split)
    if data.data_dir == "synthetic":
        return NoiseSource(data, split)
    if not storage.exists(data.data_dir):
        do = "Check the path; 'synthetic' needs no data."
        raise UserError("data_dir", repr(data.data_dir), "an existing folder", do)
    states = storage.states_in(data.data_dir) if storage.is_remote(data.data_dir) else {}
    names = sorted(states) or storage.list_dir(data.data_dir)
    shards: dict[Split, list[str]] = {name: [file for file in names if file.startswith(f"{name}-")] for name in SPLITS}
    first = next((files[0] for files in shards.values() if files), None)
    if first is None and storage.is_remote(data.data_dir):
        got = ", ".join(names[:5]) or "no folder"
        do = "Write them with `resnet-tpu prepare`."
        raise UserError(f"data_dir {data.data_dir}", got, "TFRecords named train-*, validation-* or test-*", do)
    if first is None or storage.is_dir(storage.join(data.data_dir, first)):
        return FolderSource(data, split)
    _check_shards(data.data_dir, split, shards, is_unfinished=STATE_FOLDER in names and MANIFEST not in names)
    kind = DistantRecordSource if storage.is_remote(data.data_dir) else RecordSource
    return kind(data, split, {storage.join(data.data_dir, name): states.get(name) for name in shards[split]})


def _check_shards(data_dir: str, split: Split, shards: Mapping[Split, list[str]], *, is_unfinished: bool) -> None:
    what = f"data_dir {data_dir}"
    if is_unfinished:
        do = f"Run the same `resnet-tpu prepare` again; it goes on where it stopped. Or delete {STATE_FOLDER}/ in it."
        raise UserError(what, "what an interrupted `prepare` left behind", "a finished data set", do)
    manifest = read_manifest(data_dir)
    listed = manifest.splits[split].files if manifest and split in manifest.splits else ()
    if missing := sorted({*listed} - {*shards[split]}):
        got = f"{len(listed) - len(missing)} of {len(listed)} {split} files ({missing[0]} is missing)"
        raise UserError(what, got, f"all files that {MANIFEST} lists", "Copy the rest, or run `prepare` again.")
    if not shards[split]:
        found = ", ".join(f"{name}-*" for name, files in shards.items() if files)
        do = f"Make the {split} split with `resnet-tpu prepare`, or choose another split."
        raise UserError(what, found, f"files named {split}-*", do)


class RecordSource:
    """TFRecords of `tf.train.Example`s in the original's format."""

    honour_exif = False  # the original does not, and what `prepare` writes is upright

    def __init__(self, data: DataConfig, split: Split, paths: Mapping[str, tuple[int, int] | None]) -> None:
        """`paths`: the files, with the state of each where that is known (see `storage.file_state`)."""
        self._labels = make_labels(data, read_class_names(data.data_dir), allow_unknown=split == "test")
        self.class_names, self.num_classes = self._labels.names, self._labels.num_classes
        with ThreadPoolExecutor(_OPEN_FILES_AT_ONCE) as pool:
            open_file = functools.partial(RecordFile, skip_bad=data.skip_bad_records)
            self._files = list(pool.map(lambda path: open_file(path, state=paths[path]), paths))
        self._ends = list(itertools.accumulate(len(file) for file in self._files))
        self.damage = [error for file in self._files for error in file.damage]
        if not len(self):
            do = f"Write the {split} split again."
            raise UserError(f"data_dir {data.data_dir}", f"{len(paths)} empty {split}-* files", "records in them", do)

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, i: int) -> Sample:
        file, record = self._locate(i)
        return self._parse(i, file[record])

    def _parse(self, i: int, payload: bytes) -> Sample:
        file, record = self._locate(i)
        try:
            example = parse_image_example(payload)
        except UserError as error:
            raise RecordError(file.path, record, file.offset(record), str(error.got), error.expected) from None
        label = self._labels.of(example.label, example.filename, lambda: self.where(i))
        return Sample(example.encoded, label, example.filename or f"{Path(file.path).name}:{record}")

    def where(self, i: int) -> str:
        file, record = self._locate(i)
        return f"in record {record} of {file.path} at byte {file.offset(record)}"

    def _locate(self, i: int) -> tuple[RecordFile, int]:
        number = bisect.bisect_right(self._ends, i)
        return self._files[number], i - (self._ends[number - 1] if number else 0)


class DistantRecordSource(RecordSource):
    """TFRecords in a bucket."""

    def __init__(self, data: DataConfig, split: Split, paths: Mapping[str, tuple[int, int] | None]) -> None:
        super().__init__(data, split, paths)
        self._reader = open_reader(data.cache_folder, self._files)

    def __getitem__(self, i: int) -> Sample:
        (found,) = self.fetch([i])
        if isinstance(found, RecordError):
            raise found
        return found

    def fetch(self, records: Sequence[int]) -> list[Sample | RecordError]:
        """The examples of these numbers, read together; an error in the place of each damaged one."""
        wanted = []
        for file, record in map(self._locate, records):
            wanted.append(Stretch(file, *file.span(record)))
        return [self._example(*found) for found in zip(records, wanted, self._reader.read(wanted), strict=True)]

    def _example(self, i: int, stretch: Stretch, data: bytes) -> Sample | RecordError:
        _, record = self._locate(i)
        try:
            try:
                payload = stretch.file.check(record, data)
            except RecordError:  # of what is kept here, perhaps
                self._reader.forget(stretch)
                payload = stretch.file[record]
            return self._parse(i, payload)
        except RecordError as error:
            return error


class FolderSource:
    """Image files in class folders, with or without split folders above, or listed in a CSV file.

    Found, numbered and shared out by the rules of `prepare`.
    """

    honour_exif = True
    damage: Sequence[RecordError] = ()

    def __init__(self, data: DataConfig, split: Split) -> None:
        found = find_photos(data.data_dir)
        names = sorted({photo.class_name for photo in found.photos}, key=os.fsencode)
        empty = [
            item.path for item in found.findings if item.kind is Kind.NO_IMAGES and Path(item.path).name not in names
        ]
        if empty:
            do = "Add images or remove the folder."
            raise UserError(f"Class folder {storage.join(data.data_dir, empty[0])}", "no images", "at least one", do)
        classes = make_labels(data, names)
        self.class_names, self.num_classes = classes.names, classes.num_classes
        stored = {name: number for number, name in enumerate(names, 1)}
        photos = [photo for photo in found.photos if photo.split == split] if found.has_splits else _share(found, split)
        if not photos:
            do = f"Add {split} images, or choose another split."
            raise UserError(
                f"data_dir {data.data_dir}", f"none of its {len(found.photos)} images", f"{split} images", do
            )
        self._photos = [
            (photo.path, photo.name, classes.of(stored[photo.class_name], photo.name, lambda: data.data_dir))
            for photo in photos
        ]

    def __len__(self) -> int:
        return len(self._photos)

    def __getitem__(self, i: int) -> Sample:
        path, name, label = self._photos[i]
        try:
            return Sample(Path(path).read_bytes(), label, name)
        except OSError as error:
            raise UserError(f"Image {path}", error.strerror, "a readable file", "Check path and permissions.") from None

    def where(self, i: int) -> str:
        return self._photos[i][0]


def _share(found: Found, split: Split) -> list[Photo]:
    """The photos of `split`, each class shared out on its own, in the order found."""
    classes: dict[str, list[str]] = {}
    for photo in found.photos:
        classes.setdefault(photo.class_name, []).append(photo.name)
    chosen = {name for names in classes.values() for name in split_files(names)[SPLITS.index(split)]}
    return [photo for photo in found.photos if photo.name in chosen]


class ZeroSource:
    """Black images with label 0: what is left of the time when input costs nothing."""

    class_names = None
    honour_exif = False
    damage: Sequence[RecordError] = ()

    def __init__(self, data: DataConfig, split: Split) -> None:
        self.num_classes = data.num_label_classes or DEFAULT_CLASSES
        self._len = _made_up_length(data, split)
        self._sample = Sample(np.zeros((data.image_size, data.image_size, 3), np.uint8), 0, "null")

    def __len__(self) -> int:
        return self._len

    def __getitem__(self, i: int) -> Sample:
        return self._sample

    def where(self, i: int) -> str:
        return f"zeros {i}"


class NoiseSource:
    """Noise around a colour that belongs to the class: can be learned, needs no data. Labels go round the classes."""

    class_names = None
    honour_exif = False
    damage: Sequence[RecordError] = ()

    def __init__(self, data: DataConfig, split: Split) -> None:
        self.num_classes = data.num_label_classes or DEFAULT_CLASSES
        self._len = _made_up_length(data, split)
        self._shape = (data.image_size, data.image_size, 3)
        self._split = SPLITS.index(split)

    def __len__(self) -> int:
        return self._len

    def __getitem__(self, i: int) -> Sample:
        label = i % self.num_classes
        rng = np.random.Generator(np.random.Philox(key=[self._split, i]))
        noise = rng.integers(0, 128, self._shape, np.uint8)
        return Sample(noise + _colour(label), label, self.where(i))

    def where(self, i: int) -> str:
        return f"noise {i}"


def _colour(label: int) -> np.ndarray:
    """The colour of a class, uint8 [3] up to 127: the classes fill the colour cube evenly (Roberts' R3 sequence)."""
    steps = np.array([0.8191725134, 0.6710436067, 0.5497004779])
    return ((0.5 + label * steps) % 1 * 128).astype(np.uint8)


def _made_up_length(data: DataConfig, split: Split) -> int:
    asked = {"train": data.num_train_images, "validation": data.num_eval_images, "test": data.num_test_images}
    return asked[split] or _IMAGENET_SIZES[split]


def read_class_names(data_dir: str) -> list[str] | None:
    """The names beside the records, by label from 1: `manifest.json`, or else `labels.txt`; None where neither is."""
    labels = storage.join(data_dir, "labels.txt")
    if manifest := read_manifest(data_dir):
        return manifest.class_names
    if storage.exists(labels):
        return [line.strip() for line in storage.read_text(labels).splitlines() if line.strip()]
    return None
