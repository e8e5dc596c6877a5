"""`~` in a path means the home folder, in every option and argument, wherever it is given."""

import pwd
import re
from pathlib import Path

import pytest

from resnet_tpu import cli
from resnet_tpu.cli.completion import options_of_verbs
from resnet_tpu.data.prepare.digits import write_digits
from resnet_tpu.data.prepare.options import PrepareOptions
from resnet_tpu.data.prepare.prepare import prepare
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import OPTIONS, Config
from resnet_tpu.options.fields import expand_home
from resnet_tpu.options.overrides import parse_overrides, read_yaml
from resnet_tpu.pruning.experiment import prune_run as prune
from resnet_tpu.pruning.options import Experiment
from resnet_tpu.resnet_main import parse
from resnet_tpu.serving.export.bundle import open_bundle

_CALLED_PATH = re.compile(r"_(dir|dir_small|folder|file|bucket|checkpoint|prune_at|reset_to|step_to)$|picture|^output$")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder, next to a working directory that is empty too."""
    for name in ("home", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "home"


def test_what_stands_for_the_home_folder_and_what_does_not(home: Path) -> None:
    for path, expected in {
        "~": str(home),
        "~/": f"{home}/",
        "~/a/~": f"{home}/a/~",
        "~root/a": f"{pwd.getpwnam('root').pw_dir}/a",
        "./~": f"{Path.cwd()}/~",
        "./~/a": f"{Path.cwd()}/~/a",
        "~no such user/a": f"{Path.cwd()}/~no such user/a",
    }.items():
        assert expand_home(path) == expected
        assert expand_home(expected) == expected
        assert not str(Path(expected)).startswith("~")
    for path in ("", ".", "a/~", "/a/~/b", "gs://bucket/~/a", "gs://~/a", "null"):
        assert expand_home(path) == path


def test_a_local_file_may_be_named_by_its_url() -> None:
    assert expand_home("file:///a/b=c/") == "/a/b=c/"
    assert Config().replace(data_dir="file:///d", model_dir="file:///m") == Config().replace(
        data_dir="/d", model_dir="/m"
    )


def test_a_home_folder_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(UserError, match=r"Path: got ~/a, and no home folder is known, .* Set HOME or write the whole"):
        expand_home("~/a")


@pytest.mark.parametrize("path", ["a\0b", "~\0", "a\ud800b"])
def test_text_that_cannot_be_a_path_is_refused(path: str) -> None:
    for reads in (expand_home, read_yaml, parse_overrides, open_bundle):
        with pytest.raises(UserError, match=r"^Path: got '.+', expected text without zero bytes or incomplete char"):
            reads(path)


@pytest.mark.usefixtures("home")
def test_error_calls_an_empty_path_nothing() -> None:
    with pytest.raises(UserError, match=r"^Bundle: got nothing, expected a folder"):
        open_bundle("")


def test_every_option_that_is_called_like_a_path_is_one() -> None:
    options = {(verb, name): found for verb, options in options_of_verbs().items() for name, found in options.items()}
    options |= {("", name): found for name, found in OPTIONS.items()}
    missed = [key for key, found in options.items() if _CALLED_PATH.search(key[1]) and not found.is_path]
    assert [key for key in missed if key != ("convert", "labels")] == []
    assert options["convert", "labels"].is_path
    assert options["profile train", "trace"].is_path


def test_home_is_expanded_wherever_an_option_is_given(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Config().replace(data_dir=f"{home}/d", model_dir=f"{home}/m")
    assert Config().replace(data_dir="~/d", model_dir="~/m") == expected
    (home / "a.yaml").write_text("data_dir: ~/d\nmodel_dir: ~/m\n")
    asked: list[Config] = []
    monkeypatch.setattr("resnet_tpu.cli.train.train_and_export", asked.append)
    for arguments in (
        ["--data_dir=~/d", "--model-dir", "~/m"],
        ["--config_file=~/a.yaml"],
        ["--params_override=~/a.yaml"],
        ["--params_override=data_dir=~/d,model_dir=~/m"],
        ["--params_override={data_dir: ~/d, model_dir: ~/m}"],
    ):
        assert cli.main(["train", "--recipe=imagenet", *arguments]) == 0
        assert asked.pop() == expected
        original = [word.replace("--config_file", "--hparams_file") for word in arguments]
        assert parse(original)[0] == expected
    assert read_yaml("~/a.yaml") == parse_overrides("~/a.yaml")


def test_the_digits_go_there(home: Path) -> None:
    (home / "digits" / "photo").mkdir(parents=True)
    for folder in ("~/digits", Path("~/digits")):
        with pytest.raises(UserError, match=f"Folder {home}/digits: got photo in it"):
            write_digits(folder)


def test_the_options_of_a_run_there_are_found(home: Path) -> None:
    (home / "config.json").write_text('{"resnet_depth": 20}')
    assert parse(["--mode=eval", "--model_dir=~"])[0] == Config().replace(resnet_depth=20, mode="eval", model_dir=home)


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", "input", "~/no"],
        ["bench", "serve", "~/no"],
        ["compact", "~/no", "~/out"],
        ["convert", "--inspect", "~/no"],
        ["convert", "~/no.safetensors", "~/out"],
        ["demo", "--data_dir=~/no", "--output_dir=~/out"],
        ["eval", "~/no"],
        ["export", "~/no", "~/out"],
        ["predict", "~/no", "a.jpg"],
        ["prepare", "~/no", "~/out"],
        ["profile", "train", "--trace=~/no"],
        ["prune", "~/no", "--density=20"],
        ["results", "~/no"],
        ["serve", "~/no", "--port=0"],
        ["serve", "name=~/no", "--port=0"],
        ["train", "--data_dir=~/no", "--model_dir=~/out"],
    ],
    ids=" ".join,
)
def test_home_is_expanded_in_arguments(arguments: list[str], home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    said = capsys.readouterr().err
    assert f"{home}/no" in said
    assert "~" not in said
    assert not [*home.iterdir(), *Path.cwd().iterdir()]


def test_functions_of_the_api(home: Path) -> None:
    for call in (
        lambda: open_bundle("~/no"),
        lambda: prepare("~/no", "~/out"),
        lambda: prepare(".", "~/out", PrepareOptions(bounding_boxes="~/no")),
        lambda: prune("~/no", "~/out", Experiment(density="20")),
    ):
        with pytest.raises(UserError, match=f"{home}/no"):
            call()
