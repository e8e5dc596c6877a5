"""What `prune` does level by level, given only a few options."""

import re

import pytest

from resnet_tpu.errors import UserError
from resnet_tpu.pruning.levels import Level, plan_levels


def test_a_density_is_reached_at_once_whatever_the_method_counts() -> None:
    methods = {"prune_all_to_global": "80", "prune_to_global": "20", "prune_global": "20"}
    for method, number in methods.items():
        (level,) = plan_levels(method, density="80", levels=None, rate=None)
        assert level == Level("density_80", f"{method}_{number}", None)


def test_densities_in_any_order_are_pruned_once_each_from_the_densest_on() -> None:
    found = plan_levels("prune_all_to_global", density="64,80,20,80", levels=None, rate=None)
    assert found == [Level(f"density_{number}", f"prune_all_to_global_{number}", None) for number in (80, 64, 20)]


def test_a_density_that_may_be_meant_as_a_share_is_pointed_out(caplog: pytest.LogCaptureFixture) -> None:
    plan_levels("prune_all_to_global", density="20,0.2", levels=None, rate=None)
    assert caplog.messages == ["density 0.2 leaves 0.2 % of the weights; for a share of 0.2 give 20."]


def test_levels_follow_each_other() -> None:
    first, second = plan_levels("prune_all_to_global", density="", levels=2, rate=0.2)
    assert first == Level("level_01", "prune_all_to_global_80", None)
    assert second == Level("level_02", "prune_all_to_global_64", first)


def test_levels_of_a_table_do_not_follow_each_other() -> None:
    found = plan_levels("prune_resnet56_A", density="", levels=2, rate=None)
    assert found == [Level(f"level_0{number}", f"prune_resnet56_A_{number}", None) for number in (1, 2)]
    with pytest.raises(UserError, match=r"^levels: got 10, expected at most 9 with prune_resnet56_A"):
        plan_levels("prune_resnet56_A", density="", levels=10, rate=None)


@pytest.mark.parametrize(
    ("method", "density", "rate", "message"),
    [
        ("prune_all_to_global", "many", None, "density: got many, expected percent of the weights, above 0"),
        ("prune_all_to_global_80", "50", None, "method: got prune_all_to_global_80, expected one that takes"),
        ("prune_resnet56_A", "50", None, "method: got prune_resnet56_A, expected one that takes a density."),
        ("prune_all_to_global", "50", 0.3, "density and rate: got 50 and 0.3, expected one of them."),
        ("prune_all_to_global_80", "", 0.3, "method: got prune_all_to_global_80, expected one that takes a density."),
        ("prune_resnet56_A", "", 0.3, "rate: got 0.3, expected none with prune_resnet56_A"),
        (
            "prune_all_to_global",
            "20.97152,20.971521",
            None,
            "density: got 20.97152,20.971521, expected percentages",
        ),
        ("prune_all_to_global", "1e-8", None, "Weights to keep: got 1e-08 %, expected at least 0.000001 %"),
    ],
)
def test_a_density_or_rate_that_does_not_fit_is_refused(
    method: str, density: str, rate: float | None, message: str
) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        plan_levels(method, density=density, levels=None, rate=rate)
