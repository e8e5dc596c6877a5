"""The options of a run: read from its file or from a checkpoint, if one of ours wrote them."""

import json
from pathlib import Path

import pytest

from resnet_tpu.checkpoints.meta import config_of
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config
from resnet_tpu.options.overrides import Layer, merge, read_yaml
from resnet_tpu.options.run_file import read_run, write_description


def test_options_of_an_earlier_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_run(str(tmp_path)) is None
    config = Config().replace(image_size=64, train_steps="3epochs")
    (tmp_path / "config.json").write_text(json.dumps({"version": "0.0.1", **config.flat()}))
    found = read_run(str(tmp_path))
    assert found is not None
    assert found.origin == str(tmp_path / "config.json")
    assert merge(Config(), [found]) == config
    monkeypatch.chdir(tmp_path)
    assert read_run("") is None


def test_the_processes_of_a_run_are_not_those_of_what_uses_it_later(tmp_path: Path) -> None:
    config = Config().replace(train_steps="3", coordinator_address="10.0.0.2:1234", num_processes=2, process_id=1)
    (tmp_path / "config.json").write_text(json.dumps(config.flat()))
    found = read_run(str(tmp_path))
    assert found is not None
    assert merge(Config(), [found]) == Config().replace(train_steps="3")
    (tmp_path / "config.json").write_text(json.dumps({"version": "0.1.0", **config.flat()}))  # as earlier versions did
    assert "process_id" not in read_yaml(str(tmp_path / "config.json"))
    write_description(str(tmp_path), config, ["a"])
    assert "process_id" not in json.loads((tmp_path / "config.json").read_text())


def test_kernels_that_no_longer_exist_are_chosen_anew(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"version": "0.1.0", "kernels": "block", "train_steps": 5}')
    own = read_run(str(tmp_path))
    assert own is not None
    assert dict(own.values) == {"kernels": "auto", "train_steps": 5}
    assert config_of({"config": {**Config().flat(), "kernels": "block"}}) == Config()


def test_a_config_of_another_program_is_not_that_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architecture": "resnet50", "num_classes": 1000}')  # as timm writes it
    assert read_run(str(tmp_path)) is None
    (folder := tmp_path / "checkpoints" / "9" / "meta").mkdir(parents=True)
    (folder / "data.json").write_text('{"config": {"train_steps": 9}}')
    assert read_run(str(tmp_path)) == Layer(str(folder / "data.json"), {"train_steps": 9})


def test_options_that_a_checkpoint_holds(tmp_path: Path) -> None:
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "data.json").write_text(json.dumps({"config": {"train_steps": 3}, "labels": ["a"]}))
    assert read_run(str(tmp_path)) == Layer(str(tmp_path / "meta" / "data.json"), {"train_steps": 3})


def test_options_of_a_run_without_its_file_are_those_of_the_newest_checkpoint(tmp_path: Path) -> None:
    for step in (9, 10):
        (folder := tmp_path / "checkpoints" / str(step) / "meta").mkdir(parents=True)
        (folder / "data.json").write_text(json.dumps({"config": {"train_steps": step}}))
    newest = Layer(str(tmp_path / "checkpoints" / "10" / "meta" / "data.json"), {"train_steps": 10})
    assert read_run(str(tmp_path)) == read_run(str(tmp_path / "checkpoints")) == newest


@pytest.mark.parametrize("text", ["{", "[1]", ""])
def test_damaged_description_of_a_run(tmp_path: Path, text: str) -> None:
    (file := tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError) as caught:
        read_run(str(tmp_path))
    do = "Choose another model_dir or checkpoint, or delete this file."
    assert str(caught.value) == f"Config of the run: got {file}, expected a JSON object. {do}"


@pytest.mark.parametrize(
    "text", ['{"a":' * 5_000, '{"train_steps": 1' + "0" * 5_000 + "}", "[1, 2]", '{"config": 3}'], ids=range(4)
)
@pytest.mark.parametrize("name", ["config.json", "meta/data.json"])
def test_descriptions_of_a_run_that_no_program_wrote(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text if text[2:8] != "config" or "meta" in name else "3")
    with pytest.raises(UserError, match="Config of the run"):
        read_run(str(tmp_path))
