"""The flowers download: it is verified and unpacked safely; if it fails, the user is told what to do."""

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from resnet_tpu.data.prepare import flowers
from resnet_tpu.data.prepare.flowers import COUNTS, fetch_flower_photos
from resnet_tpu.errors import UserError

QUIET = Console(quiet=True)
FILES = {"flower_photos/LICENSE.txt": b"CC-BY", "flower_photos/a/1.jpg": b"1", "flower_photos/b/2.jpg": b"2"}


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
        """Says nothing."""


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """A folder and the URL at which it is served; the cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    folder = tmp_path / "served"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def pack(path: Path, files: dict[str, bytes], *links: tarfile.TarInfo) -> str:
    """Writes an archive and returns its SHA-256."""
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        for link in links:
            tar.addfile(link)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_photos_are_fetched_once(served: tuple[Path, str], tmp_path: Path) -> None:
    folder, url = served
    sha256 = pack(folder / "f.tgz", FILES)
    fetched = fetch_flower_photos(url=f"{url}/f.tgz", sha256=sha256, counts={"a": 1, "b": 1})
    assert {
        str(path.relative_to(Path(fetched).parent)): path.read_bytes() for path in Path(fetched).rglob("*.*")
    } == FILES
    assert list((tmp_path / "cache" / "resnet_tpu").iterdir()) == [Path(fetched)]
    (folder / "f.tgz").unlink()
    assert fetch_flower_photos(url=f"{url}/f.tgz", sha256=sha256, counts={"a": 1, "b": 1}) == fetched


def test_what_another_process_has_fetched_meanwhile_stays(
    served: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, url = served
    sha256 = pack(folder / "f.tgz", FILES)
    photo, download = tmp_path / "cache/resnet_tpu/flower_photos/a/1.jpg", flowers._download

    def slower(*arguments: Any) -> str:
        for name in FILES:
            (photo.parents[2] / name).parent.mkdir(parents=True, exist_ok=True)
            (photo.parents[2] / name).write_bytes(b"theirs")
        return download(*arguments)

    monkeypatch.setattr(flowers, "_download", slower)
    fetched = fetch_flower_photos(url=f"{url}/f.tgz", sha256=sha256, counts={"a": 1, "b": 1}, console=QUIET)
    assert list((tmp_path / "cache" / "resnet_tpu").iterdir()) == [Path(fetched)]
    assert photo.read_bytes() == b"theirs"


def test_another_file_is_refused(served: tuple[Path, str], tmp_path: Path) -> None:
    folder, url = served
    sha256 = pack(folder / "f.tgz", FILES)
    with pytest.raises(UserError, match=rf"got \d+ bytes with SHA-256 {sha256}, expected SHA-256 4c54"):
        fetch_flower_photos(url=f"{url}/f.tgz", console=QUIET)
    with pytest.raises(UserError, match="expected photos"):
        fetch_flower_photos(url=f"{url}/f.tgz", sha256=sha256, console=QUIET)
    assert list((tmp_path / "cache").rglob("*")) == []


def test_nothing_is_unpacked_elsewhere(served: tuple[Path, str], tmp_path: Path) -> None:
    folder, url = served
    evil = {"flower_photos/../../evil.jpg": b"x", "/evil/evil.jpg": b"x", "other/evil.jpg": b"x"}
    link = tarfile.TarInfo("flower_photos/a/evil.jpg")
    link.type, link.linkname = tarfile.SYMTYPE, "/evil/passwords"
    sha256 = pack(folder / "f.tgz", {**FILES, **evil}, link)
    with pytest.raises(UserError, match="outside the destination"):
        fetch_flower_photos(url=f"{url}/f.tgz", sha256=sha256, counts={"a": 1, "b": 1}, console=QUIET)
    assert not list(tmp_path.rglob("evil*"))


def test_without_network_it_says_what_to_do(served: tuple[Path, str]) -> None:
    _, url = served
    for address in (f"{url}/missing.tgz", "http://127.0.0.1:9/f.tgz"):
        with pytest.raises(UserError) as caught:
            fetch_flower_photos(url=address, console=QUIET)
        assert f"Downloading {address}: got " in str(caught.value)
        assert "unpack it, and run: resnet-tpu prepare path/to/flower_photos OUT" in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        b"no protocol\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    ],
)
@pytest.mark.usefixtures("served")
def test_an_answer_that_is_garbled_or_breaks_off(answer: bytes, tmp_path: Path) -> None:
    class Garbled(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(answer)

    with ThreadingHTTPServer(("127.0.0.1", 0), Garbled) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with pytest.raises(UserError, match=r"Downloading .*: got .+, expected an archive of 229 MB\. Download"):
            fetch_flower_photos(url=f"http://127.0.0.1:{server.server_port}/f.tgz", console=QUIET)
        server.shutdown()
    assert list((tmp_path / "cache").rglob("*")) == []


def test_counts_are_those_of_the_original() -> None:
    assert sum(COUNTS.values()) == 3670
