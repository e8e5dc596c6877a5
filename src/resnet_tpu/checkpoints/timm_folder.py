"""Writes a network as a folder for timm and Hugging Face's hub: weights, their description, and a model card."""

import json
from collections.abc import Sequence
from typing import Any

from resnet_tpu import __version__, storage
from resnet_tpu.checkpoints import torch_files
from resnet_tpu.errors import UserError
from resnet_tpu.models.arrays import Arrays, leaves
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import Config, ModelConfig

_SHOWN_CLASSES = 20
_Variant = tuple[bool, bool, bool, float | None]  # deep stem, pooled shortcuts, stem without max-pool, se_ratio

_PLAIN: _Variant = (False, False, False, None)
_C: _Variant = (True, False, False, None)
_D: _Variant = (True, True, False, None)
_NAMES: dict[str, tuple[_Variant, tuple[int, ...]]] = {
    "resnet{}": (_PLAIN, (18, 34, 50, 101, 152, 200)),
    "resnet{}c": (_C, (50, 101, 152)),
    "resnet{}d": (_D, (18, 34, 50, 101, 152, 200)),
    "seresnet{}": ((*_PLAIN[:3], 1 / 16), (50, 101, 152)),
    "seresnet{}d": ((*_D[:3], 1 / 16), (152, 200)),
    "resnetrs{}": ((True, True, True, 1 / 4), (50, 101, 152, 200, 270, 350, 420)),
}
"""timm's names of networks, each with its variant and the depths that timm has of it."""


def architecture_of(model: ModelConfig) -> str:
    """timm's name for the network. Raises UserError if timm does not have it."""
    variant = (model.use_resnetd_stem, model.resnetd_shortcut, model.replace_stem_max_pool, model.se_ratio)
    for name, (known, depths) in _NAMES.items():
        if variant == known and model.resnet_depth in depths:
            return name.format(model.resnet_depth)
    names = ("use_resnetd_stem", "resnetd_shortcut", "replace_stem_max_pool", "se_ratio")
    differing = [f"{name} {value}" for name, value in zip(names, variant, strict=True) if value]
    got = f"a ResNet-{model.resnet_depth}" + (f" with {', '.join(differing)}" if differing else "")
    expected = f"one that timm has a name for: {', '.join(_NAMES).format(*['N'] * len(_NAMES))}"
    raise UserError("Network", got, expected, "Write the weights alone: --to=safetensors.")


def write_folder(
    folder: str,
    config: Config,
    network: Network,
    arrays: Arrays,
    class_names: Sequence[str],
    *,
    top_1: float | None = None,
) -> None:
    """Writes model.safetensors, config.json and README.md into `folder`, which exists.

    `timm.create_model("local-dir:FOLDER", pretrained=True)` loads it, and the hub accepts it. arrays: params and
    batch_stats. top_1: the fraction of its validation images classified correctly, if it was measured. Raises
    UserError for a network that timm does not have.
    """
    torch_files.check_writable(network)
    name = architecture_of(config.model)
    path = storage.join(folder, "model.safetensors")
    rest = {"eval_preprocessing": config.data.eval_preprocessing}  # timm has no key for it
    torch_files.write_safetensors(path, network, arrays, class_names=class_names, preprocessing=rest)
    described = json.dumps(_describe(name, config, network, class_names), indent=2, ensure_ascii=False)
    storage.write_text(storage.join(folder, "config.json"), described + "\n")
    num_parameters = sum(leaf.size for _, leaf in leaves(arrays["params"]))
    storage.write_text(storage.join(folder, "README.md"), _card(name, config, class_names, num_parameters, top_1))


def _describe(name: str, config: Config, network: Network, class_names: Sequence[str]) -> dict[str, Any]:
    """timm's config.json."""
    model, data = config.model, config.data
    first_conv = "conv1.0" if model.use_resnetd_stem else "conv1"
    return {
        "architecture": name,
        "num_classes": network.num_classes,
        "label_names": list(class_names),
        "pretrained_cfg": {
            "input_size": [3, data.image_size, data.image_size],
            "fixed_input_size": False,
            "interpolation": data.resize_method,
            "crop_pct": data.crop_pct,
            "crop_mode": "center",
            "mean": list(model.mean_rgb),
            "std": list(model.stddev_rgb),
            "num_classes": network.num_classes,
            "first_conv": first_conv,
            "classifier": "fc",
            "license": model.weights_licence or None,
        },
    }


def _card(name: str, config: Config, class_names: Sequence[str], num_parameters: int, top_1: float | None) -> str:
    """The model card: what the hub shows of a model, with its properties as YAML on top."""
    model, data = config.model, config.data
    properties = ["library_name: timm", "pipeline_tag: image-classification"]
    properties += [f"license: {json.dumps(model.weights_licence)}"] if model.weights_licence else []
    properties += ["tags:", "- timm", "- image-classification", "- resnet_tpu"]
    shown = ", ".join(class_names[:_SHOWN_CLASSES])
    rest = f" and {len(class_names) - _SHOWN_CLASSES} more, in config.json" if class_names[_SHOWN_CLASSES:] else ""
    resize = f"{data.resize_method}, the central {100 * data.crop_pct:.4g} %"
    colors = f"mean {_numbers(model.mean_rgb)}, std {_numbers(model.stddev_rgb)}"
    differs = model.pool_padding == "same" and not model.replace_stem_max_pool
    padding = "Its max-pool was trained with TensorFlow's padding, which PyTorch lacks: logits differ a little.\n"
    own_way = data.eval_preprocessing == "tf"
    resizing = "It was evaluated with TensorFlow's resizing; timm's is antialiased: probabilities differ a little.\n"
    return "\n".join(
        [
            "---", *properties, "---", "", f"# {name} for {len(class_names)} classes", "",
            f"Tells apart {shown}{rest}. Written by resnet_tpu {__version__}.", "", "| | |", "|---|---|",
            *([f"| right on its validation images | {top_1:.1%} |"] if top_1 is not None else []),
            f"| parameters | {num_parameters:,} |",
            f"| images | {data.image_size}×{data.image_size} px, {resize} |",
            f"| colours | {colors} |",
            f"| trained from | {model.weights_origin or 'not stated'} |",
            f"| licence | {model.weights_licence or 'not stated'} |",
            "", *([padding] if differs else []), *([resizing] if own_way else []), "```python", "import timm", "",
            'model = timm.create_model("hf-hub:OWNER/NAME", pretrained=True).eval()  # or local-dir:FOLDER',
            "transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))",
            "```", "",
            "It gives each photo one of these classes, even a photo that shows none of them. Measure its accuracy",
            "before using it on photos unlike those it was trained on.", "",
        ]
    )  # fmt: skip


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
