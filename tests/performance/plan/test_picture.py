from pathlib import Path

from resnet_tpu.performance.plan.picture import draw_plans
from resnet_tpu.reports.style import write_png

from .conftest import make_plan


def test_plans_are_drawn_side_by_side(tmp_path: Path) -> None:
    plans = [make_plan("v2:2x2"), make_plan("v5e:2x4"), make_plan("v3:2x2", fits=False)]
    figure = draw_plans(plans)
    assert [axes.get_title("left") for axes in figure.axes] == [
        "images/s", "memory per device, GiB", "matrix units used", "hours", "cost of the run",
    ]  # fmt: skip
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["v2:2x2", "v5e:2x4", "v3:2x2"]
    write_png(figure, str(tmp_path / "plan.png"))
    assert (tmp_path / "plan.png").stat().st_size > 10_000


def test_a_slice_without_a_price_is_told_from_one_that_is_too_small() -> None:
    cost = draw_plans([make_plan(price_per_chip_hour=1), make_plan(price_per_chip_hour=None)]).axes[-1]
    assert [text.get_text() for text in cost.texts][1:] == ["no price"]


def test_an_evaluation_alone_is_drawn_without_hours() -> None:
    figure = draw_plans([make_plan(train=None, price_per_chip_hour=None)])
    assert len(figure.axes) == 3
