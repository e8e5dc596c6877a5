"""Options that cannot work together are reported before any work begins, with what to change."""

import re
from pathlib import Path
from typing import Any

import pytest

from resnet_tpu import cli, resnet_main
from resnet_tpu.errors import UserError
from resnet_tpu.models.option_checks import check_options, options_without_effect
from resnet_tpu.options.config import Config


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        (
            {"warmup_steps": 500},
            ["warmup_steps 500 has no effect with the schedule step, only with cosine and constant."],
        ),
        (
            {"warmup_steps": "1epochs", "enable_lars": True, "poly_rate": 3},
            ["warmup_steps 1epochs has no effect with the schedule lars, only with cosine and constant."],
        ),
        (
            {"learning_rate_epochs": 90, "learning_rate_schedule": "cosine", "warmup_steps": 5},
            ["learning_rate_epochs "],
        ),
        (
            {"learning_rate_epochs": 90, "learning_rate_boundaries": "4,21"},
            ["learning_rate_epochs has an effect only with"],
        ),
        (
            {"enable_lars": True, "base_learning_rate": 0.001},
            ["base_learning_rate 0.001 has no effect with enable_lars: see poly_rate."],
        ),
        ({"poly_rate": 3}, ["poly_rate 3 has no effect without enable_lars."]),
        ({"dropblock_keep_prob": 0.9}, ["dropblock_keep_prob 0.9 has no effect without dropblock_groups."]),
        ({"dropblock_size": 5}, ["dropblock_size 5 has no effect without dropblock_groups."]),
        (
            {"dropblock_keep_prob": 0.9, "dropblock_size": 5, "dropblock_groups": "4", "learning_rate_epochs": 90},
            [],
        ),
        ({"enable_lars": True, "nesterov": False}, ["nesterov has no effect with enable_lars, which uses plain"]),
        ({"nesterov": False}, []),
        ({"augment_flavor": "corrected"}, ["augment_flavor corrected has no effect without augment_name."]),
        ({"augment_flavor": "corrected", "augment_name": "randaugment"}, []),
    ],
)
def test_reports_options_without_effect(options: dict[str, Any], lines: list[str]) -> None:
    found = list(options_without_effect(Config().replace(**options)))
    assert len(found) == len(lines)
    assert all(line.startswith(start) for line, start in zip(found, lines, strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_crop_area": 1.5}, "min_crop_area: got 1.5, expected at most 1."),
        ({"random_erasing": 2}, "random_erasing: got 2, expected at most 1."),
        ({"stddev_rgb": "0.2,0,0.2"}, "stddev_rgb: got (0.2, 0.0, 0.2), expected three numbers above 0 and at most 1."),
        ({"stddev_rgb": "58,57,57"}, "stddev_rgb: got (58.0, 57.0, 57.0), expected three numbers above 0 and at most"),
        ({"mean_rgb": "123.7,116.3,103.5"}, "mean_rgb: got (123.7, 116.3, 103.5), expected three numbers from 0 to 1."),
        ({"stem": "imagenet", "resnet_depth": 20}, "stem: got imagenet at resnet_depth 20, expected small, the only"),
        ({"label_smoothing": 1}, "label_smoothing: got 1.0, expected less than 1."),
        ({"moving_average_decay": 1, "bn_momentum": 0}, "moving_average_decay: got 1.0, expected less than 1."),
        (
            {"enable_lars": True, "learning_rate_schedule": "cosine"},
            "learning_rate_schedule: got cosine with enable_lars, expected step, as LARS has its own schedule.",
        ),
        (
            {"enable_lars": True, "learning_rate_boundaries": "4,21"},
            "learning_rate_boundaries: got 4,21 with enable_lars, expected the schedule step, the only one with bounda",
        ),
        (
            {"enable_lars": True, "decay_batch_norm": True},
            "decay_batch_norm: got true with enable_lars, expected false, as LARS decays only kernels. Set decay_ba",
        ),
        (
            {"learning_rate_schedule": "cosine", "learning_rate_boundaries": "4,21"},
            "learning_rate_boundaries: got 4,21 with learning_rate_schedule cosine, expected the schedule step,",
        ),
        (
            {"learning_rate_boundaries": "4,3"},
            "learning_rate_boundaries: got '4,3', expected epochs in ascending order such as 4,21,35,43.",
        ),
        ({"dropout_rate": 1}, "dropout_rate: got 1.0, expected less than 1."),
        ({"drop_connect_rate": 1}, "drop_connect_rate: got 1.0, expected less than 1."),
        ({"bn_momentum": 1.1}, "bn_momentum: got 1.1, expected at most 1."),
        ({"se_ratio": 1.5}, "se_ratio: got 1.5, expected at most 1."),
        ({"resnet_depth": 51}, "resnet_depth: got 51, expected one of 8, 18, 20, 32, 34, 44, 50,"),
        (
            {"randaug_magnitude": 9},
            "randaug_magnitude: got 9 with augment_name null, expected augment_name randaugment. Set augment_name=",
        ),
        (
            {"randaug_num_layers": 2, "augment_name": "autoaugment"},
            "randaug_num_layers: got 2 with augment_name autoaugment, expected augment_name randaugment.",
        ),
        (
            {"moving_average_decay": 0.9999},
            "moving_average_decay: got 0.9999 with bn_momentum left to its default, expected bn_momentum 0, as ",
        ),
        ({"cache_memory": 2}, "cache_memory: got 2.0 with cache none, expected cache records or decoded. Set cac"),
        ({"cache": "records", "cache_short_side": 256}, "cache_short_side: got 256 with cache records, expected cache"),
        (
            {"input_workers": "processes", "input_pipeline": "basic"},
            "input_workers: got processes with input_pipeline basic, expected threads, as that pipeline uses only one",
        ),
        ({"moving_average_decay": 0.5, "bn_momentum": 0.9}, "moving_average_decay: got 0.5 with bn_momentum 0.9,"),
        (
            {"gradient_accumulation_steps": 7},
            "gradient_accumulation_steps: got 7, expected a divisor of train_batch_size 1024. Use 4 or 8.",
        ),
        (
            {"gradient_accumulation_steps": 33, "train_batch_size": 32},
            "gradient_accumulation_steps: got 33, expected a divisor of train_batch_size 32. Use 32.",
        ),
        (
            {"gradient_accumulation_steps": 7, "train_batch_size": 2**62},
            "gradient_accumulation_steps: got 7, expected a divisor of train_batch_size 4611686018427387904.",
        ),
    ],
)  # fmt: skip
def test_impossible_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match="^" + re.escape(message)):
        check_options(Config().replace(**options))


def test_a_network_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UserError, match=r"^norm_act_layer: got evonorm_s0, expected bn_relu without pre_activation"):
        check_options(Config().replace(norm_act_layer="evonorm_s0"))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"min_crop_area": 1, "random_erasing": 1, "bn_momentum": 1, "se_ratio": 1},
        {"dropblock_keep_prob": 0.9},  # no groups, as in the original's old default.yaml
        {"dropblock_groups": "4, 3", "dropblock_keep_prob": 1, "pre_activation": True},
        {"resnet_depth": 18, "se_ratio": 0, "drop_connect_rate": 0, "dropblock_groups": ""},
        {"resnet_depth": 18, "pre_activation": True, "norm_act_layer": "evonorm_s0", "freeze_batch_norm": True},
        {"randaug_num_layers": 3, "augment_name": "randaugment"},
        {"moving_average_decay": 0, "bn_momentum": None},
        {"moving_average_decay": 0.99, "bn_momentum": 0},
        {"gradient_accumulation_steps": 1024},
        {"enable_lars": True, "head_learning_rate_multiplier": 10, "mixup_alpha": 0.2, "cutmix_alpha": 1},
    ],
)
def test_possible_options(options: dict[str, Any]) -> None:
    check_options(Config().replace(**options))


@pytest.mark.parametrize(
    ("program", "arguments"), [(cli.main, ["train"]), (resnet_main.main, [])], ids=["resnet-tpu", "resnet_main"]
)
def test_named_before_the_data_are_looked_for(
    program: Any, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model_dir = tmp_path / "run"
    options = ["--data_dir=nowhere", f"--model_dir={model_dir}", "--params_override=norm_act_layer=evonorm_s0"]
    assert program([*arguments, *options]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("norm_act_layer: got evonorm_s0, expected ")
    assert not model_dir.exists()
