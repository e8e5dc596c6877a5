"""Spellings of options, and what a command says about them."""

import dataclasses
from typing import Any

import pytest

from resnet_tpu.cli.arguments import Alias, Argument, Group
from resnet_tpu.cli.command import Command, Given
from resnet_tpu.cli.help_text import help_of, metavar
from resnet_tpu.cli.menu import Menu
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import OPTIONS
from resnet_tpu.options.fields import FilePath, option


def named(*names: str) -> dict[str, Any]:
    return {name: OPTIONS[name] for name in names}


def parse(*words: str, single_dash: bool = False) -> dict[str, Any]:
    """The values parsed by a command with a number, a bool, an option that begins with `no`, and any arguments."""
    nowhere = dataclasses.replace(OPTIONS["freeze"], name="nowhere")
    group = Group("some", {**named("train_steps", "use_tpu"), "nowhere": nowhere})
    arguments = (Argument("words", "WORD", "Any.", is_required=False, many=True, is_path=False),)
    given = Command("prog", groups=[group], arguments=arguments, single_dash=single_dash).parse(words)
    return {name: value for name, value in given.values.items() if value}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--train_steps=5"], {"train_steps": "5"}),
        (["--train-steps=5"], {"train_steps": "5"}),
        (["--train_steps", "5"], {"train_steps": "5"}),
        (["--train_steps", "-5"], {"train_steps": "-5"}),
        (["--train_steps=a=b"], {"train_steps": "a=b"}),
        (["--train_steps=1", "--train_steps", "2"], {"train_steps": "2"}),
        (["--use_tpu"], {"use_tpu": "true"}),
        (["--nouse_tpu"], {"use_tpu": "false"}),
        (["--no-use-tpu"], {"use_tpu": "false"}),
        (["--no_use_tpu", "x"], {"use_tpu": "false", "words": ["x"]}),
        (["--no-use-tpu=true"], None),
        (["--no-train-steps"], None),
        (["--use_tpu=False"], {"use_tpu": "False"}),
        (["--use_tpu", "False", "x"], {"use_tpu": "False", "words": ["x"]}),
        (["--use_tpu", "folder"], {"use_tpu": "true", "words": ["folder"]}),
        (["--nowhere=1"], {"nowhere": "1"}),
        (["a", "--", "--use_tpu", "-b"], {"words": ["a", "--use_tpu", "-b"]}),
        (["-"], {"words": ["-"]}),
    ],
)
def test_spellings(words: list[str], expected: dict[str, Any] | None) -> None:
    if expected is None:
        with pytest.raises(UserError):
            parse(*words)
    else:
        assert parse(*words) == expected


def test_an_empty_value_counts_as_given() -> None:
    assert Command("prog", groups=[Group("some", named("freeze"))]).parse(["--freeze="]).values == {"freeze": ""}


def test_single_dash_where_the_original_took_it() -> None:
    assert parse("-train_steps", "5", "-nouse_tpu", single_dash=True) == {"train_steps": "5", "use_tpu": "false"}
    assert parse("-train_steps") == {"words": ["-train_steps"]}


def test_unknown_option_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"Option: got --trian-steps, .* See prog --help. Did you mean --train_steps\?"):
        parse("--trian-steps=3")


def test_value_left_out() -> None:
    with pytest.raises(UserError, match="--train_steps: got nothing, expected a value"):
        parse("--use_tpu", "--train_steps")


def make_command() -> Command:
    repeatable = dataclasses.replace(OPTIONS["seed"], is_repeatable=True)
    return Command(
        "prog verb",
        "About it.",
        [Group("some", {**OPTIONS, "seed": repeatable})],
        usage="IN [options]",
        examples=("prog verb x",),
        arguments=(Argument("source", "IN", "Where from."),),
    )


@pytest.mark.parametrize("word", ["--use_tpu", "--no-use-tpu", "--nowhere=1", "--help", "--misspelt", "--"])
def test_an_option_is_not_the_value_of_the_one_before_it(word: str) -> None:
    with pytest.raises(UserError, match="--train_steps: got nothing, expected a value"):
        parse("--train_steps", word)
    assert parse("--nowhere=--other") == {"nowhere": "--other"}


def test_parse_gives_text_of_what_was_given_only() -> None:
    words = ["--seed=1", "here", "--seed", "2", "--train_steps=3", "--nouse_tpu"]
    assert make_command().parse(words) == Given(
        words, {"source": "here", "seed": ["1", "2"], "train_steps": "3", "use_tpu": "false"}
    )
    assert make_command().parse(["--", "-odd"]).values == {"source": "-odd"}


def test_arguments_after_two_dashes_are_passed_on() -> None:
    command = Command("prog", groups=[Group("some", named("seed"))], other_program=("train_steps",))
    given = command.parse(["--seed=1", "--", "--train_steps=5", "--", "x"])
    assert (given.values, given.rest) == ({"seed": "1"}, ("--train_steps=5", "--", "x"))
    with pytest.raises(UserError, match=r"got --train_steps=5, .* Write prog \[options\] -- --train_steps=5$"):
        command.parse(["--train_steps=5"])


def test_other_names_mean_the_option_and_are_in_the_help() -> None:
    means = {"start": "seed", "with_tpu": "use_tpu", "absent": "momentum"}
    names = {name: Alias(option) for name, option in means.items()}
    names["epochs"] = Alias("train_steps", unit="epochs")
    command = Command("prog verb", groups=[Group("some", named("seed", "use_tpu", "train_steps"), aliases=names)])
    assert command.parse(["--start=1"]).values == command.parse(["--seed=1"]).values == {"seed": "1"}
    assert command.parse(["--seed=1", "--start", "2", "--nowith_tpu"]).values == {"seed": "2", "use_tpu": "false"}
    assert command.parse(["--epochs", "0.5"]).values == {"train_steps": "0.5epochs"}
    for given in ("90epochs", "90ep", "many"):  # the unit is added to numbers alone
        assert command.parse([f"--epochs={given}"]).values == {"train_steps": given}
    with pytest.raises(UserError, match=r"Did you mean --start[?,]"):
        command.parse(["--strat=1"])
    with pytest.raises(UserError, match="got --absent"):
        command.parse(["--absent=1"])
    words = " ".join(command.help(whole=False).split())
    assert f"--seed N {help_of(OPTIONS['seed'])} Also --start." in words
    assert "Also --epochs=20 for 20epochs." in words


def test_the_short_help_shows_what_is_common_and_the_whole_one_all(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(word: str) -> str:
        some, others = (
            Group("some", named("seed", "momentum"), common={"seed"}),
            Group("others", named("use_tpu"), common=()),
        )
        with pytest.raises(SystemExit) as ended:
            Command("prog verb", groups=[some, others]).parse([word, "--seed=1"])
        assert ended.value.code == 0
        return capsys.readouterr().out

    short = shown("--help")
    assert shown("-h") == short
    assert "--seed N" in short
    assert not {"--momentum", "--use_tpu", "others:"} & set(short.split())
    assert "prog verb --help-all shows 2 more options." in short
    whole = shown("--help-all").split()
    assert {"--seed", "--momentum", "--use_tpu", "others:"} <= set(whole)
    assert "--help-all" not in whole


@pytest.mark.parametrize(("words", "got"), [([], "no IN"), (["a", "b"], "also b")])
def test_too_few_and_too_many(words: list[str], got: str) -> None:
    with pytest.raises(UserError, match=rf"^prog verb: got {got}, expected prog verb IN \[options\]"):
        make_command().parse(words)


def test_help_shows_every_option_with_text_default_and_examples() -> None:
    shown = make_command().help(whole=True)
    words = " ".join(shown.split())
    assert "IN Where from." in words
    for found in OPTIONS.values():
        assert f"--{found.name} {metavar(found)}" in words
        assert help_of(found) in words
    assert "  prog verb x" in shown


def test_help_shows_defaults_unless_the_text_does() -> None:
    assert help_of(OPTIONS["train_batch_size"]).endswith(" Default: 1024.")
    assert help_of(OPTIONS["use_tpu"]).endswith(" Default: true.")
    assert help_of(OPTIONS["num_eval_images"]).count("Default") == 1


@dataclasses.dataclass(frozen=True)
class Taste:
    """What a dish is like."""

    salt: int = option(1, "How salty.", at_least=0)
    recipe: FilePath = option("", "Where it stands.")


DISHES = {"soup": "hot", "salad": "cold"}


@Command(
    "prog cook",
    "It takes a while.",
    [Group("taste", f"{__name__}:Taste", without=("recipe",)), Group("dishes", {}, notes=f"{__name__}:DISHES")],
)
def cook(given: Given) -> None:
    """Make a meal."""
    MEALS.append(given.fill(Taste))


MEALS: list[Taste] = []


def test_a_verb_says_what_it_takes_without_being_run(capsys: pytest.CaptureFixture[str]) -> None:
    menu = Menu("prog", "Everything about meals.", {"cook": cook}, examples=("prog cook",))
    assert [*cook.command.options] == ["salt"]
    assert cook.command.help(whole=False).startswith(
        "usage: prog cook [options]\n\nMake a meal.\n\nIt takes a while.\n\n"
        "taste:\n  --salt N  How salty. Default: 1.\n\ndishes:\n  soup      hot\n  salad     cold\n"
    )
    menu([])
    assert "  cook  Make a meal.\n" in capsys.readouterr().out
    assert MEALS == []
    menu(["cook", "--salt=3"])
    assert [Taste(salt=3)] == MEALS
    with pytest.raises(UserError, match=r"salt: got -1, expected at least 0"):
        menu(["cook", "--salt=-1"])
    with pytest.raises(UserError, match=r"^prog: got cock, expected one of cook. See prog --help. Did you mean cook"):
        menu(["cock"])
