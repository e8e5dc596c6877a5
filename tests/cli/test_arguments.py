"""Spellings of options, and what the parser says about them."""

import pytest

from resnet_tpu.cli.arguments import OtherName, Parser, describe, metavar, split_arguments
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import OPTIONS

FLAGS = {"train_steps": False, "use_tpu": True, "nowhere": False}


def split(*arguments: str, single_dash: bool = False) -> list[tuple[str | None, str]]:
    return list(split_arguments(arguments, FLAGS, program="prog", single_dash=single_dash))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--train_steps=5"], [("train_steps", "5")]),
        (["--train-steps=5"], [("train_steps", "5")]),
        (["--train_steps", "5"], [("train_steps", "5")]),
        (["--train_steps", "-5"], [("train_steps", "-5")]),
        (["--train_steps=a=b"], [("train_steps", "a=b")]),
        (["--train_steps="], [("train_steps", "")]),
        (["--use_tpu"], [("use_tpu", "true")]),
        (["--nouse_tpu"], [("use_tpu", "false")]),
        (["--no-use-tpu"], [("use_tpu", "false")]),
        (["--no_use_tpu", "x"], [("use_tpu", "false"), (None, "x")]),
        (["--no-use-tpu=true"], None),
        (["--no-train-steps"], None),
        (["--use_tpu=False"], [("use_tpu", "False")]),
        (["--use_tpu", "False", "x"], [("use_tpu", "False"), (None, "x")]),
        (["--use_tpu", "folder"], [("use_tpu", "true"), (None, "folder")]),
        (["--nowhere=1"], [("nowhere", "1")]),
        (["a", "--", "--use_tpu", "-b"], [(None, "a"), (None, "--use_tpu"), (None, "-b")]),
        (["-"], [(None, "-")]),
    ],
)
def test_spellings(arguments: list[str], expected: list[tuple[str | None, str]] | None) -> None:
    if expected is None:
        with pytest.raises(UserError):
            split(*arguments)
    else:
        assert split(*arguments) == expected


def test_single_dash_where_the_original_took_it() -> None:
    assert split("-train_steps", "5", "-nouse_tpu", single_dash=True) == [("train_steps", "5"), ("use_tpu", "false")]
    assert split("-train_steps") == [(None, "-train_steps")]


def test_unknown_option_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"Option: got --trian-steps, .* See prog --help. Did you mean --train_steps\?"):
        split("--trian-steps=3")


def test_value_left_out() -> None:
    with pytest.raises(UserError, match="--train_steps: got nothing, expected a value"):
        split("--use_tpu", "--train_steps")


def make_parser() -> Parser:
    parser = Parser("prog verb", "About it.", usage="IN [options]", examples=("prog verb x",))
    parser.add_argument("source", metavar="IN", help="Where from.")
    parser.add_options("some", OPTIONS.values(), repeatable=("config_file", "seed"))
    return parser


def test_parse_gives_text_of_what_was_given_only() -> None:
    assert make_parser().parse(["--seed=1", "here", "--seed", "2", "--train_steps=3", "--nouse_tpu"]) == {
        "source": "here", "seed": ["1", "2"], "train_steps": "3", "use_tpu": "false"
    }  # fmt: skip
    assert make_parser().parse(["--", "-odd"]) == {"source": "-odd"}


def test_other_names_mean_the_option_and_are_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser("prog verb", "About it.", examples=())
    options = [OPTIONS["seed"], OPTIONS["use_tpu"], OPTIONS["train_steps"]]
    means = {"start": "seed", "with_tpu": "use_tpu", "absent": "momentum"}
    names = {name: OtherName(option) for name, option in means.items()}
    parser.add_options("some", options, other_names=names | {"epochs": OtherName("train_steps", unit="epochs")})
    assert parser.parse(["--start=1"]) == parser.parse(["--seed=1"]) == {"seed": "1"}
    assert parser.parse(["--seed=1", "--start", "2", "--nowith_tpu"]) == {"seed": "2", "use_tpu": "false"}
    assert parser.parse(["--epochs", "0.5"]) == {"train_steps": "0.5epochs"}
    with pytest.raises(UserError, match=r"Did you mean --start[?,]"):
        parser.parse(["--strat=1"])
    with pytest.raises(UserError, match="got --absent"):
        parser.parse(["--absent=1"])
    with pytest.raises(SystemExit):
        parser.parse(["--help"])
    words = " ".join(capsys.readouterr().out.split())
    assert f"--seed N {describe(OPTIONS['seed'])} Also --start." in words
    assert "Also --epochs=20 for 20epochs." in words


def test_the_short_help_shows_what_is_common_and_the_whole_one_all(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(argument: str) -> str:
        parser = Parser("prog verb", "About it.", examples=())
        parser.add_options("some", [OPTIONS["seed"], OPTIONS["momentum"]], common={"seed"})
        parser.add_options("others", [OPTIONS["use_tpu"]], common=())
        with pytest.raises(SystemExit) as ended:
            parser.parse([argument, "--seed=1"])
        assert ended.value.code == 0
        return capsys.readouterr().out

    short = shown("--help")
    assert "--seed N" in short
    assert not {"--momentum", "--use_tpu", "others:"} & set(short.split())
    assert "prog verb --help-all shows 2 more options." in short
    whole = shown("--help-all").split()
    assert {"--seed", "--momentum", "--use_tpu", "others:"} <= set(whole)
    assert "--help-all" not in whole


@pytest.mark.parametrize(("arguments", "got"), [([], "no IN"), (["a", "b"], "also b")])
def test_too_few_and_too_many(arguments: list[str], got: str) -> None:
    with pytest.raises(UserError, match=rf"^prog verb: got {got}, expected prog verb IN \[options\]"):
        make_parser().parse(arguments)


def test_help_shows_every_option_with_text_default_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        make_parser().parse(["-h"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    words = " ".join(shown.split())
    for found in OPTIONS.values():
        assert f"--{found.name} {metavar(found)}" in words
        assert describe(found) in words
    assert "  prog verb x" in shown


def test_defaults_are_told_unless_the_text_does() -> None:
    assert describe(OPTIONS["train_batch_size"]).endswith(" Default: 1024.")
    assert describe(OPTIONS["use_tpu"]).endswith(" Default: true.")
    assert describe(OPTIONS["num_eval_images"]).count("Default") == 1
