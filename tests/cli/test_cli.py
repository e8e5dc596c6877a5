"""The command `resnet-tpu`: its verbs on real files, how options combine, help, and mistakes."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from resnet_tpu import __version__, cli
from resnet_tpu.cli.run_options import (
    ALIASES,
    COMMON_AFTERWARDS,
    COMMON_IN_TRAINING,
    EXPORT_ONLY,
    TRAINING_ONLY,
    configure_like_run,
    options_about,
)
from resnet_tpu.options.config import OPTIONS, Config
from resnet_tpu.options.overrides import read_yaml
from resnet_tpu.recipes import RECIPES, find_recipe

SMALL_RUN = """
resnet_depth: 8
resnet_width: 4
image_size: 16
precision: float32
train_batch_size: 16
eval_batch_size: 16
iterations_per_loop: 2
num_cores: 1
"""


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one message with which the command fails."""
    assert cli.main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    return shown.err


def prints(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The output of the command, which must succeed."""
    try:
        code = cli.main(arguments)
    except SystemExit as ended:
        code = ended.code
    assert code == 0
    return capsys.readouterr().out


def test_start_is_quick_and_the_exit_code_is_the_processs() -> None:
    code = (
        "import sys, resnet_tpu.cli, resnet_tpu.resnet_main\n"
        "heavy = {'jax', 'flax', 'orbax', 'matplotlib', 'cv2', 'fsspec', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "sys.exit(resnet_tpu.cli.main(['trian']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    verbs = ", ".join(cli.VERBS)
    assert (
        done.stderr == f"resnet-tpu: got trian, expected one of {verbs}. See resnet-tpu --help. Did you mean train?\n"
    )


def test_version_and_overview(capsys: pytest.CaptureFixture[str]) -> None:
    assert prints(capsys, "--version") == prints(capsys, "-V") == f"resnet-tpu {__version__}\n"
    overview = prints(capsys, "--help")
    for verb in cli.VERBS:
        assert f"\n  {verb} " in overview
    assert prints(capsys) == prints(capsys, "help") == overview
    assert prints(capsys, "help", "bench", "input") == prints(capsys, "bench", "input", "--help")
    assert "Did you mean train?" in fails(capsys, "help", "trian")


@pytest.mark.parametrize("verb", cli.VERBS)
def test_help_teaches(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = prints(capsys, verb, "--help")
    assert shown.startswith(f"usage: resnet-tpu {verb} ")
    text, _, examples = shown.partition("\nexamples:\n")
    assert examples.startswith(f"  resnet-tpu {verb}")
    assert max(map(len, text.splitlines())) <= 110


def test_the_whole_help_of_train_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    words = prints(capsys, "train", "--help-all").split()
    options = [name for name, found in OPTIONS.items() if found.group != "lottery"]  # those are for `prune`
    for name in (*options, "recipe", "config_file", "params_override"):
        assert f"--{name}" in words


@pytest.mark.parametrize("verb", ["train", "plan", "tune", "eval", "predict", "export"])
def test_the_short_help_is_short(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = re.findall(r"^  --(\w+)", prints(capsys, verb, "--help"), re.MULTILINE)
    assert 0 < sum(name in {*OPTIONS, "recipe", "config_file"} for name in names) <= 12


def test_options_that_the_short_help_shows_are_options() -> None:
    assert {*OPTIONS, "recipe", "config_file"} >= COMMON_IN_TRAINING | COMMON_AFTERWARDS
    assert OPTIONS.keys() >= {alias.option for alias in ALIASES.values()}
    assert not OPTIONS.keys() & ALIASES.keys()


def test_recipes_are_listed_and_printed_as_files_of_options(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    listed = prints(capsys, "recipes")
    assert set(RECIPES) <= set(re.findall(r"[\w-]+", listed))
    assert "  flowers_cpu  ResNet-18 on 96 px photos, from scratch, 20 epochs: for a few CPU cores.\n" in listed
    for name in ("finetune", "cifar", "v3-2048", "resnetrs420_i320", "imagenet"):
        (tmp_path / "printed.yaml").write_text(prints(capsys, "recipes", name))
        assert Config().replace(**read_yaml(str(tmp_path / "printed.yaml"))) == find_recipe(name)
    assert "Did you mean finetune" in fails(capsys, "recipes", "finetun")


@pytest.mark.parametrize("verb", ["eval", "predict", "export"])
def test_help_lists_what_concerns_the_verb(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = prints(capsys, verb, "--help-all").split()
    assert {"--data_dir", "--eval_batch_size", "--use_tpu", "--params_override"} <= set(words)
    assert not {"--momentum", "--resnet_depth", "--mode", "--model_dir", "--recipe"} & set(words)
    assert not {"--random_flip", "--augment_name", "--cache", "--export_dir"} & set(words)
    assert ("--export_forms" in words) == (verb == "export")
    assert ("--eval_timeout" in words) == ("--train_steps" in words) == (verb == "eval")


def test_options_left_out_of_verbs_are_options() -> None:
    assert set(options_about("data")) >= TRAINING_ONLY
    assert set(options_about("eval")) >= EXPORT_ONLY


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--trian_steps=3"], "Option: got --trian_steps, expected an option of resnet-tpu train."),
        (["train", "--trian-steps=3"], "Did you mean --train_steps"),
        (["train", "--train_steps=many", "--data_dir=d"], "train_steps (command line): got 'many', expected steps"),
        (["train", "--params_override=seed=x"], "seed (--params_override): got 'x', expected a whole number."),
        (["train", "--config_file=nowhere.yaml"], "YAML file: got nowhere.yaml, expected an existing file."),
        (["train", "--recipe=flower"], "Did you mean flowers"),
        (["train", "--model_dir=m"], "data_dir: got nothing, expected TFRecords or a folder of images per class."),
        (["train", "--data_dir=synthetic"], "model_dir: got nothing, expected a folder"),
        (["train", "--data_dir=gs://bucket/data"], "model_dir: got nothing, expected a folder"),
        (["train"], "data_dir: got nothing, expected TFRecords or a folder of images per class."),
        (["train", "d", "--data_dir=e"], "got d and --data_dir=e, expected one folder of images. Leave one out."),
        (["train", "--epochs=many", "--data_dir=d"], "train_steps (command line): got 'many', expected steps"),
        (
            ["train", "--data_dir=synthetic", "--model_dir=m", "--recipe=digits", "--mode=eval"],
            "mode: got eval, expected train or train_and_eval.",
        ),
        (["train", "d", "more"], "resnet-tpu train: got also more, expected resnet-tpu train [PHOTOS] [options]."),
        (["train", "--init_form=x"], "Did you mean --init_from"),
        (["eval"], "resnet-tpu eval: got no CHECKPOINT, expected resnet-tpu eval CHECKPOINT"),
        (["predict", "m", "--cache=decoded"], "got --cache, expected an option of resnet-tpu predict"),
        (["eval", "m", "--momentum=3"], "got --momentum, expected an option of resnet-tpu eval"),
        (["eval", "m", "--image_size=64"], "got --image_size, expected an option of resnet-tpu eval"),
        (["eval", "m", "--export_moving_average=true"], "got --export_moving_average, expected an option of"),
        (["export", "m", "e", "--num_label_classes=9"], "got --num_label_classes, expected an option of"),
        (["predict"], "resnet-tpu predict: got no CHECKPOINT"),
        (["predict", "m", "--format=xml"], "format: got 'xml', expected one of table, csv, json."),
        (["predict", "m", "--top_k=0"], "top_k: got 0, expected at least 1."),
        (["prepare", "in"], "got no OUT, expected a folder to write to"),
        (["prepare", "in", "out", "--max_sides=3"], "Did you mean --max_side"),
        (["prepare", "in", "out", "--workers=0"], "workers: got 0, expected at least 1."),
        (["results", "nowhere"], "model_dir: got nowhere, expected an existing folder."),
        (["convert"], "resnet-tpu convert: got no SRC"),
        (["convert", "a", "b", "c"], "resnet-tpu convert: got also c"),
        (["prune", "--combine", "m", "--output_dir=o", "--precision=float32"], "got precision, expected --output_dir"),
        (["demo", "--data=x"], "Did you mean --data_dir"),
        (["--data_dir=d"], "resnet-tpu: got --data_dir=d, expected one of"),
    ],
)
def test_mistakes(arguments: list[str], message: str, refusal: Callable[..., str]) -> None:
    assert message in refusal(*arguments)


def test_train_adds_up_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "low.yaml").write_text("seed: 1\nmomentum: 0.5\ntrain_batch_size: 8\n")
    (tmp_path / "high.yaml").write_text("momentum: 0.6\ntrain_batch_size: 9\n")
    asked: list[Config] = []
    monkeypatch.setattr("resnet_tpu.cli.train.train_and_export", asked.append)
    files = [f"--config_file={tmp_path}/low.yaml", f"--config_file={tmp_path}/high.yaml"]
    strings = ["--params_override=train_batch_size=10,weight_decay=0", "--params_override", "weight_decay=1"]
    single = ["--data-dir=d", "--model_dir", "m", "--weight_decay=2", "--nonesterov"]
    assert cli.main(["train", "--recipe=flowers_cpu", *single, *strings, *files]) == 0
    assert asked == [
        find_recipe("flowers_cpu").replace(
            seed=1, momentum=0.6, train_batch_size=10, weight_decay=2.0, nesterov=False, data_dir="d", model_dir="m"
        )
    ]


def test_a_folder_given_in_bulk_replaces_the_table_of_a_run_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"bigtable_instance": "photos"}')
    (tmp_path / "some.yaml").write_text("data_dir: b\n")
    for given in (
        {"data_dir": "b"},
        {"params_override": ["data_dir=b"]},
        {"config_file": [str(tmp_path / "some.yaml")]},
    ):
        assert configure_like_run(given | {"model_dir": str(tmp_path)}).data.location == "b"
    given = {"params_override": ["data_dir=b,bigtable_instance=c"]}
    assert configure_like_run(given | {"model_dir": str(tmp_path)}).data.location == "bigtable://c/imagenet"
    assert (
        configure_like_run({"params_override": [f"model_dir={tmp_path}"]}).data.location == "bigtable://photos/imagenet"
    )


def test_init_from_is_another_name_of_resnet_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Config] = []
    monkeypatch.setattr("resnet_tpu.cli.train.train_and_export", asked.append)
    monkeypatch.setattr("resnet_tpu.checkpoints.weights.options_of_weights", lambda path: {})
    for name in ("init_from", "init-from", "resnet_checkpoint"):
        words = ["train", "--recipe=imagenet", "--data_dir=d", "--model_dir=m"]
        assert cli.main([*words, f"--{name}=weights.pth"]) == 0
    assert asked == [Config().replace(data_dir="d", model_dir="m", resnet_checkpoint="weights.pth")] * 3


def test_common_names_mean_the_options_of_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Config] = []
    monkeypatch.setattr("resnet_tpu.cli.train.train_and_export", asked.append)
    start = ["train", "d", "--recipe=flowers"]
    assert cli.main([*start, "--epochs=3", "--batch-size=8", "--lr", "0.5", "--no-random-flip"]) == 0
    assert cli.main([*start, "--train_steps=3epochs", "--train_batch_size=8", "--base_learning_rate=0.5",
                     "--random_flip=false", "--model_dir=runs/d"]) == 0  # fmt: skip
    assert asked[0] == asked[1]
    assert (asked[0].data.data_dir, asked[0].train.train_steps, asked[0].data.random_flip) == ("d", "3epochs", False)


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two class folders of 20 photos each, bright ones and dark ones."""
    folder = tmp_path_factory.mktemp("raw")
    rng = np.random.default_rng(0)
    for name, level in (("bright", 170), ("dark", 30)):
        (folder / name).mkdir()
        for number in range(20):
            photo = rng.integers(level, level + 50, (24, 32, 3), np.uint8)
            cv2.imwrite(str(folder / name / f"{number}.jpg"), photo)
    return folder


@pytest.mark.long
def test_verbs_one_after_the_other(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # so that paths below ~ are below here
    Path("small.yaml").write_text(SMALL_RUN)
    shown = prints(capsys, "prepare", str(raw), "~/data", "--workers=1", "--train_shards=2", "--split=0.8,0.1,0.1")
    assert "dark" in shown
    assert Path("data/train-00001-of-00002").exists()

    arguments = [
        "--config_file=small.yaml",
        "--data_dir=~/data",
        "--model_dir=~/run",
        "--train_steps=2",
        "--steps_per_eval=2",
    ]
    prints(capsys, "train", *arguments)
    assert prints(capsys, "results", "run", "--format=csv").splitlines()[0] == "model_dir,step,top_1_accuracy"
    prints(capsys, "eval", "~/run", "--eval_batch_size=8")

    table = prints(capsys, "results", "run", "--metric=loss", "--picture=~/loss.png")
    assert "best" in table
    assert Path("loss.png").read_bytes().startswith(b"\x89PNG")

    (photo, *_) = (raw / "dark").iterdir()
    answer = prints(capsys, "predict", "run", str(photo))
    assert re.fullmatch(r"(bright|dark) +\d+\.\d%\n(bright|dark) +\d+\.\d%\n", answer)
    rows = prints(capsys, "predict", "run", str(raw / "dark"), "--format=csv", "--top_k=1").splitlines()
    assert len(rows) == 1 + 20
    assert "4 labelled images: top-1" in prints(capsys, "predict", "run", "--split=test", "--output_dir=~/report")
    assert list(Path("report").glob("*.png"))
    shown = prints(capsys, "predict", "run", str(raw / "dark"))
    assert 0 < shown.index("Predictions") < shown.index("Classes") < shown.index("labelled images: top-1")
    assert "expected one of loss" in fails(capsys, "results", "run", "--metric=los")
    assert not Path("~").exists()


@pytest.mark.parametrize("given", ["..", "../", "../dark/.."])
def test_a_model_is_named_after_the_folder_however_that_is_given(
    raw: Path, given: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(raw / "dark")
    assert f"\nmodel_dir: runs/{raw.name}\n" in prints(capsys, "train", given, "--print_config", "--recipe=flowers")


@pytest.mark.usefixtures("blank_curves")
def test_a_folder_of_photos_alone_is_enough_to_train(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my photos").symlink_to(raw)
    small = [f"--{line.replace(': ', '=')}" for line in SMALL_RUN.split("\n") if line]
    command = ["train", "my photos", "--epochs=1", *small]

    would = prints(capsys, *command, "--dry_run")
    assert "ResNet-8, 2 classes, 16 px, float32; 32 training images; batch 16 on 1 x cpu; steps 0 to 2 " in would
    assert "An evaluation on 4 images every 2 steps\nCheckpoints every 2 steps in runs/my photos\n" in would
    would = prints(capsys, *command, "--train_batch_size=12", "--dry_run")
    assert "steps 0 to 2 (0.8 epochs, in whole batches)" in would
    assert cli.main([*command, "--export_dir=exported", "--export_forms=onix", "--dry_run"]) == 2
    assert "Did you mean onnx?" in capsys.readouterr().err
    printed = prints(capsys, *command, "--resnet_depth=50", "--print_config")
    assert "\nresnet_depth: 50\n" in printed  # a default, but given: initial weights must not tell another
    printed = prints(capsys, *command, "--print_config")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my photos"]  # neither command wrote anything

    Path("printed.yaml").write_text(printed)
    assert prints(capsys, "train", "--config_file=printed.yaml", "--print_config") == printed
    assert cli.main(command) == 0
    logged = capsys.readouterr().err
    assert logged.startswith(
        "No --model_dir: using runs/my photos\nNo --recipe: using flowers_cpu, for 32 images on a CPU\n"
    )
    assert logged.endswith("Predict with it: resnet-tpu predict 'runs/my photos' IMAGE\n")
    kept = Config().replace(**read_yaml("runs/my photos/config.json"))
    found = {"num_train_images": 32, "num_label_classes": 2, "data_order": "records"}
    assert kept == Config().replace(**read_yaml("printed.yaml"), **found)
    assert "is at step 2 of 2." in prints(capsys, *command, "--dry_run")
    assert cli.main(command) == 0
    assert "is at step 2 of 2. Raise train_steps to continue, or give another model_dir." in capsys.readouterr().err
    Path("a [v2]").symlink_to(raw)
    assert "Checkpoints every 2 steps in runs/a _v2]\n" in prints(capsys, "train", "a [v2]", *command[2:], "--dry_run")
    shutil.copytree(raw, "other/my photos")
    assert cli.main(["train", "other/my photos", *command[2:]]) == 2
    assert "got a run on my photos in runs/my photos/config.json, expected none, or one on other/my photos" in (
        capsys.readouterr().err
    )
    assert cli.main(["train", f"{tmp_path}/my photos", *command[2:]]) == 0
