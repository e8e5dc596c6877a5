"""Finds the ResNet that the arrays of a PyTorch file belong to, or what else they are, by names and shapes alone."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from resnet_tpu.checkpoints.foreign import fraction
from resnet_tpu.errors import UserError
from resnet_tpu.models.architecture import ARCHITECTURES, CIFAR_DEPTHS

Shapes = Mapping[str, tuple[int, ...]]
"""PyTorch's shape of each array by PyTorch's name."""

WIDTH = 64
"""Channels of the stem in torchvision's and timm's ResNets."""

_CONV = re.compile(r"(layer\d\.\d+\.(conv\d|se\.fc1)|conv1|conv1\.[036])\.weight")
_FIRST_CONV = re.compile(r"layer(\d+)\.\d+\.conv1\.weight")

# Other networks, by a part of an array's name; the specific before the general
_OTHERS = {
    "encoder_q.": "a MoCo training checkpoint with a ResNet in it",
    "body.layer1.": "a detector built on a ResNet",
    "backbone.layer1.": "a network for another task, built on a ResNet",
    "resnet.embedder.": "a ResNet from the transformers library",
    "attnpool.": "a ResNet of CLIP",
    "layer1.0.conv1.conv.": "an SK-ResNet",
    "layer1.0.conv1.paths.": "an SK-ResNet",
    "layer1.0.convs.": "a Res2Net",
    "layer1.0.conv2.conv.": "a ResNeSt",
    "layer1.0.se.conv.": "an ECA-ResNet",
    "relative_position_bias_table": "a Swin transformer",
    "attn.qkv.": "a vision transformer",
    "encoder_layer_0.": "a vision transformer",
    "conv_stem.": "an EfficientNet or MobileNet",
    "conv_dw.": "a ConvNeXt",
    "layer_scale": "a ConvNeXt",
    "features.denseblock1.": "a DenseNet",
    "Conv2d_1a_3x3.": "an Inception network",
    "features.0.0.": "an EfficientNet or MobileNet",
    "features.0.": "a VGG, AlexNet or SqueezeNet",
    "transition1.": "an HRNet",
    "se_module.": "an SE-ResNet from before timm 0.5",
    "stages.0.blocks.0.norm1.": "a pre-activated ResNet (ResNetV2)",
}


def unsupported(path: str, got: str) -> UserError:
    """The error for weights of a network that is not supported here; `got` describes it."""
    expected = "a ResNet of torchvision or timm: ResNet-18 to -200, -C, -D; SE-ResNet or ResNet-RS from -50"
    return UserError(f"Weights {path}", got, expected, "Give a file of one of these.")


def find_options(shapes: Shapes, path: str) -> dict[str, Any]:
    """The options of the network whose arrays have these shapes.

    resnet_depth, stem and those that differ from the defaults; num_label_classes unless there is no classifier. Not all
    arrays are compared with the network's. Raises UserError for anything but a ResNet that is supported here, saying
    what it is if the names tell.
    """
    _check_family(shapes, path)
    depth, bottleneck = _find_depth(shapes, path)
    (width,) = shapes["bn1.weight"]
    _check_widths(shapes, path, depth, width)
    squeeze = shapes.get("layer4.0.se.fc1.weight")  # the one with the most channels gives the ratio best
    pools_shortcut = len(shapes.get("layer2.0.downsample.1.weight", ())) == 4  # rank 1: batch norm's, without pooling
    if not bottleneck and "layer1.0.se.fc1.weight" in shapes:
        raise unsupported(path, f"an SE-ResNet-{depth}")
    found = {
        "resnet_width": width if width != WIDTH else None,
        "use_resnetd_stem": "conv1.0.weight" in shapes,
        "resnetd_shortcut": pools_shortcut,
        "replace_stem_max_pool": "maxpool.0.weight" in shapes,
        "se_ratio": fraction(squeeze[0], squeeze[1]) if squeeze else None,
        "num_label_classes": shapes["fc.weight"][0] if "fc.weight" in shapes else None,
    }
    options: dict[str, Any] = {"resnet_depth": depth, "stem": "imagenet"}
    if not bottleneck and "layer1.0.downsample.0.weight" not in shapes:
        options["project_first_group"] = False
    return options | {name: value for name, value in found.items() if value}


def _check_family(shapes: Shapes, path: str) -> None:
    """Raises UserError for anything but a ResNet with torchvision's or timm's names."""
    for part, words in _OTHERS.items():
        if any(part in name for name in shapes):
            raise unsupported(path, words)
    for name in ("bn1.weight", "layer1.0.conv1.weight", "layer1.0.conv2.weight"):
        if name not in shapes:
            raise unsupported(path, f"arrays such as {', '.join(sorted(shapes)[:3])}, and no {name}")
    if "bn1.running_mean" not in shapes:
        raise unsupported(path, "a ResNet without batch-norm statistics, perhaps with group norm")
    ranks = {name: 4 for name in shapes if _CONV.fullmatch(name)} | {"bn1.weight": 1, "fc.weight": 2}
    for name, rank in ranks.items():
        if name in shapes and (len(shapes[name]) != rank or 0 in shapes[name]):
            raise unsupported(path, f"{name} of shape {list(shapes[name])}")


def _find_depth(shapes: Shapes, path: str) -> tuple[int, bool]:
    """(depth, whether the blocks are bottlenecks)."""
    counts = Counter(match[1] for name in shapes if (match := _FIRST_CONV.fullmatch(name)))
    blocks = tuple(counts[group] for group in sorted(counts))
    bottleneck = "layer1.0.conv3.weight" in shapes
    for depth, network in ARCHITECTURES.items():
        if depth not in CIFAR_DEPTHS and (network.blocks_per_group, network.bottleneck) == (blocks, bottleneck):
            return depth, bottleneck
    kind = "bottleneck" if bottleneck else "basic"
    number = (3 if bottleneck else 2) * sum(blocks) + 2
    raise unsupported(path, f"a ResNet-{number} ({', '.join(map(str, blocks))} {kind} blocks)")


def _check_widths(shapes: Shapes, path: str, depth: int, width: int) -> None:
    """Raises UserError if the stem or the first block is not as wide as in a plain ResNet."""
    first, second = shapes["layer1.0.conv1.weight"][0], shapes["layer1.0.conv2.weight"][1]
    if "conv1.0.weight" in shapes:
        channels = [*(shapes.get(f"conv1.{index}.weight", (0,))[0] for index in (0, 3)), width]
        if channels != [width // 2, width // 2, width] or first != width:
            words = ", ".join(map(str, channels))
            raise unsupported(path, f"a ResNet-{depth} with {words} channels in the stem (-T, -S or another)")
    elif (kernel := shapes.get("conv1.weight", ())[2:]) != (7, 7):
        words = "x".join(map(str, kernel))
        raise unsupported(path, f"a ResNet-{depth} for small images, with a {words} convolution in the stem")
    if first != second:
        raise unsupported(path, f"a ResNeXt-{depth} {first // second}x{second}d, with grouped convolutions")
    if first != width:
        words = f"its 3x3 convolutions have {first} channels instead of {width}"
        raise unsupported(path, f"a Wide ResNet-{depth}-{first / width:g}: {words}")
