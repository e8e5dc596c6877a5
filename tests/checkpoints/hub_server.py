"""A small in-memory hub: the requests that its client sends to download files, and faults on demand.

Written from the description of the protocol: `HEAD` and `GET /OWNER/NAME/resolve/REVISION/FILE` return the commit and
an ETag of the content (SHA-256 for large files). Large files are at another address, where ranges can be requested.
"""

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.checkpoints import timm_folder
from resnet_tpu.models.from_options import create_network
from resnet_tpu.options.config import Config

CLASSES = ["daisy", "rose", "tulip"]
_CARD = b"---\nlicense: apache-2.0\ntags:\n- timm\n---\n# A card\n"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_a_token_for_tests"
_LARGE = (".safetensors", ".bin", ".pth")


@dataclass
class Hub:
    """The hub's state: files by repository and name, who may read them, and faults."""

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    private: set[str] = field(default_factory=set)
    cut_after: int | None = None  # the first response with a large file is cut after so many bytes
    is_lying: bool = False  # large files are sent with one byte changed
    status: int | None = None  # the status of every response
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)  # method, path, range
    address: str = ""

    def asked(self, method: str) -> list[str]:
        """The files requested with this method, large ones by their address."""
        return [path.rsplit("/", 1)[-1] for made, path, _ in self.requests if made == method]

    def environment(self, home: Path) -> dict[str, str]:
        """The environment of a program that uses this hub, with its cache at `home`."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        own |= {"HF_ENDPOINT": self.address, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}
        return own | {"XDG_CACHE_HOME": str(home), "no_proxy": "", "NO_PROXY": "", "JAX_NUM_CPU_DEVICES": "1"}


def make_repository(folder: Path) -> dict[str, bytes]:
    """Writes a repository with a ResNet-18 of width 4 for three classes at 64 px into `folder`; returns its files."""
    options = {
        "resnet_depth": 18, "resnet_width": 4, "stem": "imagenet", "pool_padding": "symmetric",
        "project_first_group": False, "image_size": 64, "crop_pct": 0.95, "resize_method": "bilinear",
        "mean_rgb": (0.5, 0.4, 0.3), "num_label_classes": 3, "eval_preprocessing": "pil",
    }  # fmt: skip
    config = Config().replace(**options)
    network = create_network(config.model, num_classes=3, image_size=64)
    rng = np.random.default_rng(0)
    shapes = network.shape_trees()
    arrays = jax.tree.map(lambda leaf: jnp.asarray(rng.uniform(0.01, 0.1, leaf.shape), jnp.float32), shapes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("resnet_tpu.checkpoints.torch_files.WIDTH", 4)
        timm_folder.write_folder(str(folder), config, network, arrays, CLASSES)
    return {path.name: path.read_bytes() for path in folder.iterdir()} | {"README.md": _CARD}


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub that serves at its `address` until the block ends."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            hub.requests.append((self.command, self.path, self.headers.get("Range")))
            if hub.status is not None:
                self._send(hub.status, {}, b"", with_body)
            elif self.path.startswith("/large/"):
                self._large(with_body)
            else:
                self._resolve(with_body)

        def _resolve(self, with_body: bool) -> None:
            parts = self.path.lstrip("/").split("/", 4)
            if len(parts) < 5 or parts[2] != "resolve":
                self._send(404, {}, b"", with_body)
                return
            owner, name, _, revision, file = parts
            repository, knows = f"{owner}/{name}", self.headers.get("Authorization") == f"Bearer {TOKEN}"
            if repository not in hub.files or (repository in hub.private and not knows):
                self._send(
                    401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}, b"", with_body
                )
            elif repository in hub.gated and not knows:
                headers = {"X-Error-Code": "GatedRepo", "X-Error-Message": f"Access to model {repository} is gated"}
                self._send(401, headers, b"", with_body)
            elif revision not in ("main", "v1", COMMIT):
                self._send(404, {"X-Error-Code": "RevisionNotFound"}, b"", with_body)
            elif file not in hub.files[repository]:
                headers = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}
                self._send(404, headers, b"", with_body)
            else:
                content = hub.files[repository][file]
                if not file.endswith(_LARGE):
                    etag = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
                    self._send(200, {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"'}, content, with_body)
                    return
                checksum = hashlib.sha256(content).hexdigest()
                headers = {
                    "X-Repo-Commit": COMMIT, "X-Linked-Etag": f'"{checksum}"', "X-Linked-Size": str(len(content)),
                    "Location": f"{elsewhere}/large/{repository}/{file}",
                }  # fmt: skip
                self._send(302, headers, b"", with_body)

        def _large(self, with_body: bool) -> None:
            owner, name, file = self.path.removeprefix("/large/").split("/", 2)
            content = hub.files[f"{owner}/{name}"][file]
            if hub.is_lying:
                content = content[:-1] + bytes([content[-1] ^ 1])
            start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
            headers = {"Content-Length": str(len(content) - start), "ETag": '"of-the-store"'}
            if start:
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            body = content[start:]
            if hub.cut_after is not None and with_body:
                body, hub.cut_after = body[: hub.cut_after], None
                self.close_connection = True
            self._send(206 if start else 200, headers, body, with_body)

        def _send(self, status: int, headers: dict[str, str], body: bytes, with_body: bool) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    elsewhere = f"http://localhost:{server.server_address[1]}"  # another host, to which the client takes no token
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
