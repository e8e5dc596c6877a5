"""Options that do not apply to a network are refused; the others reach it."""

from typing import Any

import pytest

from resnet_tpu.errors import UserError
from resnet_tpu.models.architecture import Architecture
from resnet_tpu.models.from_options import resolve_architecture
from resnet_tpu.options.config import Config


def find(image_size: int = 224, **options: Any) -> Architecture:
    return resolve_architecture(Config().replace(**options).model, image_size=image_size)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm_act_layer": "evonorm_s0"}, "norm_act_layer: got evonorm_s0, expected bn_relu without pre_activation"),
        ({"norm_act_layer": "evonorm_b0"}, "Add --pre_activation=True"),
        ({"dropblock_groups": "3,4"}, "dropblock_keep_prob: got nothing, expected a fraction such as 0.9"),
        ({"inner_channels": "8,8"}, "inner_channels: got '8,8', expected 32 positive numbers"),
        ({"inner_channels": "0" + 15 * ",8", "resnet_depth": 34}, "expected 16 positive numbers"),
        ({"inner_channels": "all", "resnet_depth": 18}, "inner_channels: got 'all', expected 8 positive numbers"),
        ({"dropblock_groups": "4", "dropblock_keep_prob": 0}, "dropblock_keep_prob: got 0.0, expected more than 0"),
        ({"dropblock_groups": "4", "dropblock_keep_prob": 1.5}, "expected more than 0 and at most 1"),
        ({"dropblock_groups": "3,5", "dropblock_keep_prob": 0.9}, "dropblock_groups: got '3,5', expected numbers"),
        ({"dropblock_groups": "3,,4", "dropblock_keep_prob": 0.9}, "dropblock_groups: got '3,,4'"),
        ({"dropblock_groups": "all", "dropblock_keep_prob": 0.9}, "dropblock_groups: got 'all'"),
        ({"dropblock_groups": "34", "dropblock_keep_prob": 0.9}, "dropblock_groups: got '34'"),
        ({"se_ratio": 0.25, "pre_activation": True}, "se_ratio: got 0.25, expected no se_ratio with pre_activation"),
        ({"drop_connect_rate": 0.1, "pre_activation": True}, "drop_connect_rate: got 0.1, expected no drop_connect_"),
        *(
            (
                {"resnet_depth": depth, "se_ratio": 0.25},
                f"se_ratio: got 0.25, expected no se_ratio at resnet_depth {depth}",
            )
            for depth in (34, 20, 56, 110)
        ),
        ({"resnet_depth": 18, "drop_connect_rate": 0.1}, "drop_connect_rate: got 0.1, expected no drop_connect_rate"),
        (
            {"resnet_depth": 18, "dropblock_groups": "4", "dropblock_keep_prob": 0.9},
            "dropblock_groups: got 4, expected no dropblock_groups at resnet_depth 18. Choose a depth from 50",
        ),
        ({"resnet_depth": 20, "use_resnetd_stem": True}, "expected no use_resnetd_stem with the small stem"),
        ({"stem": "small", "replace_stem_max_pool": True}, "expected no replace_stem_max_pool with the small stem"),
        ({"resnet_depth": 50, "project_first_group": False}, "project_first_group: got False, expected True"),
        ({"dropout_rate": 1}, "dropout_rate: got 1.0, expected less than 1"),
        ({"drop_connect_rate": 1}, "drop_connect_rate: got 1.0, expected less than 1"),
        ({"se_ratio": 1.5}, "se_ratio: got 1.5, expected at most 1"),
        ({"bn_momentum": 1.5}, "bn_momentum: got 1.5, expected at most 1"),
        (
            {"resnet_depth": 51},
            "resnet_depth: got 51, expected one of 8, 18, 20, 32, 34, 44, 50, 56, 101, 110, 152, 200, 270",
        ),
    ],
)
def test_what_a_network_has_no_place_for_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        find(**options)


def test_options_reach_the_network() -> None:
    found = find(
        resnet_depth=101, resnet_width=16, bn_momentum=0, use_resnetd_stem=True, resnetd_shortcut=True,
        replace_stem_max_pool=True, se_ratio=0.25, dropblock_groups="4,3", dropblock_keep_prob=0.9, dropblock_size=5,
        drop_connect_rate=0.1, dropout_rate=0.25, freeze_batch_norm=True, pool_padding="symmetric",
    )  # fmt: skip
    assert found == Architecture(
        (3, 4, 23, 3), bottleneck=True, width=16, bn_momentum=0.0, use_resnetd_stem=True, resnetd_shortcut=True,
        replace_stem_max_pool=True, se_ratio=0.25, dropblock_groups=(3, 4), dropblock_keep_prob=0.9, dropblock_size=5,
        drop_connect_rate=0.1, dropout_rate=0.25, freeze_batch_norm=True, pool_padding="symmetric",
    )  # fmt: skip
    found = find(resnet_depth=18, pre_activation=True, norm_act_layer="evonorm_b0", project_first_group=False)
    assert found == Architecture(
        (2, 2, 2, 2), bottleneck=False, width=64, pre_activation=True, norm_act_layer="evonorm_b0",
        project_first_group=False,
    )  # fmt: skip


def test_the_default_network_is_the_plain_one() -> None:
    assert find() == Architecture((3, 4, 6, 3), bottleneck=True, width=64)


def test_inner_channels_are_those_of_the_blocks_in_order() -> None:
    text = ",".join(map(str, range(1, 33)))
    narrow, plain = find(inner_channels=text), find()
    assert [narrow.inner(*place) for place in ((1, 1), (1, 3), (2, 1), (4, 3))] == [(1, 2), (5, 6), (7, 8), (31, 32)]
    assert [plain.inner(*place) for place in ((1, 1), (4, 3))] == [(64, 64), (512, 512)]
    assert find(32, resnet_depth=20, inner_channels="1,2,3,4,5,6,7,8,9").inner(3, 2) == (8,)
