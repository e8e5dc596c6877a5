import io
import json

from rich.console import Console

from resnet_tpu.performance.plan.advice import advise
from resnet_tpu.performance.plan.plan import Step
from resnet_tpu.performance.plan.table import BOUND, LABEL, render, to_json

from .conftest import MEMORY, make_plan


def show(*plans, top: int = 10) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render(plans, top=top))
    return console.export_text()


def test_the_table_says_what_to_rent_and_that_it_is_an_estimate() -> None:
    text = show(make_plan("v2:2x2"), make_plan("v5e:2x4"))
    assert text.count(LABEL) >= 3
    assert "libtpu 0.0.42.1" in text
    rows = {line.split("  ")[1].strip(): line for line in text.splitlines() if line.startswith("  ")}
    assert rows["chips"].split()[1:] == ["4", "8"]
    assert rows["devices used"].split()[2:] == ["8", "8"]
    assert rows["fits"].split() == ["fits", "yes", "yes"]
    assert "group1/block1/conv1" in text
    assert "no estimate" in text
    assert "evaluations are counted" in text


def test_memory_is_shown_by_device_and_where_a_chip_has_two_by_chip() -> None:
    text = show(make_plan("v2:2x2", eval=None), top=0)
    total = MEMORY.total / 2**20
    assert f"{total:,.1f}" in text
    assert f"{2 * total:,.1f}" in text
    assert f"{2 * 7.48 * 1024:,.1f}" in text
    assert "on a chip" not in show(make_plan("v5e:2x2", eval=None), top=0)


def test_what_does_not_fit_says_so_and_what_to_do() -> None:
    text = show(make_plan("v2:2x2", fits=False))
    assert " NO" in text
    assert "22.44 of 7.48 GiB" in text
    assert "Try train_batch_size=320 or gradient_accumulation_steps=4 or a larger slice." in text


def test_advice_is_given_where_there_is_something_to_say() -> None:
    assert advise(make_plan()) == []
    assert "With 16 images per device" in advise(make_plan(batch_per_device=16))[0]
    assert "4 of 8 devices idle" in advise(make_plan(devices=4))[0]
    too_large = Step(512, 128, False, None, None, None, (), None)
    assert advise(make_plan(eval=too_large)) == ["Lower eval_batch_size."]


def test_json_holds_the_plan_with_the_operations_asked_for() -> None:
    first, second = json.loads(to_json([make_plan("v2:2x2"), make_plan("v5e:2x2", fits=False)], top=1))
    assert first["label"] == LABEL
    assert (first["topology"], first["compiler"]) == ("v2:2x2", "libtpu 0.0.42.1")
    assert first["train"]["memory"]["activations"] == MEMORY.activations
    assert len(first["train"]["operations"]) == 1
    assert first["hours"] > 0
    assert second["fits"] is False
    assert second["train"]["memory"] is None
    assert second["advice"]


def test_of_gpus_the_bytes_are_shown_and_that_the_time_is_a_bound() -> None:
    plan = make_plan("h200:8")
    text = show(plan)
    assert text.count(BOUND) == 3
    assert "bytes moved, training" in text
    assert json.loads(to_json([plan], top=1))[0]["label"] == BOUND
