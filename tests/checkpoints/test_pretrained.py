"""Names of published weights: the table of them is right, and files are what their names say."""

import hashlib
import http.server
import io
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from resnet_tpu import cli
from resnet_tpu.checkpoints import pretrained, published, weights
from resnet_tpu.checkpoints.pretrained import PRETRAINED
from resnet_tpu.errors import UserError
from resnet_tpu.models.arrays import leaves
from resnet_tpu.models.from_options import create_network
from resnet_tpu.options.config import OPTIONS, Config

CONTENT = b"weights" * 1000
CHECKSUM = hashlib.sha256(CONTENT).hexdigest()
FILE = f"tiny-{CHECKSUM[:8]}.pth"


class Site:
    """A file at an address, and faults in serving it."""

    content = CONTENT
    is_cut = False
    length: str | None = None
    num_requests = 0
    address = ""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    found = Site()

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

        def do_GET(self) -> None:
            found.num_requests += 1
            if not self.path.endswith(FILE):
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", found.length or str(len(found.content)))
            self.end_headers()
            self.wfile.write(found.content[:100] if found.is_cut else found.content)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found.address = f"http://127.0.0.1:{server.server_address[1]}/{FILE}"
    yield found
    server.shutdown()
    server.server_close()


def kept() -> list[str]:
    folder = Path(published.folder())
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_file_is_fetched_once(site: Site) -> None:
    place, checksum = published.fetch(site.address)
    assert (Path(place).read_bytes(), checksum) == (CONTENT, CHECKSUM)
    assert published.fetch(site.address) == (place, CHECKSUM)
    assert (site.num_requests, kept()) == (1, [FILE])


def test_only_the_name_tells_the_checksum(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "run-12345678.d"))
    place, checksum = published.fetch(site.address)
    assert (Path(place).read_bytes(), checksum, kept()) == (CONTENT, CHECKSUM, [FILE])


def test_a_file_that_was_put_there_is_taken(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        UserError, match=r"got the setting HF_HUB_OFFLINE, .* Download the file another way and put it into "
    ) as error:
        published.fetch(site.address)
    folder = Path(error.value.do.partition("put it into ")[2].partition(", or")[0])
    folder.mkdir(parents=True)
    (folder / FILE).write_bytes(CONTENT)
    assert published.fetch(site.address) == (str(folder / FILE), CHECKSUM)
    assert site.num_requests == 0


def test_failed_downloads_are_not_kept(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.content = CONTENT[:-1] + b"x"
    with pytest.raises(UserError, match=rf"got content with sha256 .*expected {CHECKSUM[:8]}\.\.\., as its name says"):
        published.fetch(site.address)
    site.is_cut = True
    with pytest.raises(UserError, match="got an answer that ended after 100 bytes"):
        published.fetch(site.address)
    site.length = "many"
    with pytest.raises(UserError, match=r"got .*'many', expected the file"):
        published.fetch(site.address)
    with pytest.raises(UserError, match="got HTTP Error 404: Not Found, expected the file"):
        published.fetch(site.address.replace("tiny", "other").replace(FILE, "none-00000000.pth"))
    assert kept() == []


def test_no_network_and_a_damaged_copy(site: Site, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"got .*refused.*, expected the file\. Download the file another way"):
        published.fetch(f"http://127.0.0.1:9/{FILE}")
    place, _ = published.fetch(site.address)
    Path(place).write_bytes(b"x" + CONTENT[1:])
    with pytest.raises(UserError, match=r"as its name says\. Delete it, and run this again"):
        published.fetch(site.address)


def test_the_table_tells_options_that_there_are() -> None:
    for name, found in PRETRAINED.items():
        assert found.options.keys() <= OPTIONS.keys()
        Config().replace(**found.options)
        assert name == found.location or not name.startswith(pretrained.HUB)
        assert found.location.startswith(("https://", "gs://", pretrained.HUB))
        if found.location.startswith("https://"):
            assert published._CHECKSUM.search(found.location)


@pytest.mark.parametrize("name", PRETRAINED)
def test_the_table_tells_true_sizes(name: str) -> None:
    found = PRETRAINED[name]
    family, _, depth = found.network.removesuffix("-D").rpartition("-")
    options = {"resnet_depth": depth, "stem": "imagenet", "project_first_group": int(depth) > 34}
    if found.network.endswith("-D") or family == "ResNet-RS":
        options |= {"use_resnetd_stem": True, "resnetd_shortcut": True, "replace_stem_max_pool": family == "ResNet-RS"}
    options |= {"se_ratio": {"ResNet-RS": 0.25, "SE-ResNet": 1 / 16}.get(family)}
    config = Config().replace(**options)
    params, _ = create_network(config.model, num_classes=1000, image_size=224).shapes()
    assert round(sum(leaf.size for _, leaf in leaves(params)) / 1e6, 1) == found.parameters


def test_a_file_here_goes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("resnet50").mkdir()
    assert pretrained.fetch("runs/resnet50") is None
    Path("resnet50/model.safetensors").touch()
    assert weights.locate("resnet50").path == "resnet50/model.safetensors"
    with pytest.raises(UserError, match=r"got resnet5O, which does not exist.* Did you mean resnet50"):
        weights.locate("resnet5O")


def test_a_new_run_may_have_the_name_of_the_weights_that_it_starts_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("published.safetensors").touch()
    found = pretrained.Pretrained("published.safetensors", "ResNet-18", 11.7, None, "bsd-3-clause")
    monkeypatch.setitem(PRETRAINED, "resnet18", found)
    Path("resnet18/checkpoints").mkdir(parents=True)
    assert weights.locate("resnet18").path == "published.safetensors"


def test_names_of_the_table_are_published(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"https://models.example/{FILE}"
    found = pretrained.Pretrained(address, "ResNet-18", 11.7, None, "bsd-3-clause", {"crop_pct": 0.9})
    monkeypatch.setitem(PRETRAINED, "tiny", found)
    monkeypatch.setattr(published, "fetch", lambda address: (f"kept/{FILE}", CHECKSUM))
    origin = {"weights_origin": f"{address} sha256:{CHECKSUM}", "weights_licence": "bsd-3-clause"}
    assert pretrained.fetch("tiny") == (f"kept/{FILE}", {"crop_pct": 0.9} | origin)
    gone = pretrained.Pretrained("gs://bucket/folder", "ResNet-50", 25.6, None, "apache-2.0")
    monkeypatch.setitem(PRETRAINED, "far", gone)
    assert pretrained.fetch("far") == (
        "gs://bucket/folder", {"weights_origin": "gs://bucket/folder", "weights_licence": "apache-2.0"}
    )  # fmt: skip


def test_models_lists_every_name(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(width=80, file=io.StringIO(), record=True)
    with monkeypatch.context() as patch:
        patch.setattr("resnet_tpu.cli.models.make_console", lambda: console)
        assert cli.main(["models"]) == 0
    assert {line.split()[1] for line in console.export_text().splitlines() if line[:2] == "│ "} >= {*PRETRAINED}
    assert cli.main(["models"]) == 0
    table = capsys.readouterr().out
    assert cli.main(["models", "--format=csv"]) == 0
    rows = [line.split(",") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows[1:]] == list(PRETRAINED)
    assert all(name in table and found.licence in table for name, found in PRETRAINED.items())
    assert rows[0] == [
        "name",
        "network",
        "million parameters",
        "MB",
        "top-1 %",
        "eval_preprocessing",
        "licence",
        "source",
    ]
    assert next(row for row in rows if row[0] == "resnet50")[2:6] == ["25.6", "102", "80.9", "pil"]
