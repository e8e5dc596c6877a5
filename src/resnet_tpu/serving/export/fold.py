"""Prepares a trained network for inference: folds batch norms into the convolutions before them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from resnet_tpu.data.class_names import completed
from resnet_tpu.models.architecture import EPSILON, Architecture
from resnet_tpu.models.arrays import require_finite
from resnet_tpu.training.inference.trained import Trained

_EVONORM = ("scale", "bias", "v")


@dataclass(frozen=True)
class Folded:
    """A network without batch norms, float32.

    weights: by name, in the layout of the checkpoint (kernels HWIO):
    `X/kernel` and `X/bias` of a convolution X, with the batch norm that followed it folded in;
    `X/scale` and `X/bias` of a batch norm that no convolution precedes;
    `X/scale`, `X/bias`, `X/v` of an EvoNorm and, for B0, `X/std`, that of the batch.
    mean, std: of the pixels 0..255, float32 [3]. class_names: one for every output; classes without a name are
    numbered. about: metadata for users of a single file: preprocessing, training step, origin of the weights.
    """

    architecture: Architecture
    image_size: int
    class_names: list[str]
    mean: np.ndarray
    std: np.ndarray
    weights: dict[str, np.ndarray]
    about: dict[str, str]


def fold(trained: Trained) -> Folded:
    """Folds the trained network in float64. Raises NonFiniteError for weights that are not finite."""
    config = trained.config
    found: dict[str, np.ndarray] = {}
    with np.errstate(invalid="ignore", over="ignore"):
        _fold_into(found, "", trained.params, trained.batch_stats)
        weights = {name: np.ascontiguousarray(array, np.float32) for name, array in found.items()}
    require_finite(weights, f"step {trained.step}", "Take an earlier checkpoint.")
    mean, std = (
        np.asarray([255 * value for value in colors], np.float32)
        for colors in (config.model.mean_rgb, config.model.stddev_rgb)
    )
    return Folded(
        trained.network.architecture,
        config.data.image_size,
        completed(trained.class_names, weights["dense/bias"].size),
        mean,
        std,
        weights,
        _about(trained),
    )


def _about(trained: Trained) -> dict[str, str]:
    data, model = trained.config.data, trained.config.model
    known = {
        "eval_preprocessing": data.eval_preprocessing,
        "crop_pct": str(data.crop_pct),
        "resize_method": data.resize_method,
        "step": str(trained.step),
        "weights_origin": model.weights_origin,
        "weights_licence": model.weights_licence,
    }
    return {key: text for key, text in known.items() if text}


def _fold_into(weights: dict[str, np.ndarray], name: str, params: Mapping[str, Any], stats: Mapping[str, Any]) -> None:
    """Adds the weights of the module `name`, whose arrays are given, and of the modules in it."""
    if "conv" in params:
        _fold_conv(weights, name, params, stats)
    elif "v" in params or ("scale" in params and "mean" in stats):
        weights |= {f"{name}/{key}": array for key, array in _norm(params, stats).items()}
    elif "kernel" in params:
        weights |= {f"{name}/{key}": np.asarray(params[key], np.float64) for key in ("kernel", "bias") if key in params}
    else:
        for key, inner in params.items():
            _fold_into(weights, f"{name}/{key}" if name else key, inner, stats.get(key, {}))


def _fold_conv(weights: dict[str, np.ndarray], name: str, params: Mapping[str, Any], stats: Mapping[str, Any]) -> None:
    kernel = np.asarray(params["conv"]["kernel"], np.float64)
    norm = _norm(params["norm"], stats.get("norm", {})) if "norm" in params else {}
    if "v" in norm:  # an EvoNorm is not linear: it remains a layer after its convolution
        weights |= {f"{name}/norm/{key}": array for key, array in norm.items()}
    elif norm:
        kernel = kernel * norm["scale"]
        weights[f"{name}/bias"] = norm["bias"]
    weights[f"{name}/kernel"] = kernel


def _norm(params: Mapping[str, Any], stats: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """A norm in evaluation: a batch norm reduced to x * scale + bias; an EvoNorm's arrays as vectors."""
    arrays = {key: np.asarray(array, np.float64).reshape(-1) for key, array in {**params, **stats}.items()}
    if "v" in arrays:
        evonorm = {key: arrays[key] for key in _EVONORM}
        return evonorm | ({"std": np.sqrt(arrays["var"] + EPSILON)} if "var" in arrays else {})
    scale = arrays["scale"] / np.sqrt(arrays["var"] + EPSILON)
    return {"scale": scale, "bias": arrays["bias"] - arrays["mean"] * scale}
