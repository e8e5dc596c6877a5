"""Creates the network that the options describe."""

import dataclasses
from typing import Any

from resnet_tpu.errors import UserError
from resnet_tpu.models.architecture import ARCHITECTURES, CIFAR_DEPTHS, Architecture
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import Config, ModelConfig
from resnet_tpu.options.fields import numbers_in

SMALL_IMAGE_PX = 64
"""Images smaller than this would be one or two pixels wide after the ImageNet stem and four groups."""

# options that some networks do not have; the original silently ignores them there
_ONLY_BOTTLENECK = ("se_ratio", "dropblock_groups", "drop_connect_rate")
_ONLY_POST_ACTIVATION = ("se_ratio", "drop_connect_rate")
_ONLY_IMAGENET_STEM = ("use_resnetd_stem", "replace_stem_max_pool")


def network_of(config: Config, *, batch_norm_groups: int = 1) -> Network:
    """The network of a run whose counts are resolved; the images of each group share batch-norm statistics.

    A network without a classifier has 0 classes. Raises UserError if there is no such network.
    """
    return create_network(
        config.model,
        num_classes=config.data.num_label_classes or 0,
        image_size=config.data.image_size,
        batch_norm_groups=batch_norm_groups,
    )


def create_network(model: ModelConfig, *, num_classes: int, image_size: int, batch_norm_groups: int = 1) -> Network:
    """The network described by the options, without its weights; with 0 classes, it has no classifier.

    Raises UserError if there is no such network.
    """
    architecture = resolve_architecture(model, image_size=image_size, batch_norm_groups=batch_norm_groups)
    return Network(model, architecture, num_classes, image_size)


def resolve_architecture(model: ModelConfig, *, image_size: int, batch_norm_groups: int = 1) -> Architecture:
    """The architecture described by the options.

    Raises UserError for an unknown depth, and for options that do not apply to this network.
    """
    if model.resnet_depth not in ARCHITECTURES:
        depths = ", ".join(map(str, sorted(ARCHITECTURES)))
        raise UserError("resnet_depth", model.resnet_depth, f"one of {depths}", "Change the value.")
    network = ARCHITECTURES[model.resnet_depth]
    if model.stem == "small" or (model.stem == "auto" and image_size < SMALL_IMAGE_PX):
        network = dataclasses.replace(network, small_stem=True)
    _check_places(model, network)
    _check_values(model)
    names = {field.name for field in dataclasses.fields(Architecture)}
    changes: dict[str, Any] = {name: value for name, value in vars(model).items() if name in names}
    changes |= {
        "width": model.resnet_width,
        "batch_norm_groups": batch_norm_groups,
        "dropblock_groups": _parse_groups(model.dropblock_groups),
        "inner_channels": _parse_channels(model.inner_channels, network),
    }
    return dataclasses.replace(network, **{name: value for name, value in changes.items() if value is not None})


def _check_places(model: ModelConfig, network: Architecture) -> None:
    """Raises UserError for options that do not apply to this network."""
    depth = model.resnet_depth
    without = []
    if not network.bottleneck:
        without.append((_ONLY_BOTTLENECK, f"at resnet_depth {depth}", "Choose a depth from 50"))
    if model.pre_activation:
        without.append((_ONLY_POST_ACTIVATION, "with pre_activation", "Leave pre_activation out"))
    if network.small_stem:
        do = "Choose another depth" if depth in CIFAR_DEPTHS else "Give --stem=imagenet"
        without.append((_ONLY_IMAGENET_STEM, "with the small stem", do))
    for names, where, do in without:
        for name in names:
            if value := getattr(model, name):
                raise UserError(name, value, f"no {name} {where}", f"{do}, or leave {name} out.")
    if network.bottleneck and not model.project_first_group:
        what, do = "project_first_group", "Leave it out: the first group changes the number of channels."
        raise UserError(what, False, f"True at resnet_depth {depth}", do)
    if model.norm_act_layer != "bn_relu" and not model.pre_activation:
        expected = "bn_relu without pre_activation"
        raise UserError("norm_act_layer", model.norm_act_layer, expected, "Add --pre_activation=True.")


def _check_values(model: ModelConfig) -> None:
    """Raises UserError for fractions out of range, and for DropBlock without a fraction."""
    for name in ("drop_connect_rate", "dropout_rate"):
        if (getattr(model, name) or 0) >= 1:
            raise UserError(name, getattr(model, name), "less than 1", "Change the value.")
    keep_prob = model.dropblock_keep_prob
    if model.dropblock_groups and keep_prob is None:
        expected = "a fraction such as 0.9 with dropblock_groups"
        raise UserError("dropblock_keep_prob", "nothing", expected, "Add --dropblock_keep_prob=0.9.")
    if keep_prob is not None and not 0 < keep_prob <= 1:
        raise UserError("dropblock_keep_prob", keep_prob, "more than 0 and at most 1", "Change the value.")


def _parse_groups(text: str) -> tuple[int, ...]:
    """'3,4' -> (3, 4)."""
    groups = numbers_in(text, int)
    if groups is None or not {*groups} <= {1, 2, 3, 4}:
        raise UserError("dropblock_groups", repr(text), "numbers from 1 to 4, such as 3,4", "Change the value.")
    return tuple(sorted(groups))


def _parse_channels(text: str, network: Architecture) -> tuple[int, ...]:
    """'14,16,12' -> (14, 16, 12), a number for each inner convolution; () for empty text."""
    count = sum(network.blocks_per_group) * network.num_inner
    channels = numbers_in(text, int)
    if channels is None or (channels and (len(channels) != count or min(channels) < 1)):
        expected = f"{count} positive numbers separated by commas, one for each inner convolution of the blocks"
        raise UserError(
            "inner_channels", repr(text), expected, "Leave it to `resnet-tpu compact`, or change the value."
        )
    return tuple(channels)
