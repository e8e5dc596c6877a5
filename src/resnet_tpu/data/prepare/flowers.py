"""The 3,670 photos of five flowers on which the original's tutorial fine-tunes."""

import hashlib
import http.client
import shutil
import tarfile
import urllib.error
import urllib.request
from pathlib import Path

from rich.console import Console
from rich.progress import wrap_file

from resnet_tpu import storage
from resnet_tpu.errors import UserError, describe
from resnet_tpu.system.terminal import OutputConsole

FLOWER_PHOTOS = "flower_photos"
"""The name that makes `prepare` download them, given instead of a folder."""

URL = "http://download.tensorflow.org/example_images/flower_photos.tgz"
SHA256 = "4c54ace7911aaffe13a365c34f650e71dd5bf1be0a58b464e5a7183e3e595d9c"  # as TensorFlow Datasets lists it
COUNTS = {"daisy": 633, "dandelion": 898, "roses": 641, "sunflowers": 699, "tulips": 799}
_TIMEOUT_SECS = 30


def fetch_flower_photos(
    *, url: str = URL, sha256: str = SHA256, counts: dict[str, int] | None = None, console: Console | None = None
) -> str:
    """The folder of the photos in the user's cache; downloaded, verified and unpacked on the first call.

    url, sha256, counts: of another archive of the same layout, `flower_photos/<class>/<photo>.jpg`.
    console: where progress is shown; default: stderr.
    Raises UserError, saying what to do by hand, when the download fails or gives another file.
    """
    counts = COUNTS if counts is None else counts
    folder = Path(storage.cache_dir(), FLOWER_PHOTOS)
    if _count(folder) == counts:
        return str(folder)
    by_hand = f"Download {url} elsewhere, unpack it, and run: resnet-tpu prepare path/to/{FLOWER_PHOTOS} OUT"
    try:
        with storage.folder_aside(str(folder.parent), FLOWER_PHOTOS) as aside:
            archive = Path(aside, "archive.tgz")
            got = _download(url, archive, console or OutputConsole(stderr=True))
            if got != sha256:
                size = archive.stat().st_size
                raise UserError(url, f"{size} bytes with SHA-256 {got}", f"SHA-256 {sha256}", by_hand)
            with tarfile.open(archive) as tar:
                tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.0 to 3.11.3 lack it
                tar.extractall(aside)  # noqa: S202 (the checksum is right)
            unpacked = Path(aside, FLOWER_PHOTOS)
            if _count(unpacked) != counts:
                raise UserError(url, f"photos {_count(unpacked)}", f"photos {counts}", by_hand)
            if _count(folder) != counts:  # another process may have put it there, and be reading it
                shutil.rmtree(folder, ignore_errors=True)
                unpacked.rename(folder)
            shutil.rmtree(aside)
    # URLError and TimeoutError are OSErrors; a length that is not a number is a ValueError
    except (OSError, tarfile.TarError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise UserError(f"Downloading {url}", describe(error), "an archive of 229 MB", by_hand) from None
    return str(folder)


def _download(url: str, path: Path, console: Console) -> str:
    """Saves the file at `url`; returns its SHA-256."""
    digest = hashlib.sha256()
    with urllib.request.urlopen(url, timeout=_TIMEOUT_SECS) as response, path.open("wb") as file:  # noqa: S310  # http
        size = int(response.headers.get("Content-Length") or 0)
        with wrap_file(response, size, description="Downloading flower_photos", console=console) as source:
            while chunk := source.read(1 << 20):
                digest.update(chunk)
                file.write(chunk)
    return digest.hexdigest()


def _count(folder: Path) -> dict[str, int]:
    return {path.name: len(list(path.glob("*.jpg"))) for path in sorted(folder.glob("*/"))}
