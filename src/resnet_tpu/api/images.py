"""Images as Python programs hold them: paths of files, Pillow images, arrays, or several of these."""

import contextlib
import io
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image

from resnet_tpu.api.dataset import Example
from resnet_tpu.data.pixels.exif import orientation_of, turn
from resnet_tpu.data.pixels.pillow import to_rgb
from resnet_tpu.data.sources.image_files import FileSource
from resnet_tpu.data.sources.labels import UNKNOWN_LABEL
from resnet_tpu.data.sources.source import Sample
from resnet_tpu.errors import UserError, describe
from resnet_tpu.options.fields import expand_home

OneImage = str | os.PathLike[str] | Image.Image | np.ndarray
"""The path of an image file or of a folder of them; a Pillow image; or pixels, uint8 [h, w, 3] or [h, w] (grey)."""

Images = OneImage | Iterable[OneImage]
"""One image, several of them, or an array of several, uint8 [n, h, w, 3]."""


_FileBytes = bytes | bytearray | memoryview | io.IOBase
"""Types that hold the bytes of one file, and must not be iterated over byte by byte."""


class ImageSource:
    """Images as a `Source`: files are named by path, others by number; a folder named after a class gives a label."""

    honour_exif = True

    def __init__(self, images: Images, class_names: Sequence[str]) -> None:
        """Raises UserError for anything but an image, for a missing path, and when there are no images at all."""
        self.class_names = list(class_names)
        self.num_classes = len(class_names)
        self._reading = threading.Lock()  # Pillow reads pixels and EXIF at their first use, and only one thread may
        self._origins = [origin for image in _each(images) for origin in self._origins_of(image)]
        if not self._origins:
            raise UserError("Images", "none", "at least one", "Give a path, a Pillow image or an array.")

    def __len__(self) -> int:
        return len(self._origins)

    def __getitem__(self, i: int) -> Sample:
        origin, number = self._origins[i]
        if isinstance(origin, FileSource):
            return origin[number]
        name = self.name(i)
        try:
            with self._reading if isinstance(origin, Image.Image) else contextlib.nullcontext():
                encoded = _encode(origin)
        except Exception as error:  # noqa: BLE001  # Pillow reads the picture only now; damage may raise anything
            got, do = describe(error), "Leave it out, or load it again."
            if isinstance(error, AssertionError | AttributeError) and getattr(origin, "fp", origin) is None:
                # Pillow asserts without a message that the file is open; with `python -O` it fails a little later
                got, do = "a picture whose file was closed before it was read", "Call its load() before that."
            raise UserError(f"Image {name}", got, "a whole picture", do) from None
        return Sample(encoded, UNKNOWN_LABEL, name)

    def name(self, i: int) -> str:
        """The path of image `i`, or its number if it has none. Does not read the image."""
        origin, number = self._origins[i]
        if isinstance(origin, FileSource):
            return origin.where(number)  # also the name of its sample
        named = isinstance(origin, Image.Image) and getattr(origin, "filename", "")  # memory-mapped arrays have one too
        return os.fspath(named or f"image {i}")

    where = name

    def _origins_of(self, image: Any) -> Iterator[tuple[Any, int]]:
        if isinstance(image, str | os.PathLike):
            files = FileSource([expand_home(os.fspath(image))], self.class_names)
            return ((files, number) for number in range(len(files)))
        if isinstance(image, Image.Image):
            return iter([(image, 0)])
        return ((array, 0) for array in _arrays(image))


def _each(images: Images) -> Iterable[Any]:
    if isinstance(images, np.ndarray) and images.dtype.kind in "OU":  # paths, as pandas gives them
        return images.ravel().tolist()
    if isinstance(images, str | os.PathLike | Image.Image | np.ndarray | Example | _FileBytes):
        return [images]
    if isinstance(images, Sequence):
        return images
    if isinstance(images, Iterable):
        return map(_kept, images)
    return [images]  # not an image: `_arrays` raises an error that names its type


def _kept(image: Any) -> Any:
    """`image`, copied if the iterator may reuse it for the next one: an array, or a picture with several frames."""
    if isinstance(image, np.ndarray):
        return image.copy()
    try:
        if not getattr(image, "is_animated", False):
            return image
        frame = image.copy()
    except Exception:  # noqa: BLE001  # reported when it is read
        return image
    frame.filename = getattr(image, "filename", "")
    return frame


def _arrays(image: Any) -> list[np.ndarray]:
    expected = "a path, a Pillow image, or a uint8 array [h, w, 3], [h, w] or [n, h, w, 3]"
    if not isinstance(image, np.ndarray):
        do = "Give one of these, or a list of them."
        if isinstance(image, _FileBytes):
            do = "Open the bytes of a file first, with PIL.Image.open(io.BytesIO(data))."
        elif isinstance(image, Example):
            do = "Give its `image`; of a whole data set, [example.image for example in dataset]."
        elif hasattr(image, "__array__"):  # of JAX, PyTorch and so on
            do = "Convert it to an array of NumPy first, with numpy.asarray(x)."
        raise UserError("Image", f"{type(image).__name__}", expected, do)
    is_image = image.ndim == 2 or (image.ndim == 3 and image.shape[-1] in (1, 3, 4))
    is_batch = image.ndim == 4 and image.shape[-1] in (1, 3, 4)
    if image.dtype != np.uint8 or not (is_image or is_batch) or 0 in image.shape[1 if is_batch else 0 :]:
        do = "Convert it to uint8, channels last: x.astype(np.uint8) of 0 to 255, (255 * x).astype(np.uint8) of 0 to 1."
        raise UserError("Image", f"an array of {image.dtype} {list(image.shape)}", expected, do)
    return list(image) if is_batch else [image]


def _encode(image: Any) -> bytes:
    """Encodes the image as a file that decodes to exactly the same pixels."""
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image[..., 0] if image.shape[2:] == (1,) else image)
    file = io.BytesIO()
    pixels = np.asarray(to_rgb(image.copy()))  # a copy, because `to_rgb` changes `info`
    Image.fromarray(turn(pixels, orientation_of(image))).save(file, "BMP")
    return file.getvalue()
