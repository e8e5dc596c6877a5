"""Finds the network that a checkpoint of the original belongs to, by the names and shapes of its variables alone."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from resnet_tpu.checkpoints.foreign import ANY_IMAGE_SIZE, fraction
from resnet_tpu.checkpoints.tf1_lottery import rename
from resnet_tpu.checkpoints.tf1_names import tf_names
from resnet_tpu.errors import UserError
from resnet_tpu.models.architecture import ARCHITECTURES
from resnet_tpu.models.arrays import leaf_at
from resnet_tpu.models.from_options import create_network, resolve_architecture
from resnet_tpu.options.config import Config, ModelConfig

STEP = "global_step"
MOMENTUM = "/Momentum"
LARS = "/LARSOptimizer"
AVERAGE = "/ExponentialMovingAverage"

_EXPECTED = "those of a ResNet of the original"
_OBJECT = "/.ATTRIBUTES/VARIABLE_VALUE"

_WEIGHT = re.compile(r"(conv2d|batch_normalization|evonorm|dense)(?:_\d{1,9})?/(?!mask$)[^/]+")

Shapes = dict[str, tuple[int, ...]]


class Contents(NamedTuple):
    """The optimizer and averages that a checkpoint holds besides the weights of a network."""

    optimizer: str | None  # whose slots there are: 'Momentum' or 'LARSOptimizer'
    averaged: bool  # moving averages of the weights


def contents(variables: Mapping[str, object]) -> Contents:
    """The `Contents` of a checkpoint with these `variables`, which are by TensorFlow's names."""
    slots = [slot.strip("/") for slot in (MOMENTUM, LARS) if any(name.endswith(slot) for name in variables)]
    averaged = any(name.endswith(AVERAGE) for name in variables)
    return Contents(slots[0] if slots else None, averaged)


def check_original(variables: Mapping[str, object]) -> None:
    """Raises UserError when the names are those of an object-based checkpoint of TensorFlow 2."""
    if any(name.endswith(_OBJECT) for name in variables):
        raise UserError(
            "Checkpoint", "an object-based checkpoint of TensorFlow 2 (Keras, tf.train.Checkpoint)",
            "one of the original program, written by TensorFlow 1's tf.train.Saver",
            "Save the weights by name, or as .safetensors.",
        )  # fmt: skip


def options_of(variables: Mapping[str, Any]) -> dict[str, Any]:
    """The options, by name, of the network that `variables` belong to.

    resnet_depth, num_label_classes and stem, and others that differ from the defaults. `variables` have TensorFlow's
    names, or those of the pruning fork; optimizer slots and averages may be among them. resnetd_shortcut leaves no
    trace in the variables and is assumed to equal use_resnetd_stem. Raises UserError when this is not a ResNet of the
    original.
    """
    check_original(variables)
    shapes = {name: tuple(variable.shape) for name, variable in rename(variables).items() if _WEIGHT.fullmatch(name)}
    options = _deduce(shapes)
    difference = _difference(options, shapes) if options else None
    if options and not difference:
        return options
    expected = f"those of resnet_depth {options['resnet_depth']}, with {difference}" if options else _EXPECTED
    raise UserError("Variables of the checkpoint", _summary(variables, shapes), expected, "Give another checkpoint.")


def _summary(variables: Mapping[str, object], shapes: Shapes) -> str:
    """The variables found, in a few words."""
    kinds = {"conv2d": "convolutions", "batch_normalization": "batch norms", "evonorm": "EvoNorms"}
    layers = {name.split("/")[0] for name in shapes}
    counts = {words: sum(layer.startswith(kind) for layer in layers) for kind, words in kinds.items()}
    if layers:
        return ", ".join(f"{count} {words}" for words, count in counts.items() if count)
    return f"{len(variables)} variables such as {', '.join(list(variables)[:3])}" if variables else "none"


def _deduce(shapes: Shapes) -> dict[str, Any] | None:
    """Options of the only network that can have these variables; None if no ResNet has as many of each kind."""
    kernels = _kernels(shapes)
    squeezes = [kernel for name, kernel in kernels.items() if f"{name}/bias" in shapes]  # only these have biases
    convs = [kernel for name, kernel in kernels.items() if f"{name}/bias" not in shapes]
    dense = shapes.get("dense/kernel", ())
    if len(convs) < 5 or len(dense) != 2 or any(len(kernel) != 4 or 0 in kernel for kernel in kernels.values()):
        return None
    options: dict[str, Any] = {"num_label_classes": dense[1], "stem": "imagenet" if convs[0][0] == 7 else "small"}
    width = convs[0][3]
    if convs[0][0] == convs[2][0] == 3 and convs[2][3] in (2 * width, 2 * width + 1):
        options |= {"stem": "imagenet", "use_resnetd_stem": True}
        width = convs[2][3]
    if any(name.startswith("evonorm") for name in shapes):
        running = "evonorm/moving_variance" in shapes
        options |= {"pre_activation": True, "norm_act_layer": "evonorm_b0" if running else "evonorm_s0"}
    elif sum(name.endswith("/gamma") for name in shapes) != len(convs):
        options["pre_activation"] = True
    if len(squeezes) > 1:
        options["se_ratio"] = fraction(squeezes[-2][3], squeezes[-2][2])
    widening = dense[0] // width
    depths = [depth for depth, network in ARCHITECTURES.items() if network.num_features == widening * network.width]
    return next(filter(None, (_options_of_depth(depth, width, convs, options) for depth in depths)), None)


def _kernels(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """The convolutions' kernels by layer, in order of creation."""
    layers = {name.split("/")[0] for name in shapes if name.startswith("conv2d")}
    ordered = sorted(layers, key=lambda layer: int(layer.removeprefix("conv2d").lstrip("_") or 0))
    return {layer: shapes.get(f"{layer}/kernel", ()) for layer in ordered}


def _options_of_depth(
    depth: int, width: int, convs: Sequence[tuple[int, ...]], options: Mapping[str, Any]
) -> dict[str, Any] | None:
    """`options` completed for the network of that depth; None if that has another number of convolutions."""
    network = resolve_architecture(Config().replace(resnet_depth=depth).model, image_size=ANY_IMAGE_SIZE)
    blocks = network.blocks_per_group
    stem = 3 if "use_resnetd_stem" in options else 1
    projected = 1 in (convs[stem][0], convs[stem + 1][0])  # the first or, after a replaced max-pool, the second
    more = len(convs) - stem - sum(blocks) * (3 if network.bottleneck else 2) - len(blocks) + (not projected)
    if more not in (0, 1):
        return None
    found: dict[str, Any] = {
        "resnet_width": None if width == network.width else width,
        "resnetd_shortcut": stem == 3 and network.bottleneck,
        "replace_stem_max_pool": more == 1,
        "project_first_group": projected,
    }
    defaults = vars(ModelConfig())
    changes = {name: value for name, value in found.items() if value != defaults[name]}
    return {"resnet_depth": depth, **options, **changes}


def _difference(options: Mapping[str, Any], shapes: Shapes) -> str | None:
    """The first variable in which the network of `options` differs from `shapes`, in words, or None."""
    model = Config().replace(**{name: value for name, value in options.items() if name != "num_label_classes"}).model
    try:
        network = create_network(model, num_classes=options["num_label_classes"], image_size=ANY_IMAGE_SIZE)
    except UserError as error:  # squeeze-and-excite in a basic block, and the like
        return error.expected
    trees = network.shape_trees()
    expected = {name: leaf_at(trees, leaf).shape for name, leaf in tf_names(network).items()}
    for name in [*expected, *shapes]:
        if expected.get(name) != shapes.get(name):
            return f"{name} of shape {list(expected[name])}" if name in expected else f"no {name}"
    return None
