"""Recipes for ImageNet with the ResNet-RS networks. Source: arXiv:2103.07579."""

from typing import Any, NamedTuple

from resnet_tpu.recipes.family import Family


class Row(NamedTuple):
    """The options that differ between the ResNet-RS networks."""

    resnet_depth: int
    image_size: int
    randaug_magnitude: int
    dropout_rate: float = 0.25
    drop_connect_rate: float | None = None


RESNET_RS = {
    "resnetrs50_i160": Row(50, 160, 10),
    "resnetrs101_i160": Row(101, 160, 10),
    "resnetrs101_i192": Row(101, 192, 15),
    "resnetrs152_i192": Row(152, 192, 15),
    "resnetrs152_i224": Row(152, 224, 15),
    "resnetrs152_i256": Row(152, 256, 15),
    "resnetrs200_i256": Row(200, 256, 15, drop_connect_rate=0.1),
    "resnetrs270_i256": Row(270, 256, 15, drop_connect_rate=0.1),
    "resnetrs350_i256": Row(350, 256, 15, drop_connect_rate=0.1),
    "resnetrs350_i320": Row(350, 320, 15, dropout_rate=0.4, drop_connect_rate=0.1),
    "resnetrs420_i320": Row(420, 320, 15, dropout_rate=0.4, drop_connect_rate=0.1),
}
"""The original's configuration files by name; the name gives depth and image size."""


def resnet_rs(row: Row) -> dict[str, Any]:
    """The options for one of the networks."""
    return {
        **row._asdict(),
        "train_batch_size": 4096,
        "eval_batch_size": 200,
        "train_steps": 109475,
        "augment_name": "randaugment",
        "randaug_num_layers": 2,
        "label_smoothing": 0.1,
        "weight_decay": 4e-5,
        "moving_average_decay": 0.9999,
        "bn_momentum": 0,
        "use_resnetd_stem": True,
        "resnetd_shortcut": True,
        "replace_stem_max_pool": True,
        "se_ratio": 0.25,
    }


RESNET_RS_NETWORKS = Family(
    summary=(
        "ResNet-RS on ImageNet: 350 epochs at batch 4096 with RandAugment, label smoothing, dropout and a moving "
        "average of the weights; a network with squeeze-and-excite and ResNet-D's stem and shortcuts."
    ),
    details="Published: 78.8 % top-1 for the smallest, 84.4 % for the largest.",
    members={name: resnet_rs(row) for name, row in RESNET_RS.items()},
    sets=("resnet_depth", "image_size", "base_learning_rate", "momentum", "precision"),
)
