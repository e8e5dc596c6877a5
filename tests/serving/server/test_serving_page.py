"""A server answers as docs/serving.md shows."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest

if TYPE_CHECKING:
    from tests.serving.server.conftest import Server

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "serving.md").read_text()
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_commands_of_the_page_work(server: "Server", images: list[bytes], tmp_path: Path) -> None:
    (tmp_path / "rose.jpg").write_bytes(images[0])
    (tmp_path / "daisy.jpg").write_bytes(images[1])
    answers = []
    for kind, text in BLOCK.findall(PAGE):
        command = {"sh": ["bash", "-ec"], "python": [sys.executable, "-c"]}.get(kind)
        if command:
            text = re.sub(r"\bcurl ", "curl -sSf -w '\\n' ", text.replace("http://127.0.0.1:8501", server.url))
            done = subprocess.run([*command, text], cwd=tmp_path, capture_output=True, text=True, check=True)
            answers += [json.loads(line) for line in done.stdout.splitlines()]
    uploaded, by_rows, by_columns, number = answers
    shown = json.loads(next(text for kind, text in BLOCK.findall(PAGE) if kind == "json"))
    assert shape(uploaded) == shape(shown)
    assert by_rows["predictions"][0]["classes"] == by_columns["outputs"]["classes"][0] == number


@pytest.mark.peer
@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_nginx_configuration_of_the_page_works(
    request: pytest.FixtureRequest, server: "Server", images: list[bytes], expected: np.ndarray
) -> None:
    version = subprocess.run(["nginx", "-v"], capture_output=True, text=True, check=True).stderr
    request.node.user_properties.append(("peer", version.strip().rpartition(" ")[2]))
    location = next(text for kind, text in BLOCK.findall(PAGE) if kind == "nginx")
    with run_nginx(location.replace("http://127.0.0.1:8501", server.url)) as client:
        for page in ("", "docs"):
            links = re.findall(r'(?:href|src)="([^"#]+)"', client.get(page).raise_for_status().text)
            assert links
            for link in links:
                assert client.get(link).status_code == 200, link
        assert client.get("metrics").status_code == 404
        assert client.get("health/live").status_code == 200
        answer = client.post("v1/models/flowers:classify", files={"images": images[0]}).raise_for_status().json()
        refused = client.post("v1/models/flowers:classify", files={"images": bytes(32_100_000)})
    (found,) = answer["predictions"]
    assert found["classes"][0]["probability"] == pytest.approx(float(expected[0].max()), abs=1e-5)
    assert refused.status_code == 413
    assert refused.json()["error"]  # the server's own answer, which the page can show


@contextlib.contextmanager
def run_nginx(location: str) -> Iterator[httpx.Client]:
    """A client of an nginx that runs with this `location` until the block ends."""
    with tempfile.TemporaryDirectory() as folder:  # a short path, as that of a socket must be
        user = "user root;" if os.geteuid() == 0 else ""  # its workers must reach the folder
        places = "".join(f"{what}_temp_path {what};" for what in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        listening = f"server {{ listen unix:{folder}/socket; {location} }}"
        text = (
            f"{user} daemon off; pid pid; error_log errors; events {{}} http {{ access_log off; {places} {listening} }}"
        )
        Path(folder, "nginx.conf").write_text(text)
        command = ["nginx", "-p", folder, "-c", "nginx.conf"]
        with subprocess.Popen(command) as process:
            try:
                while not Path(folder, "socket").exists():
                    assert process.poll() is None, Path(folder, "errors").read_text()
                    time.sleep(0.01)
                transport = httpx.HTTPTransport(uds=f"{folder}/socket", retries=5)
                with httpx.Client(transport=transport, base_url="http://nginx/flowers/", timeout=60) as client:
                    yield client
            finally:
                process.terminate()


def shape(value: object) -> object:
    """The structure of a value: types in place of values, except names of files."""
    if isinstance(value, dict):
        return {key: item if key == "name" else shape(item) for key, item in value.items()}
    return [shape(item) for item in value] if isinstance(value, list) else type(value)
