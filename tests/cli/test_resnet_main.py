"""The original's flags: all exist, are merged in its order, and take effect or say why not."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from resnet_tpu import resnet_main
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import OPTIONS, Config
from resnet_tpu.resnet_main import ALIASES, SHORTHANDS, SINGLE_FLAGS, TEXT_FLAGS, WITHOUT_EFFECT, YAML_FLAGS, parse

ORIGINAL_FLAGS = """
resnet_depth train_batch_size eval_batch_size num_train_images num_eval_images num_label_classes train_steps
iterations_per_loop base_learning_rate momentum weight_decay label_smoothing enable_lars poly_rate use_tpu num_cores
transpose_input precision use_cache use_async_checkpointing image_size skip_host_call num_parallel_calls data_format
dropblock_groups dropblock_keep_prob dropblock_size pre_activation norm_act_layer augment_name randaug_num_layers
randaug_magnitude use_resnetd_stem resnetd_shortcut replace_stem_max_pool se_ratio drop_connect_rate dropout_rate
moving_average_decay bn_momentum

tpu gcp_project tpu_zone eval_master data_dir model_dir mode steps_per_eval eval_timeout eval_after_training
profile_every_n_steps tpu_profile_duration log_step_count_steps export_dir export_to_tpu export_moving_average
add_warmup_requests model_name inference_batch_sizes inference_with_all_cores resnet_checkpoint predict_batch_size
num_test_images config_file params_override hparams_file hparams default_hparams_file param_file param_overrides

bigtable_project bigtable_instance bigtable_table bigtable_train_prefix bigtable_eval_prefix bigtable_column_family
bigtable_column_qualifier

lottery_results_dir lottery_checkpoint_iters lottery_prune_at lottery_pruning_method lottery_reset_to
lottery_reset_global_step_to lottery_force_learning_rate lottery_force_reprune lth_use_random_label lth_no_pruning
lth_prediction_result_dir

resnet_size project zone max_train_steps lth_generate_predictions
"""
"""The name of every flag or hyperparameter in any version of the original: hyperparameters, run control, Bigtable,
pruning, synonyms."""


def test_every_flag_of_the_original_is_there_once() -> None:
    tables = (OPTIONS, WITHOUT_EFFECT, SHORTHANDS, ALIASES, YAML_FLAGS, TEXT_FLAGS)
    names = [name for table in tables for name in table]
    assert len(names) == len(set(names))
    assert set(names) - set(OPTIONS) <= set(ORIGINAL_FLAGS.split()) <= set(names)


def test_help_shows_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert resnet_main.main(["--help"]) == 0
    words = capsys.readouterr().out.split()
    for name in (*SINGLE_FLAGS, *ALIASES, *YAML_FLAGS, *TEXT_FLAGS):
        assert {f"--{name}", f"--{name}."} & {*words}


def options(*arguments: str) -> dict[str, Any]:
    """The options that differ from the defaults."""
    config = parse(arguments)[0].flat()
    return {name: value for name, value in config.items() if value != OPTIONS[name].default}


def test_command_of_the_fine_tuning_tutorial() -> None:
    assert options(
        "--tpu=grpc://10.0.0.2:8470",
        "--data_dir=gs://bucket/data",
        "--param_overrides=train_steps=42,iterations_per_loop=6,num_parallel_calls=64,train_batch_size=1024",
        "--model_dir=gs://bucket/model",
        "--resnet_checkpoint=gs://cloud-tpu-artifacts/resnet/resnet-nhwc-2018-02-07",
        "--mode=train_and_eval",
        "--steps_per_eval=42",
        "--profile_every_n_steps=1",
        "--tpu_profile_duration=15000",
        "--export_dir=gs://bucket/exported",
    ) == {
        "data_dir": "gs://bucket/data",
        "num_parallel_calls": 64,
        "train_steps": 42,
        "steps_per_eval": 42,
        "iterations_per_loop": 6,
        "resnet_checkpoint": "gs://cloud-tpu-artifacts/resnet/resnet-nhwc-2018-02-07",
        "profile_every_n_steps": 1,
        "tpu_profile_duration": 15000,
        "export_dir": "gs://bucket/exported",
        "model_dir": "gs://bucket/model",
    }


def test_command_of_its_prediction(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run = Config().replace(resnet_depth=18, data_dir="old", train_batch_size=32)
    (tmp_path / "config.json").write_text(json.dumps(run.flat()))
    arguments = ["--tpu=", "--data_dir=data", f"--model_dir={tmp_path}", "--mode=predict"]
    config, origins = parse([*arguments, "--predict_batch_size=360", "--num_test_images=372"])
    assert config == run.replace(
        data_dir="data", model_dir=str(tmp_path), mode="predict", predict_batch_size=360, num_test_images=372
    )
    assert origins["data_dir"] == "command line"
    assert "resnet_depth" not in origins
    assert f"Options that are not given are those of {tmp_path}/config.json." in caplog.text


def test_command_of_the_rewinding_readme(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    arguments = ["--hparams_file", "official/resnet/configs/cloud/v3-8.yaml", "--data_dir", "d", "--resnet_depth", "34"]
    assert options(*arguments, "--model_dir", "m", "--tpu", "name") == {
        "data_dir": "d", "model_dir": "m", "resnet_depth": 34, "train_steps": 113854, "iterations_per_loop": 113854,
        "skip_host_call": True, "num_cores": 8,
    }  # fmt: skip
    assert "v3-8.yaml; the recipe v3-8 has its values" in caplog.text
    found = options(*arguments, "--lottery_results_dir", "m", "--lottery_checkpoint_iters", "0,11259,22518")
    assert (found["lottery_results_dir"], found["lottery_checkpoint_iters"]) == ("m", "0,11259,22518")


def test_the_configuration_file_itself_goes_before_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "v3-8.yaml").write_text("train_steps: 7\nnum_cores: 8\nuse_tpu: False\n")
    assert options(f"--hparams_file={tmp_path}/v3-8.yaml") == {"train_steps": 7, "num_cores": 8, "use_tpu": False}


def test_layers_in_the_order_of_the_original(tmp_path: Path) -> None:
    def yaml(name: str, steps: int) -> str:
        (tmp_path / name).write_text(f"train_steps: {steps}\n")
        return str(tmp_path / name)

    arguments = [
        "--hparams=train_steps=6",
        "--train_steps=5",
        "--params_override=train_steps=3",
        "--param_overrides=train_steps=4",
        f"--config_file={yaml('b', 2)}",
        f"--default_hparams_file={yaml('a', 1)}",
    ]
    for given, expected in zip(range(len(arguments)), (6, 5, 4, 3, 2, 1), strict=True):
        order = arguments if given < 2 else [*arguments[:2], arguments[3], arguments[2], *arguments[4:]]
        assert options(*order[given:]) == {"train_steps": expected}


@pytest.mark.parametrize("name", ["params_override", "param_overrides", "hparams"])
def test_repeats_and_joined_lists(name: str) -> None:
    assert options(f"--{name}=train_steps=1,seed=2", f"--{name}", "train_steps=3") == {"train_steps": 3, "seed": 2}


def test_a_folder_replaces_the_table_that_the_run_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"bigtable_instance": "photos", "image_size": 64}')
    own = ["--mode=eval", f"--model_dir={tmp_path}"]
    for given, location in (
        ((), "bigtable://photos/imagenet"),
        (("--data_dir=b",), "b"),
        (("--data_dir=b", "--bigtable_instance=c"), "bigtable://c/imagenet"),
    ):
        config, _ = parse([*own, *given])
        assert (config.data.location, config.data.image_size) == (location, 64)


@pytest.mark.parametrize("name", ["config_file", "hparams_file", "param_file", "default_hparams_file"])
def test_yaml_flags(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("base_learning_rate: 1e-4\nlabel_smoothing: 0.1\nmoving_average_decay: 0\n")
    assert options(f"--{name}={tmp_path}/a.yaml") == {"base_learning_rate": 1e-4, "label_smoothing": 0.1}
    with pytest.raises(UserError, match=r"YAML file: got nowhere.yaml, expected an existing file"):
        parse([f"--{name}=nowhere.yaml"])


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        (["--resnet_size=34"], {"resnet_depth": 34}),
        (["--max_train_steps=3"], {"train_steps": 3}),
        (["--params_override=resnet_size=34"], {"resnet_depth": 34}),
        (["--lth_generate_predictions"], {"mode": "predict"}),
        (["--lth_generate_predictions=False"], {}),
        (["--params_override=use_cache=true"], {"cache": "records"}),
        (["--params_override=use_cache=true", "--use_cache=False"], {}),
        (["--use_cache", "--hparams=use_cache=false"], {}),
        (["--params_override=use_cache=false", "--use_cache"], {"cache": "records"}),
        (["--params_override=use_cache=true", "--cache=decoded"], {"cache": "decoded"}),
        (["-train_steps", "3"], {"train_steps": 3}),
        (["-nouse_tpu"], {"use_tpu": False}),
        (["--use_tpu=False"], {"use_tpu": False}),
        (["--enable_lars", "--poly_rate=30"], {"enable_lars": True, "poly_rate": 30.0}),
        (["--bn_momentum=0"], {"bn_momentum": 0.0}),
        (["--augment_name=None", "--randaug_magnitude=", "--se_ratio=null", "--dropblock_groups="], {}),
        (["--noexport_moving_average", "--use_resnetd_stem"],
         {"export_moving_average": False, "use_resnetd_stem": True}),
        (["--eval_timeout=10", "--mode=eval"], {"eval_timeout": 10, "mode": "eval"}),
        (["--inference_batch_sizes=1", "--inference_batch_sizes=8"], {"inference_batch_sizes": "1,8"}),
        (["--params_override=inference_batch_sizes=[1,8]"], {"inference_batch_sizes": "1,8"}),
        (["--add_warmup_requests", "--model_name=flowers"], {"add_warmup_requests": True, "model_name": "flowers"}),
    ],
)  # fmt: skip
def test_names_and_spellings(argument: list[str], expected: dict[str, Any]) -> None:
    assert options(*argument) == expected


@pytest.mark.parametrize("name", [*WITHOUT_EFFECT, "zone"])
def test_flags_with_nothing_left_to_do_say_why(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    first = ALIASES.get(name, name)
    assert options(f"--{name}={(*WITHOUT_EFFECT[first].choices, '1')[0]}") == {}
    messages = [record.message for record in caplog.records]
    assert messages == [f"{first}: accepted, but has no effect. {WITHOUT_EFFECT[first].help}"]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--transpose_input=many", r"transpose_input \(command line\): got 'many', expected true or false or null"),
        (
            "--data_format=NHWC",
            r"data_format \(command line\): got 'NHWC', expected one of channels_first, channels_last",
        ),
        (
            "--params_override=data_format=channels_lst",
            r"data_format \(--params_override\): .* Did you mean channels_la",
        ),
    ],
)
def test_flags_with_nothing_left_to_do_still_have_their_values(argument: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse([argument])


@pytest.mark.parametrize("value", ["channels_first", "channels_last", "None"])
def test_both_values_of_data_format(value: str) -> None:
    assert options(f"--data_format={value}") == {}


def test_values_with_commas_in_flags_of_one_pair() -> None:
    for name in ("hparams", "param_overrides"):
        assert options(f"--{name}=dropblock_groups=3,4") == {"dropblock_groups": "3,4"}
    assert options("--params_override=dropblock_groups='3,4',seed=1") == {"dropblock_groups": "3,4", "seed": 1}
    with pytest.raises(UserError, match=r"lth_use_random_label .* got 'a,b'"):
        parse(["--hparams", "lth_use_random_label=a,b"])
    with pytest.raises(UserError, match="Override: got 'dropblock_groups=3,4'"):
        parse(["--params_override", "dropblock_groups=3,4"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trian_steps=3"], r"Option: got --trian_steps, .*Did you mean --train_steps"),
        (["--params_override=trian_steps=3"], r"\(--params_override\): got trian_steps.*Did you mean train_steps"),
        (["--hparams=a=1,bad"], "a known option|Override"),
        (["train"], "resnet_main: got also train, expected python -m resnet_tpu.resnet_main --data_dir=FOLDER"),
        (["--mode=predikt"], r"mode \(command line\): got 'predikt', .*Did you mean predict"),
        (["--train_steps=many"], r"train_steps \(command line\): got 'many'"),
    ],
)
def test_wrong_command_lines(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(arguments)


def test_origins_are_logged_and_model_dir_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert resnet_main.main(["--param_overrides=train_steps=42", "--seed=0", "--use_tpu=False"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "train_steps = 42 (--param_overrides)",
        "use_tpu = False (command line)",
        "data_dir is not given: training on zeros instead of images, which only measures speed.",
        "model_dir: got nothing, expected a folder for checkpoints and metrics. Give --model_dir=FOLDER.",
    ]


def test_without_data_dir_it_trains_on_zeros_as_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[Config] = []
    monkeypatch.setattr(resnet_main, "train_and_export", trained.append)
    assert resnet_main.main(["--model_dir=run"]) == 0
    assert trained == [Config().replace(data_dir="null", model_dir="run")]
