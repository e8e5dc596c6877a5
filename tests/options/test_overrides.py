"""The grammar of override strings, and which layer of options wins."""

import json
from pathlib import Path
from typing import Any

import pytest

from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config
from resnet_tpu.options.fields import expand_home
from resnet_tpu.options.overrides import Layer, merge, parse_overrides, read_yaml, to_yaml

MAPPING = "expected one mapping `name: value`."


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("train_steps=2,base_learning_rate=1e-4", "train_steps", 2),
        ("train_steps=2,base_learning_rate=1e-4", "base_learning_rate", 1e-4),
        ("base_learning_rate=.5", "base_learning_rate", 0.5),
        ("base_learning_rate=1.5e-4", "base_learning_rate", 1.5e-4),
        ("use_tpu=False", "use_tpu", False),
        ("use_tpu = false", "use_tpu", False),
        ("use_tpu=0", "use_tpu", False),
        ("num_label_classes=null", "num_label_classes", None),
        ("num_label_classes=", "num_label_classes", None),
        ("num_label_classes=None", "num_label_classes", None),
        ("data_dir=gs://x/y", "data_dir", "gs://x/y"),
        ("data_dir=/data/x", "data_dir", "/data/x"),
        ('data_dir="3,4"', "data_dir", "3,4"),
        ("data_dir='3,4', train_steps=1", "data_dir", "3,4"),
        ("train_steps=7,", "train_steps", 7),
        ("train_steps=15epochs", "train_steps", "15epochs"),
        ("train_steps: 7", "train_steps", 7),
        ('{"train_steps": 5, "data_dir": "a=b,c"}', "data_dir", "a=b,c"),
    ],
)
def test_override_strings_of_the_original(text: str, name: str, expected: Any) -> None:
    config = merge(Config(), [Layer("override", parse_overrides(text))])
    assert config.flat()[name] == expected
    assert type(config.flat()[name]) is type(expected)


def test_lists_and_quotes_are_yaml_values() -> None:
    assert parse_overrides("a=[1,2,3],b='x, y',c=\"3,4\",d=text") == {
        "a": [1, 2, 3],
        "b": "x, y",
        "c": "3,4",
        "d": "text",
    }


def test_override_may_be_the_path_of_a_yaml_file(tmp_path: Path) -> None:
    (tmp_path / "some.yaml").write_text("train_steps: 3\n")
    assert parse_overrides(str(tmp_path / "some.yaml")) == {"train_steps": 3}


@pytest.mark.parametrize("text", ["s=3,4", "a", "a=b/c,d", "a=[1,2", "a=1 b=2,c"])
def test_text_that_is_no_override_is_refused(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_overrides(text)
    expected = "a=1,b=2, a YAML mapping or a YAML file. Quote values with commas or brackets."
    assert str(caught.value) == f"Override: got {text!r}, expected {expected}"


@pytest.mark.parametrize("path", ["nowhere.yaml", "~/nowhere.yml", "no,where.json", "no/where", "gs.yaml"])
def test_a_missing_file_of_overrides_is_named(path: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_overrides(path)
    assert str(caught.value) == f"YAML file: got {expand_home(path)}, expected an existing file. Check the path."


def test_override_with_a_bad_list() -> None:
    with pytest.raises(UserError) as caught:
        parse_overrides("a=[x: y: z]")
    problem = "expected ',' or ']', but got ':' in line 1"
    assert str(caught.value) == f"Override: got text that is not YAML of options: {problem}, {MAPPING} Correct it."


def test_numbers_in_yaml_that_yaml_takes_for_text(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("base_learning_rate: 1e-4\nbn_momentum: 0\n")  # YAML 1.1: '1e-4' is text
    config = merge(Config(), [Layer("a.yaml", read_yaml(str(tmp_path / "a.yaml")))])
    assert (config.optimizer.base_learning_rate, config.model.bn_momentum) == (1e-4, 0.0)


def test_the_options_of_a_run_may_be_those_of_another(tmp_path: Path) -> None:
    config = Config().replace(train_steps="3epochs", resnet_width=8)
    (tmp_path / "config.json").write_text(json.dumps({"version": "0.1.0", **config.flat()}))
    assert merge(Config(), [Layer("", read_yaml(str(tmp_path / "config.json")))]) == config


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"- a\n- b\n", f"{{}}: got ['a', 'b'], {MAPPING} Write one option per line."),
        (b"a: 1\nb: *c", f"{{}}: got text that is not YAML of options: an alias in line 2, {MAPPING} Correct it."),
        (b"a: 1\na: 2", f"{{}}: got text that is not YAML of options: a twice in line 2, {MAPPING} Correct it."),
        (b"# " + 400_000 * "ü".encode(), f"{{}}: got more than 100000 characters, {MAPPING} Correct it."),
        (b"# no options\n", f"{{}}: got nothing, {MAPPING} Write one option per line."),
        (b"\xff\xfe\xff", "YAML file: got {}, which is not text, expected UTF-8 text. Check the path."),
        (None, "YAML file: got {}, expected an existing file. Check the path."),
    ],
    ids=range(7),
)
def test_bad_yaml_files(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "bad.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_yaml(str(path))
    assert str(caught.value) == message.format(path)


def test_the_longest_yaml_file(tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_text("train_steps: 7 #" + "ü" * (100_000 - 16))
    assert read_yaml(str(tmp_path / "long.yaml")) == {"train_steps": 7}


def test_a_folder_is_no_yaml_file(tmp_path: Path) -> None:
    for read in (read_yaml, parse_overrides):
        with pytest.raises(UserError, match=rf"YAML file: got {tmp_path}, a folder, expected an existing file"):
            read(str(tmp_path))


def test_a_config_is_read_as_it_was_written_but_for_the_options_of_one_start(tmp_path: Path) -> None:
    config = Config().replace(train_steps="3epochs", mean_rgb=(1.0, 2.5, 3.0))
    (tmp_path / "a.yaml").write_text(to_yaml(config.replace(num_processes=2, process_id=1)))
    assert read_yaml(str(tmp_path / "a.yaml")) == {"mean_rgb": [1.0, 2.5, 3.0], "train_steps": "3epochs"}
    assert merge(Config(), [Layer("a.yaml", read_yaml(str(tmp_path / "a.yaml")))]) == config


def test_later_layers_win() -> None:
    config = merge(Config(), [Layer("low", {"train_steps": 1, "seed": 1}), Layer("high", {"train_steps": 2})])
    assert (config.train.train_steps, config.train.seed) == (2, 1)


def test_errors_name_the_layer() -> None:
    with pytest.raises(UserError, match=r"^train_steps \(mine\.yaml\): got 'x', expected steps"):
        merge(Config(), [Layer("mine.yaml", {"train_steps": "x"})])
    with pytest.raises(UserError, match=r"\(mine\.yaml\): got trian_steps.*Did you mean train_steps"):
        merge(Config(), [Layer("mine.yaml", {"trian_steps": 1})])


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        "a=" + " " * 50_000 + "b[",
        "a" + " " * 50_000 + "=" + " " * 50_000 + "[",
        " " * 100_000 + "a",
        "a=1," * 25_000 + "[",
        "a='" * 30_000,
        "a=[1," * 20_000,
        "a=" + "x " * 50_000 + "[",
        "{" + "a: " * 30_000,
        "a=0x" + "f" * 50_000 + ",b=[" + "9" * 50_000 + "]",
    ],
    ids=range(9),
)
def test_long_overrides_end_soon_and_in_a_short_message(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_overrides(text)
    assert len(str(caught.value)) < 3_000


def test_blanks_around_values_are_not_part_of_them() -> None:
    assert parse_overrides(f"a ={' ' * 50_000}1{' ' * 50_000}, b = x y \n") == {"a": "1", "b": "x y"}


def test_a_large_file_is_no_file_of_options(tmp_path: Path) -> None:
    (tmp_path / "records").write_bytes(b"a: 1\n" * 1_000_000)
    with pytest.raises(UserError, match="more than 100000 characters"):
        read_yaml(str(tmp_path / "records"))


@pytest.mark.parametrize("text", ["2024_06", "0123", "1.10", "1:30"])
def test_text_that_looks_like_a_number_stays_as_it_was_written(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"model_dir: {text}\n")
    config = merge(Config(), [Layer("a.yaml", read_yaml(str(tmp_path / "a.yaml")))])
    assert config.run.model_dir == text


def test_text_that_yaml_takes_for_true_or_false_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("model_dir: no\n")
    with pytest.raises(UserError, match=r"model_dir.*: got False, expected a path"):
        merge(Config(), [Layer("a.yaml", read_yaml(str(tmp_path / "a.yaml")))])
