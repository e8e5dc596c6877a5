"""Advice derived from the figures, by a pure function."""

import dataclasses
from typing import Any

import pytest

from resnet_tpu.options.config import DataConfig
from resnet_tpu.performance.profiling.advice import Advice, InputFigures, Photos, Stage, advise

LARGE = Photos(num_images=10_000, short_side=1000, excess=0.93, needed_side=256, decoded_bytes=2e9)
BUSY = InputFigures(
    speed=1000, decoder_speed=1100, needed_speed=4000, cores=8, workers=8, busy_share=0.98, others_share=0,
    storage_share=0, step_shares_cores=False, free_bytes=1e9,
    stages=(Stage("read", 50), Stage("decode", 700), Stage("resize", 200), Stage("hand-over to device", 50)),
    photos=dataclasses.replace(LARGE, excess=0), data=DataConfig(),
)  # fmt: skip


def options(**changes: Any) -> list[str]:
    """The options advised when the figures differ in this way from those of a pipeline that is as fast as it can be."""
    return [one.option for one in advise(dataclasses.replace(BUSY, **changes)) if one.option]


def test_nothing_is_advised_where_all_cores_do_what_has_to_be_done() -> None:
    verdict, rest = advise(BUSY)
    assert verdict == Advice(
        "The input is the limit: it gives 1,000 of the 4,000 images/s that the step takes, so that the device waits "
        "75% of the time."
    )
    assert rest.text.startswith("All 8 cores are busy")
    assert options() == []


@pytest.mark.parametrize("speed", [4000.0, 12_000.0])
def test_the_device_is_the_limit_when_the_input_gives_enough(speed: float) -> None:
    (only,) = advise(dataclasses.replace(BUSY, speed=speed, workers=1, photos=LARGE))
    assert only == Advice(f"The device is the limit: the input gives {speed / 4000:.1f} times what the step takes.")


def test_advice_mentions_step_on_the_same_cores() -> None:
    (only,) = advise(dataclasses.replace(BUSY, speed=8000, step_shares_cores=True))
    assert "on the same cores" in only.text


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"workers": 2, "busy_share": 0.25}, "--num_parallel_calls=8"),
        ({"busy_share": 0.5}, "--input_workers=processes"),
        ({"busy_share": 0.5, "storage_share": 0.6, "data": DataConfig(data_dir="gs://bucket/data")}, "--cache=records"),
        ({"free_bytes": 16e9}, "--cache=decoded"),
        ({"photos": LARGE}, "resnet-tpu prepare RAW OUT --short_side=256"),
    ],
)
def test_what_holds_the_input_back_decides_the_option(changes: dict[str, Any], option: str) -> None:
    assert options(**changes) == [option]


def test_processes_are_no_cure_where_processes_work_or_other_programs_take_the_cores() -> None:
    assert options(busy_share=0.5, data=DataConfig(input_workers="processes")) == []
    assert options(busy_share=0.5, others_share=0.5) == []
    assert any(
        "Other programs" in one.text for one in advise(dataclasses.replace(BUSY, busy_share=0.5, others_share=0.5))
    )


def test_a_slow_disk_is_named_and_no_lock() -> None:
    changes: dict[str, Any] = {"busy_share": 0.5, "storage_share": 0.6}
    assert options(**changes) == []
    assert any(
        "wait 60% of their time for the disk" in one.text for one in advise(dataclasses.replace(BUSY, **changes))
    )


def test_a_cache_in_use_is_not_advised_again() -> None:
    assert options(free_bytes=16e9, photos=LARGE, data=DataConfig(cache="decoded")) == []


def test_no_cache_or_smaller_photos_where_decoding_is_little() -> None:
    stages = (Stage("read", 700), Stage("crop decision", 200), Stage("decode", 100))
    assert options(free_bytes=16e9, photos=LARGE, stages=stages) == []


def test_augmentation_that_weighs_is_named() -> None:
    stages = (Stage("decode", 500), Stage("augment: randaugment", 500))
    data = DataConfig(augment_name="randaugment")
    assert options(stages=stages, data=data) == ["--randaug_num_layers=1"]
    assert options(stages=stages, data=dataclasses.replace(data, randaug_num_layers=1)) == ["--augment_name=null"]
    assert options(stages=(Stage("decode", 900), Stage("augment: randaugment", 100)), data=data) == []
    assert options(stages=stages, data=DataConfig(augment_name="autoaugment")) == ["--augment_name=null"]
    assert options(stages=stages, data=DataConfig(random_erasing=0.5)) == ["--random_erasing=0"]


def test_basic_pipeline_gets_no_other_advice() -> None:
    data = DataConfig(input_pipeline="basic")
    assert options(workers=1, busy_share=0.1, photos=LARGE, data=data) == ["--input_pipeline=optimized"]


def test_without_a_needed_speed_the_advice_is_the_same() -> None:
    assert options(needed_speed=None, workers=2, busy_share=0.25) == ["--num_parallel_calls=8"]


def test_made_up_images_need_no_photos() -> None:
    assert options(photos=None, decoder_speed=None, free_bytes=16e9) == []
