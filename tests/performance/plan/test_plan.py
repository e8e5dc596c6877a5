import contextlib
import dataclasses
import importlib.metadata
import importlib.util
from pathlib import Path
from unittest.mock import Mock

import pytest

from resnet_tpu import cli
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config
from resnet_tpu.performance.plan.advice import advise
from resnet_tpu.performance.plan.compiler import OutOfMemory
from resnet_tpu.performance.plan.host import Host
from resnet_tpu.performance.plan.plan import Step, _Planner, resolve_counts
from resnet_tpu.performance.plan.prices import price_of, read_prices
from resnet_tpu.performance.plan.topology import find_topology
from resnet_tpu.recipes import find_recipe

from .conftest import make_plan


def test_hours_are_those_of_all_steps_and_evaluations_and_cost_goes_by_chips() -> None:
    plan = make_plan("v2:2x2")
    assert plan.train and plan.train.time and plan.eval and plan.eval.time and plan.cost
    seconds = 1000 * plan.train.time.total + 10 * 10 * plan.eval.time.total
    assert plan.hours == pytest.approx(seconds / 3600)
    assert plan.cost == pytest.approx(seconds / 3600 * 4 * 2.0)  # 4 chips with 8 devices
    assert plan.train.images_per_second == pytest.approx(plan.train.batch_size / plan.train.time.total)


def test_without_a_price_no_cost_and_without_an_evaluation_its_time_is_left_out() -> None:
    plan = make_plan(eval=None, price_per_chip_hour=None)
    assert plan.train and plan.train.time
    assert plan.cost is None
    assert plan.hours == pytest.approx(1000 * plan.train.time.total / 3600)


def test_devices_wait_where_hosts_give_fewer_images_than_they_take() -> None:
    plan = make_plan("v5e:4x4")  # has 4 hosts
    assert plan.train and plan.train.time and plan.train.images_per_second and plan.hours
    wanted = plan.train.images_per_second / 4
    for name, host, wait in (("all", 2 * wanted, 0.0), ("enough", wanted, 0.0), ("half", wanted / 2, 0.5)):
        slow = dataclasses.replace(plan, host=Host(host))
        assert slow.input_wait == pytest.approx(wait), name
        assert slow.hours == pytest.approx(plan.hours / (1 - wait)), name
        assert any("decoding is the limit" in text for text in advise(slow)) == (wait > 0), name
    assert plan.input_wait is None
    assert make_plan(fits=False, host=Host(1.0)).input_wait is None


def test_the_largest_batch_is_no_smaller_than_one_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    config, topology = find_recipe("v5e-8"), find_topology("v5e:2x4")
    planner = _Planner(config, topology, topology, contextlib.nullcontext)
    monkeypatch.setattr(planner, "_compile", Mock(side_effect=OutOfMemory(None)))
    batch_size = config.train.train_batch_size
    nearly_all = int(0.98 * topology.device_memory)  # more than is taken where the program is not counted yet
    known = Step(batch_size, batch_size // topology.devices, fits=True, needed=nearly_all)
    assert planner.largest_batch(known) == batch_size


@pytest.mark.parametrize(
    ("decoded", "read", "advice"),
    [
        (0.75, 2.0, "decoding is the limit. `resnet-tpu prepare --recompress --quality=90` makes"),
        (1.1, 0.6, "reading is the limit. `resnet-tpu prepare --recompress --quality=90` makes"),
        (0.6, 2.0, "`resnet-tpu prepare --short_side=256` makes"),
        (0.52, 0.5, "reading is the limit. `resnet-tpu prepare --short_side=256 --quality=90` makes"),
        (1.1, 0.1, "reading is the limit. Keep the data on a disk"),
        (0.3, 2.0, "decoding is the limit. Make the input faster"),
    ],
)
def test_where_devices_wait_the_least_that_ends_it_is_advised(decoded: float, read: float, advice: str) -> None:
    plan = make_plan("v5e:4x4")
    assert plan.train and plan.train.images_per_second
    wanted = plan.train.images_per_second / 4
    host = Host(decoded * wanted, mb_per_sec=read * wanted * 0.1, image_kb=100)
    assert any(advice in text for text in advise(dataclasses.replace(plan, host=host)))


@pytest.mark.parametrize(
    ("alone", "missing"),
    [
        (["--host_mb_per_sec=100"], "host_images_per_sec"),
        (["--image_kb=100"], "host_images_per_sec"),
        (["--host_images_per_sec=9", "--image_kb=100"], "host_mb_per_sec"),
    ],
)
def test_what_a_host_reads_requires_what_it_decodes(
    alone: list[str], missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", "--recipe=v5e-8", *alone]) == 2
    assert f"{missing} as well" in capsys.readouterr().err


def test_what_does_not_fit_has_no_time() -> None:
    plan = make_plan(fits=False)
    assert not plan.fits
    assert plan.hours is None
    assert plan.cost is None
    assert plan.train and plan.train.images_per_second is None


def test_counts_left_to_the_data_are_imagenets_without_data() -> None:
    config = resolve_counts(Config())
    assert config.data.num_train_images == 1281167
    assert config.data.num_eval_images == 50000
    assert config.data.num_label_classes == 1000
    own = resolve_counts(
        find_recipe("cifar").replace(num_train_images=40000, num_label_classes=10, num_eval_images=500)
    )
    assert (own.data.num_train_images, own.data.num_label_classes, own.data.num_eval_images) == (40000, 10, 500)


def test_prices_are_one_number_or_numbers_by_generation() -> None:
    assert price_of(read_prices("1.25"), "v4") == 1.25
    prices = read_prices("v5litepod=1.2, v3=2, 0.5")
    assert [price_of(prices, name) for name in ("v5e", "v3", "v2")] == [1.2, 2.0, 0.5]
    assert price_of(read_prices(""), "v4") is None


@pytest.mark.parametrize("text", ["cheap", "-1", "nan", "inf", "v9=1", "v5e=", "1,20", "v5e=1.2,v5litepod=3"])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="price_per_chip_hour"):
        read_prices(text)


def test_mistakes_are_named_before_anything_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("resnet_tpu.performance.plan.compiler.compiler_of", lambda topology: "one")
    mistakes = {
        ("--topology=v5e:2x3",): "expected one of v5e:1x1",
        ("--topology=v9:2x2",): "a slice of v2, v3",
        (): "Give --topology=v5e:2x4",
        ("--recipe=resnetrs50_i160",): "recipe resnetrs50_i160 is not for a particular slice",
        ("--topology=h200:3",): "Did you mean h200:",
        ("--topology=h100:8", "--train_batch_size=1001"): "a multiple of the 8 devices",
        ("--topology=v5e:2x2", "--price_per_chip_hour=much"): "Write 1.20 or",
        ("--topolgy=v5e:2x2",): "Did you mean --topology",
        ("--topology=v5e:2x4", "--train_batch_size=1001"): "a multiple of the 8 devices. Use 1000 or 1008.",
        ("--topology=v5e:2x4,v3:4x4", "--train_batch_size=1000"): "a multiple of the 32 devices. Use 992 or 1024.",
        ("--topology=v5e:2x4", "--label_smoothing=2"): "less than 1",
        (
            "--topology=v5e:2x4,v5e:4x4",
            "--num_cores=6",
            "--train_batch_size=12",
        ): "a multiple of the 4 processes",
        ("--topology=v5e:2x2,v5e:1x1", "--batch_norm_group_size=4"): "a divisor of the 1 devices. Use 1.",
        ("--topology=v5e:2x4", "--mode=predict"): "train, eval or train_and_eval",
        ("--topology=v5e:2x4", f"--picture={tmp_path}"): "got a folder, expected a file",
    }
    for arguments, message in mistakes.items():
        assert cli.main(["plan", *arguments]) == 2
        shown = capsys.readouterr()
        assert message in shown.err
        assert shown.out == ""


def test_the_network_is_that_of_the_initial_weights(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = {"w.safetensors": {"resnet_depth": 101, "se_ratio": 0.5}}
    monkeypatch.setattr("resnet_tpu.checkpoints.weights.options_of_weights", theirs.__getitem__)
    planned = Mock(return_value=make_plan())
    monkeypatch.setattr("resnet_tpu.performance.plan.plan.plan", planned)
    monkeypatch.setattr("resnet_tpu.performance.plan.compiler.compiler_of", lambda topology: "one")
    assert cli.main(["plan", "--topology=h200:8", "--init_from=w.safetensors", "--se_ratio=0.25"]) == 0
    assert "resnet_depth = 101" in capsys.readouterr().err
    model = planned.call_args.args[0].model
    monkeypatch.undo()
    monkeypatch.setattr("resnet_tpu.performance.plan.plan.plan", planned)
    monkeypatch.setattr("resnet_tpu.performance.plan.compiler.compiler_of", lambda topology: "one")
    assert cli.main(["plan", "--topology=h200:8", "--init_from=/there/w.safetensors"]) == 0
    assert "The network is that of the options, not that of the weights. Weights" in capsys.readouterr().err
    assert planned.call_args.args[0].model.resnet_depth == 50
    assert (model.resnet_depth, model.se_ratio) == (101, 0.25)


def test_a_missing_compiler_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["plan", "--topology=v5e:2x4"]) == 2
    assert "pip install 'resnet-tpu[plan]'" in capsys.readouterr().err


def test_a_missing_compiler_for_gpus_names_the_wheels(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("resnet_tpu.performance.plan.compiler.CUDA_PLUGINS", ("no-such-plugin",))
    assert cli.main(["plan", "--topology=h200:8"]) == 2
    version = importlib.metadata.version("jaxlib")
    wheels = f"jax-cuda13-plugin=={version} jax-cuda13-pjrt=={version}"
    assert f"pip install --no-deps {wheels}" in capsys.readouterr().err


def test_a_batch_that_is_split_already_is_advised_to_be_split_further() -> None:
    plan = make_plan("v5e:2x2")
    too_large = Step(4096, 1024, fits=False, needed=round(1.5 * plan.topology.device_memory))
    for parts, choices in (
        (1, "train_batch_size=2720 or gradient_accumulation_steps=2"),
        (2, "train_batch_size=2720 or gradient_accumulation_steps=4"),
        (3, "train_batch_size=2688"),  # in three parts; 1024 images are not divisible by six
    ):
        (text,) = advise(dataclasses.replace(plan, devices=4, train=dataclasses.replace(too_large, parts=parts)))
        assert text == f"Try {choices} or a larger slice."
