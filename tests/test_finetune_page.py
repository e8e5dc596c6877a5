"""From photos to a web page: the five commands and ten lines of docs/finetune.md, with a stand-in hub on localhost."""

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import nbformat
import pytest
from nbclient import NotebookClient

from tests.checkpoints import hub_server
from tests.test_docs import BLOCK, ROOT, draw_photos

pytest.importorskip("huggingface_hub")

PAGE = (ROOT / "docs" / "finetune.md").read_text()
PHOTO = "photos/rose/1.jpg"


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment with photos in `tmp_path`, a small network on the hub under the page's name, and our commands."""
    draw_photos(tmp_path / "photos")
    (tmp_path / "repository").mkdir()
    with hub_server.serving() as hub:
        (name,) = set(re.findall(r"hf:(timm/\S+?)[\s\"]", "".join(text for _, text in blocks())))
        hub.files[name] = hub_server.make_repository(tmp_path / "repository")
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        yield hub.environment(tmp_path / "home") | {"PATH": path}


def blocks() -> list[tuple[str, str]]:
    """The page's commands and its Python code."""
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    return [BLOCK.findall(text)[0] for text in sections if text.startswith(("From nothing", "In a notebook"))]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def classified(port: int, folder: Path) -> dict[str, float]:
    """The probabilities that the server gives a photo, once its page is up."""
    url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            assert "<html" in httpx.get(url).text
            break
        except httpx.TransportError:
            time.sleep(0.1)
    models = httpx.get(f"{url}/v1/models").json()["models"]
    answer = httpx.post(
        f"{url}/v1/models/{models[0]['name']}:classify", files={"images": (folder / PHOTO).read_bytes()}, timeout=60
    ).json()
    return {found["class"]: found["probability"] for found in answer["predictions"][0]["classes"]}


def run_commands(lines: list[str], folder: Path, environment: dict[str, str]) -> dict[str, float]:
    """Runs the commands in order; the last starts a server. Returns the probabilities that it gives a photo."""
    *before, serve = lines
    port = free_port()
    script = "\n".join(["set -e", *before, f"exec {serve} --port={port}"])
    with subprocess.Popen(["bash", "-c", script], cwd=folder, env=environment) as shell:
        try:
            while not (folder / "exported").is_dir():
                assert shell.poll() is None
                time.sleep(0.1)
            return classified(port, folder)
        finally:
            shell.terminate()


@pytest.mark.slow
def test_the_commands_lead_to_a_page_in_a_fresh_environment(environment: dict[str, str], tmp_path: Path) -> None:
    text = blocks()[0][1].replace("'.[", f"'{shlex.quote(str(ROOT))}[")
    assert len(text.splitlines()) == 5
    clean = {name: value for name, value in environment.items() if not name.startswith(("PYTHON", "JAX_"))}
    assert set(run_commands(text.splitlines(), tmp_path, clean)) == {"daisy", "rose"}


@pytest.mark.long
def test_the_lines_in_a_notebook_lead_to_the_same_page(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    port, (_, lines) = free_port(), blocks()[1]
    assert len(lines.splitlines()) <= 10
    assert '"exported"])' in lines
    lines = lines.replace('"exported"])', f'"exported", "--port={port}"])')
    ask = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom pathlib import Path\n"
        "from tests.test_finetune_page import classified\n"
        f"served = classified({port}, Path())\nserver.terminate()\n"
        f"said = rt.load_model('tuned').predict({PHOTO!r}).probabilities[0]\n"
        "assert all(abs(served[name] - share) < 1e-4 for name, share in zip(('daisy', 'rose'), said)), (served, said)\n"
        "assert rt.load_model('tuned').config.data.eval_preprocessing == 'pil'"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in (lines, ask)])
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    cells = client.execute().cells
    assert any("<td>rose</td>" in output.get("data", {}).get("text/html", "") for output in cells[0].outputs)
