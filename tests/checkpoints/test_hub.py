"""Weights by name from the hub: what arrives and from where, or else a single message.

The client reads its environment only once, so each test runs it in a separate process.
"""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from . import hub_server
from .hub_server import CLASSES, COMMIT, TOKEN, Hub

pytest.importorskip("huggingface_hub")

NAME = "hf:timm/tiny.test"
_FETCH = """
import json, sys
from resnet_tpu.system import program
from resnet_tpu.checkpoints import pretrained
sys.exit(program.run_program(lambda names: [print(json.dumps(pretrained.fetch(name))) for name in names], sys.argv[1:]))
"""

_REFUSALS = """
import json, sys
from resnet_tpu.checkpoints import pretrained
from resnet_tpu.errors import UserError
messages = []
for name in sys.argv[1:]:
    try:
        pretrained.fetch(name)
    except UserError as error:
        messages.append(str(error))
print(json.dumps(messages))
"""


@dataclass(frozen=True)
class Asker:
    """Runs programs that ask the hub, each with an empty cache unless they share one."""

    hub: Hub
    home: Path

    def run(self, *words: str, program: str = _FETCH, **settings: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program, *words],
            env=self.hub.environment(self.home) | settings,
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
        )

    def fetch(self, name: str = NAME, **settings: str) -> tuple[Path, dict[str, str]]:
        done = self.run(name, **settings)
        assert done.returncode == 0, done.stderr
        place, options = json.loads(done.stdout)
        return Path(place), options

    def fails(self, name: str = NAME, **settings: str) -> str:
        """The one error message, after what the client itself prints about its attempts."""
        done = self.run(name, **settings)
        assert (done.returncode, done.stdout) == (2, "")
        return done.stderr.splitlines()[-1]

    def refusals(self, *names: str) -> list[str]:
        """The error message of each of several names."""
        done = self.run(*names, program=_REFUSALS)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a repository with a ResNet-18 of width 4 for three classes, at 64 px."""
    return hub_server.make_repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture
def asker(folder: dict[str, bytes], tmp_path: Path) -> Iterator[Asker]:
    with hub_server.serving() as hub:
        hub.files["timm/tiny.test"] = dict(folder)
        yield Asker(hub, tmp_path)


def test_files_arrive_once_with_commit_licence_and_checksum(asker: Asker, folder: dict[str, bytes]) -> None:
    place, options = asker.fetch()
    assert place.read_bytes() == folder["model.safetensors"]
    assert (place.parent / "config.json").read_bytes() == folder["config.json"]
    checksum = hashlib.sha256(folder["model.safetensors"]).hexdigest()
    assert options == {"weights_origin": f"{NAME}@{COMMIT} sha256:{checksum}", "weights_licence": "apache-2.0"}
    asker.hub.requests.clear()
    assert asker.fetch() == (place, options)
    assert asker.hub.asked("GET") == []
    asker.hub.requests.clear()
    done = asker.run(f"{NAME}@v1", f"{NAME}@{COMMIT}")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[str(place), options]] * 2, done.stderr
    assert asker.hub.asked("GET") == []


@pytest.mark.long
def test_offline_and_without_a_network_the_cache_answers(asker: Asker) -> None:
    message = asker.fails(HF_HUB_OFFLINE="1")
    address = f"{asker.hub.address}/timm/tiny.test/resolve/main/model.safetensors"
    got = "the setting HF_HUB_OFFLINE, and no copy on this machine"
    assert message.startswith(f"Weights {NAME}: got {got}, expected an answer from")
    assert f"download {address} and the config.json next to it" in message
    assert "give that as the weights." in message
    assert asker.hub.requests == []
    found = asker.fetch()
    asker.hub.requests.clear()
    assert asker.fetch(HF_HUB_OFFLINE="1") == found
    assert asker.hub.requests == []
    asker.hub.status = 503  # as without a network
    assert asker.fetch() == found
    for path in asker.home.rglob("README.md"):
        path.unlink()  # as where another program fetched only the weights
    _, options = asker.fetch(HF_HUB_OFFLINE="1")
    assert options.keys() == {"weights_origin"}


@pytest.mark.long
def test_offline_weights_of_the_older_kind_are_found_too(asker: Asker) -> None:
    files = asker.hub.files["timm/tiny.test"]
    files["pytorch_model.bin"] = files.pop("model.safetensors")
    place, _ = asker.fetch()
    assert place.name == "pytorch_model.bin"
    assert asker.fetch(HF_HUB_OFFLINE="1")[0] == place
    for path in asker.home.rglob(".no_exist"):
        shutil.rmtree(path)  # where the client noted which files there are not
    assert asker.fetch(HF_HUB_OFFLINE="1")[0] == place


def test_a_proxy_is_asked_for_the_hub(asker: Asker) -> None:
    """The server acts as the proxy: it receives full URLs of a hub that does not exist."""
    done = asker.run(NAME, HF_ENDPOINT="http://hub.invalid", HTTP_PROXY=asker.hub.address, http_proxy=asker.hub.address)
    assert done.returncode == 2
    assert ("HEAD", "http://hub.invalid/timm/tiny.test/resolve/main/config.json", None) in asker.hub.requests


@pytest.mark.long
def test_a_cut_connection_goes_on_where_it_was(asker: Asker) -> None:
    """The client writes in pieces of 10 MB, and resumes after the last whole one."""
    content = bytes(11 << 20)
    asker.hub.files["timm/tiny.test"]["model.safetensors"] = content
    asker.hub.cut_after = len(content) - 1000
    place, _ = asker.fetch()
    assert place.read_bytes() == content
    ranges = [asked for method, path, asked in asker.hub.requests if method == "GET" and path.startswith("/large")]
    assert ranges == [None, f"bytes={10 << 20}-"]


def test_a_token_opens_what_is_not_for_all(asker: Asker, folder: dict[str, bytes]) -> None:
    asker.hub.files["timm/other.test"] = dict(folder)
    asker.hub.gated.add("timm/tiny.test")
    asker.hub.private.add("timm/other.test")
    names = NAME, "hf:timm/other.test"
    gated, private = asker.refusals(*names)
    assert "HF_TOKEN" in gated and "HF_TOKEN" in private
    assert "a gated repository" in gated and "gated" not in private
    done = asker.run(*names, HF_TOKEN=TOKEN)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 2), done.stderr


def test_mistakes(asker: Asker) -> None:
    asker.hub.files |= {"timm/bare": {"model.safetensors": b"x"}, "timm/empty": {"config.json": b"{}"}}
    expected = {
        "hf:timm/nothing": "got no repository of that name that this user may read",
        f"{NAME}@other": "got no revision other, expected a branch, tag or commit of it.",
        "hf:tiny": "got tiny, expected a repository, OWNER/NAME. Write hf:OWNER/NAME",
        "hf:": "got nothing, expected a repository",
        "hf:timm/bare": "got a repository without config.json",
        "hf:timm/empty": "got a repository without model.safetensors",
    }
    for (name, message), found in zip(expected.items(), asker.refusals(*expected), strict=True):
        assert found.startswith(f"Weights {name}: ")
        assert message in found


def test_content_that_is_not_the_hub_s_is_never_taken(asker: Asker) -> None:
    asker.hub.is_lying = True
    message = asker.fails()
    assert "as the hub has it. Delete " in message
    blob = Path(message.partition("Delete ")[2].partition(", and run")[0])
    asker.hub.is_lying = False
    blob.unlink()
    place, _ = asker.fetch()
    place.resolve().chmod(0o644)
    place.resolve().write_bytes(b"\0" + place.read_bytes()[1:])  # as if the disk had lost data
    assert "as the hub has it. Delete " in asker.fails()


def test_without_the_client_the_extra_is_named(asker: Asker) -> None:
    program = "import sys\nsys.modules['huggingface_hub'] = None\n" + _FETCH
    done = asker.run(NAME, program=program)
    assert done.returncode == 2
    assert done.stderr == (
        f"Weights {NAME}: got no package 'huggingface_hub', expected it to be installed. "
        "pip install 'resnet-tpu[hub]'.\n"
    )


@pytest.mark.long
def test_convert_takes_a_name_and_keeps_what_came_with_it(asker: Asker) -> None:
    program = "import sys\nfrom resnet_tpu import cli\nsys.exit(cli.main(['convert', *sys.argv[1:]]))"
    done = asker.run(NAME, "run", program=program)
    assert done.returncode == 0, done.stderr
    assert "licence apache-2.0" in done.stderr
    config = json.loads((asker.home / "run" / "config.json").read_text())
    _, origin = asker.fetch()
    expected = {"image_size": 64, "crop_pct": 0.95, "resize_method": "bilinear", "mean_rgb": [0.5, 0.4, 0.3], **origin}
    expected["eval_preprocessing"] = "pil"
    assert {name: config[name] for name in expected} == expected
    assert (asker.home / "run" / "labels.txt").read_text().split() == CLASSES
    shown = asker.run("--inspect", NAME, program=program).stdout
    assert "conv1.weight" in shown


@pytest.mark.long
def test_a_program_loads_a_model_by_its_name_and_prints_nothing(asker: Asker) -> None:
    """Its prediction for an image is that of the converted model."""
    program = (
        "import sys, json, numpy as np, resnet_tpu as rt\n"
        "image = np.random.default_rng(0).integers(0, 256, (80, 100, 3), np.uint8)\n"
        "for source in sys.argv[1:]:\n"
        "    model = rt.load_model(source, precision='float32')\n"
        "    data = model.config.data\n"
        "    shown = [model.class_names, data.image_size, data.crop_pct, model.predict(image).probabilities.tolist()]\n"
        "    print(json.dumps(shown))\n"
    )
    convert = "import sys\nfrom resnet_tpu import cli\nsys.exit(cli.main(['convert', *sys.argv[1:]]))"
    assert asker.run(NAME, "run", program=convert).returncode == 0
    done = asker.run(NAME, f"{NAME}@v1", "run", program=program)
    assert (done.returncode, done.stderr) == (0, "")
    by_name, by_revision, converted = map(json.loads, done.stdout.splitlines())
    assert by_name == by_revision == converted
    assert by_name[:3] == [CLASSES, 64, 0.95]
    asker.hub.status = 404
    missing = asker.run("hf:timm/nothing", program=program)
    assert "resnet_tpu.errors.UserError: Weights hf:timm/nothing: got" in missing.stderr
