"""The original's configuration files, however they are given, and the recipes named after them mean the same."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from resnet_tpu import recipes
from resnet_tpu.options.config import OPTIONS, Config
from resnet_tpu.recipes import find_recipe
from resnet_tpu.recipes.imagenet import CLOUD, MODERN
from resnet_tpu.resnet_main import parse

IMAGENET = {"num_train_images": 1281167, "num_eval_images": 50000, "num_label_classes": 1000}

SLICES = {
    "v2-8": (113854, 1024, False),
    "v2-32": (28464, 4096, False),
    "v2-128": (7116, 16384, True),
    "v2-256": (3558, 32768, True),
    "v2-512": (3558, 32768, True),
    "v3-8": (113854, 1024, False),
    "v3-32": (28464, 4096, False),
    "v3-64": (14232, 8192, False),
    "v3-128": (7116, 16384, True),
    "v3-256": (3558, 32768, True),
    "v3-512": (3558, 32768, True),
    "v3-1024": (3558, 32768, True),
    "v3-2048": (3558, 32768, True),
}
"""Steps, batch size, and whether LARS is used."""

RANDAUGMENT = {"randaugment-8": (225216, 1024), "randaugment-32": (56304, 4096)}
"""Steps and batch size."""

RESNET_RS = {
    "resnetrs50_i160": (50, 160, 10, 0.25, None),
    "resnetrs101_i160": (101, 160, 10, 0.25, None),
    "resnetrs101_i192": (101, 192, 15, 0.25, None),
    "resnetrs152_i192": (152, 192, 15, 0.25, None),
    "resnetrs152_i224": (152, 224, 15, 0.25, None),
    "resnetrs152_i256": (152, 256, 15, 0.25, None),
    "resnetrs200_i256": (200, 256, 15, 0.25, 0.1),
    "resnetrs270_i256": (270, 256, 15, 0.25, 0.1),
    "resnetrs350_i256": (350, 256, 15, 0.25, 0.1),
    "resnetrs350_i320": (350, 320, 15, 0.4, 0.1),
    "resnetrs420_i320": (420, 320, 15, 0.4, 0.1),
}
"""Depth, image size, RandAugment magnitude, dropout rate, and drop-connect rate."""

DEFAULT = IMAGENET | {
    "resnet_depth": 50, "train_batch_size": 1024, "eval_batch_size": 1024, "train_steps": 112590,
    "iterations_per_loop": 1251, "base_learning_rate": 0.1, "momentum": 0.9, "weight_decay": "1e-4",
    "label_smoothing": 0.0, "enable_lars": False, "poly_rate": 0.0, "use_tpu": True, "num_cores": 8,
    "transpose_input": True, "precision": "bfloat16", "use_cache": True, "use_async_checkpointing": False,
    "image_size": 224, "skip_host_call": False, "num_parallel_calls": 8, "data_format": "channels_last",
    "dropblock_groups": "", "dropblock_keep_prob": None, "dropblock_size": 7, "pre_activation": False,
    "norm_act_layer": "bn_relu", "augment_name": None, "randaug_num_layers": None, "randaug_magnitude": None,
    "use_resnetd_stem": False, "resnetd_shortcut": False, "replace_stem_max_pool": False, "se_ratio": None,
    "drop_connect_rate": None, "dropout_rate": None, "moving_average_decay": 0, "bn_momentum": 0.9,
}  # fmt: skip

PRUNING = {
    "dropblock_keep_prob": 0.9, "data_dir": "gs://bucket/imagenet", "lottery_results_dir": "",
    "lottery_checkpoint_iters": ",".join(map(str, range(0, 112591, 1251))), "lottery_prune_at": "",
    "lottery_pruning_method": "prune_global_20", "lottery_reset_to": "", "lottery_reset_global_step_to": "",
    "lottery_force_learning_rate": None, "lottery_force_reprune": False, "lth_use_random_label": False,
    "lth_no_pruning": False, "lth_prediction_result_dir": "",
}  # fmt: skip
"""What the pruning fork's defaults add or change."""


def slice_file(name: str) -> dict[str, Any]:
    train_steps, train_batch_size, enable_lars = SLICES[name]
    values = {
        "train_steps": train_steps, "train_batch_size": train_batch_size, "eval_batch_size": 1024,
        "iterations_per_loop": train_steps, "num_cores": int(name.split("-")[1]), "skip_host_call": True,
    }  # fmt: skip
    return values | ({"enable_lars": True, "label_smoothing": 0.1} if enable_lars else {})


def randaugment_file(name: str) -> dict[str, Any]:
    train_steps, train_batch_size = RANDAUGMENT[name]
    return {
        "resnet_depth": 50, "train_steps": train_steps, "train_batch_size": train_batch_size, "eval_batch_size": 1024,
        "iterations_per_loop": 1000, "num_cores": int(name.split("-")[1]), "skip_host_call": True,
        "augment_name": "randaugment", "randaug_num_layers": 2, "randaug_magnitude": 9,
    }  # fmt: skip


def resnet_rs_file(name: str) -> dict[str, Any]:
    resnet_depth, image_size, magnitude, dropout_rate, drop_connect_rate = RESNET_RS[name]
    values = IMAGENET | {
        "resnet_depth": resnet_depth, "image_size": image_size, "randaug_magnitude": magnitude,
        "dropout_rate": dropout_rate, "augment_name": "randaugment", "randaug_num_layers": 2,
        "base_learning_rate": 0.1, "data_format": "channels_last", "eval_batch_size": 200, "label_smoothing": 0.1,
        "momentum": 0.9, "precision": "bfloat16", "use_resnetd_stem": True, "resnetd_shortcut": True,
        "replace_stem_max_pool": True, "se_ratio": 0.25, "train_batch_size": 4096, "train_steps": 109475,
        "transpose_input": True, "weight_decay": "4e-5", "moving_average_decay": 0.9999, "bn_momentum": 0,
    }  # fmt: skip
    return values | ({} if drop_connect_rate is None else {"drop_connect_rate": drop_connect_rate})


FILES: dict[str, dict[str, Any]] = {
    "default": DEFAULT,
    "default of the pruning fork": DEFAULT | PRUNING,
    "gpu": {"train_batch_size": 128, "eval_batch_size": 128, "use_tpu": False, "precision": "float32"},
    **{name: slice_file(name) for name in SLICES},
    **{name: randaugment_file(name) for name in RANDAUGMENT},
    **{name: resnet_rs_file(name) for name in RESNET_RS},
}
"""File names, and their values as YAML reads them: 1e-4 is text, and the 0 of bn_momentum is an integer."""


def expected(values: dict[str, Any]) -> dict[str, Any]:
    """Every option, with these values for the options among them."""
    names = ("weight_decay", "bn_momentum", "moving_average_decay")
    numbers = {name: float(values[name]) for name in names if name in values}
    cache = {"cache": "records"} if values.get("use_cache") else {}
    return Config().flat() | {name: value for name, value in (values | numbers | cache).items() if name in OPTIONS}


def assignments(values: dict[str, Any], quote: str = "") -> list[str]:
    """`name=value` for each value, as on a command line; values with commas are quoted."""
    texts = {name: "null" if value is None else str(value) for name, value in values.items()}
    return [f"{name}={quote}{text}{quote}" if "," in text else f"{name}={text}" for name, text in texts.items()]


@pytest.mark.parametrize("name", FILES)
def test_the_values_act_whichever_way_they_are_given(name: str, tmp_path: Path) -> None:
    values, path = FILES[name], str(tmp_path / "file.yaml")
    Path(path).write_text(yaml.safe_dump(values).replace("'1e-4'", "1e-4").replace("'4e-5'", "4e-5"))
    in_one = ",".join(assignments(values, quote='"'))
    ways = [
        *([f"--{flag}={path}"] for flag in ("config_file", "hparams_file", "param_file", "default_hparams_file")),
        *([f"--{flag}={text}"] for flag in ("params_override", "param_overrides", "hparams")
          for text in (in_one, json.dumps(values), path)),
        *([f"--{flag}={one}" for one in assignments(values)] for flag in ("param_overrides", "hparams")),
        [f"--{one}" for one in assignments(values)],
        [word for one in assignments(values) for word in (f"--{one.partition('=')[0]}", one.partition("=")[2])],
    ]  # fmt: skip
    for way in ways:
        config = parse(way)[0].flat()
        assert config == expected(values), way[0][:80]
        assert {name: type(value) for name, value in config.items()} == {
            name: type(value) for name, value in expected(values).items()
        }


def test_every_file_of_the_original_is_a_recipe() -> None:
    assert set(recipes.FILES) - set(MODERN) == {*SLICES, *RANDAUGMENT, *RESNET_RS}
    assert {*CLOUD, *MODERN} <= set(recipes.RECIPES)


@pytest.mark.parametrize("name", [name for name in recipes.FILES if name not in MODERN])
def test_recipes_have_the_values_of_the_files_but_count_the_images(name: str) -> None:
    counts = dict.fromkeys(IMAGENET)
    assert find_recipe(name).flat() == expected(FILES[name]) | counts


@pytest.mark.parametrize("name", recipes.FILES)
def test_a_file_that_is_not_here_is_the_recipe_of_its_name(name: str) -> None:
    assert parse([f"--config_file=configs/{name}.yaml"])[0] == find_recipe(name)


@pytest.mark.parametrize("name", [*SLICES, *RANDAUGMENT, *RESNET_RS])
def test_a_file_that_is_not_here_overrides_as_much_as_the_file_itself(name: str, tmp_path: Path) -> None:
    others = {
        "resnet_depth": 18, "train_batch_size": 256, "eval_batch_size": 100, "train_steps": 7, "image_size": 96,
        "iterations_per_loop": 3, "base_learning_rate": 0.3, "momentum": 0.5, "weight_decay": 0.1, "num_cores": 3,
        "precision": "float32", "label_smoothing": 0.2, "enable_lars": True, "use_tpu": False, "skip_host_call": True,
        "drop_connect_rate": 0.3, "bn_momentum": 0.8, "se_ratio": 0.5, "data_dir": "photos",
    }  # fmt: skip
    base, file = tmp_path / "base.yaml", tmp_path / f"{name}.yaml"
    base.write_text(yaml.safe_dump(others))
    file.write_text(yaml.safe_dump(FILES[name]))
    given, missing = (
        parse([f"--default_hparams_file={base}", f"--config_file={path}"])[0].flat()
        for path in (file, f"configs/{name}.yaml")
    )
    assert missing == given | dict.fromkeys(IMAGENET)  # recipes count the images


@pytest.mark.parametrize("name", MODERN)
def test_recipes_for_later_slices_are_readable_as_files_of_the_original(name: str, tmp_path: Path) -> None:
    values = {key: value for key, value in find_recipe(name).flat().items() if value != OPTIONS[key].default}
    (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(values))
    assert parse([f"--config_file={tmp_path / name}.yaml"])[0] == find_recipe(name)


@pytest.mark.parametrize(
    ("names", "epochs"),
    [(SLICES, 91), (MODERN, 91), (RANDAUGMENT, 180), (RESNET_RS, 350)],
    ids=["slices", "later slices", "randaugment", "rs"],
)
def test_lengths(names: dict[str, Any], epochs: int) -> None:
    for name in names:
        train = find_recipe(name).train
        assert isinstance(train.train_steps, int)
        assert abs(train.train_steps * train.train_batch_size / 1281167 - epochs) < 0.1
