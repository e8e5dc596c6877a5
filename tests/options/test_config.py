"""Options: their types, ranges, lengths, and the round trip through JSON."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resnet_tpu.errors import UserError
from resnet_tpu.options.config import OPTIONS, Config
from resnet_tpu.options.fields import option, options_of

PACKAGE = Path(__file__).parents[2] / "src" / "resnet_tpu"


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("train_batch_size", "256", 256),
        ("train_batch_size", 256.0, 256),
        ("train_batch_size", "1e3", 1000),
        ("base_learning_rate", "1e-4", 1e-4),
        ("base_learning_rate", ".5", 0.5),
        ("base_learning_rate", 1, 1.0),
        ("bn_momentum", 0, 0.0),  # the original's own files write the integer
        ("bn_momentum", "none", None),
        ("seed", "1e3", 1000),
        ("seed", "9007199254740993", 9007199254740993),  # 2**53 + 1, which no float can represent
        ("use_tpu", "False", False),
        ("use_tpu", 0, False),
        ("use_tpu", True, True),
        ("train_steps", "42", 42),
        ("train_steps", "15epochs", "15epochs"),
        ("train_steps", "0.5 ep", "0.5 ep"),
        ("warmup_steps", "null", None),
        ("warmup_steps", "", None),
        ("num_label_classes", None, None),
        ("num_label_classes", "", None),
        ("data_dir", "null", "null"),  # the original's word for zeros instead of images
        ("data_dir", None, ""),
        ("data_dir", 7, "7"),
        ("precision", "float32", "float32"),
    ],
)
def test_convert_gives_the_type_of_the_option(name: str, given: Any, expected: Any) -> None:
    converted = OPTIONS[name].convert(given)
    assert converted == expected
    assert type(converted) is type(expected)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("train_batch_size", "abc", "train_batch_size: got 'abc', expected a whole number."),
        ("train_batch_size", 2.5, "a whole number"),
        ("train_batch_size", True, "a whole number"),
        ("train_batch_size", "inf", "a whole number"),
        ("train_batch_size", 0, "train_batch_size: got 0, expected at least 1."),
        ("train_batch_size", None, "a whole number"),
        ("train_batch_size", [1], "a whole number"),
        ("base_learning_rate", "nan", "a number"),
        ("base_learning_rate", -0.1, "at least 0"),
        ("use_tpu", "maybe", "true or false"),
        ("precision", "bfloat17", "one of bfloat16, float32. Change the value. Did you mean bfloat16, float32?"),
        ("train_steps", "15 apples", "steps such as 1000 or epochs such as 15epochs"),
        ("train_steps", "-5epochs", "steps such as 1000"),
        ("train_steps", -5, "steps such as 1000"),
        ("iterations_per_loop", 0, "at least 1"),
        ("data_dir", {"a": 1}, "a path"),
        ("freeze", {"a": 1}, "text"),
        ("freeze", ("stem/*", "group1/*"), "text. Write it as one text: 'stem/*,group1/*'."),
        ("lottery_checkpoint_iters", [4, 5], "text. Write it as one text: '4,5'."),
        ("precision", ["float32"], "one of bfloat16, float32. Change the value."),
        ("precision", np.array(["float32", "bfloat16"]), "one of bfloat16, float32. Change the value."),
        ("lottery_checkpoint_iters", np.arange(0, 50, 10), "text. Change the value."),
        ("mean_rgb", np.zeros((2, 3)), "three numbers such as 0.5,0.5,0.5"),
        ("train_steps", [4], "steps or epochs such as 15epochs. Change the value."),
        ("data_dir", {"photos"}, "a path"),
        ("data_dir", b"photos", "a path"),
        ("num_label_classes", 1, "at least 2"),
    ],
)
def test_convert_refuses_what_does_not_fit(name: str, given: Any, message: str) -> None:
    with pytest.raises(UserError) as error:
        OPTIONS[name].convert(given)
    assert message in str(error.value)
    assert str(error.value).startswith(f"{name}: got ")


def test_the_ends_of_a_range_belong_to_it_and_nothing_beyond_does() -> None:
    for name, found in OPTIONS.items():
        for end, beyond in ((found.at_least, -1), (found.at_most, 1)):
            if end is not None:
                assert found.convert(end) == end, name
                with pytest.raises(UserError, match=f"^{name}: got "):
                    found.convert(end + beyond)


def test_every_default_is_a_value_of_its_option() -> None:
    for name, found in OPTIONS.items():
        assert found.convert(found.default) == found.default, name
        assert found.help.endswith((".", ":")), name


def test_option_names_are_unique_over_the_groups() -> None:
    assert len(OPTIONS) == sum(
        len(dataclasses.fields(getattr(Config(), field.name))) for field in dataclasses.fields(Config)
    )


def test_replace_sets_the_field_of_the_group_and_nothing_else() -> None:
    config = Config().replace(train_batch_size="64", image_size=32, data_dir="photos")
    assert (config.train.train_batch_size, config.data.image_size, config.data.data_dir) == (64, 32, "photos")
    changed = {"train_batch_size": 64, "image_size": 32, "data_dir": "photos"}
    assert config.flat() == Config().flat() | changed


def test_unknown_option_names_the_nearest() -> None:
    with pytest.raises(UserError, match="Did you mean train_batch_size"):
        Config().replace(train_batchsize=3)
    with pytest.raises(UserError, match="Option: got self, expected a known option"):
        Config().replace(self=1)


def test_json_round_trip() -> None:
    config = Config().replace(train_steps="90epochs", bn_momentum=None, use_tpu=False, base_learning_rate=0.025, seed=7)
    assert Config().replace(**json.loads(json.dumps(config.flat()))) == config


def test_options_of_describes_any_dataclass() -> None:
    @dataclasses.dataclass(frozen=True)
    class Colours:
        red: int = option(3, "How red.", at_least=0)

    found = options_of(Colours, "colours")["red"]
    assert (found.name, found.group, found.default, found.help, found.at_least) == ("red", "colours", 3, "How red.", 0)


@pytest.mark.parametrize("name", ["seed", "train_steps", "train_batch_size", "resnet_width"])
@pytest.mark.parametrize(
    "given",
    ["9" * 10_000, "9" * 30, 2**63, 1e300, "1e300", "9" * 400 + "epochs", "9" * 10_000 + "epochs"],
    ids=range(7),
)
def test_numbers_beyond_64_bits_are_refused(name: str, given: Any) -> None:
    with pytest.raises(UserError, match=f"^{name}: got ") as error:
        OPTIONS[name].convert(given)
    assert len(str(error.value)) < 1_300


@pytest.mark.parametrize("given", ["a\0b", "\ud800"])
def test_text_that_cannot_be_a_path_is_refused(given: str) -> None:
    with pytest.raises(UserError, match=r"^model_dir: got .*, expected a path"):
        OPTIONS["model_dir"].convert(given)


def test_the_same_choices_have_the_same_order_everywhere() -> None:
    """Two Literals of the same words are equal, and of equal unions `typing` keeps the one that was made first."""
    text = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    found = {tuple(re.findall(r'"(\w+)"', words)) for words in re.findall(r"Literal\[([^]]+)\]", text)}
    assert len(found) > 10
    assert len({frozenset(words) for words in found}) == len(found)
