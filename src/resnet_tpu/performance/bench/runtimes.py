"""Measures programs that compute the same as a bundle, each run for speed as its users would.

All take the same images, uint8 [n, s, s, 3], and normalise them. Libraries are imported where they are used:
except for JAX, they are not dependencies of this package. Weights are random, which does not affect the speed.
"""

import json
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from resnet_tpu.options.config import ModelConfig
from resnet_tpu.performance.bench import child
from resnet_tpu.performance.bench.compare import Peer, is_installed
from resnet_tpu.serving.export.bundle import Bundle, Form, open_bundle
from resnet_tpu.serving.export.classifier import load_classifier
from resnet_tpu.system.cpu_time import cpu_secs_of_family

BATCH_SIZES = (1, 8, 32)

Run = Callable[[np.ndarray], Any]
"""images uint8 [n, s, s, 3] -> probabilities or logits, in the program's own type."""

_WARM_UP_CALLS = 2
_MIN_CALLS = 3
_TORCH_DEPTHS = (18, 34, 50, 101, 152)
_KERAS_DEPTHS = (50, 101, 152)


@dataclass(frozen=True, kw_only=True)
class Runtime(Peer):
    """A program that computes probabilities or logits.

    form: the form of the bundle that it runs; if empty, it has networks of its own, of the given `depths`.
    """

    open: Callable[[Bundle], Run]
    form: Form | None = None
    depths: tuple[int, ...] = ()


def _open_onnx_runtime(bundle: Bundle) -> Run:
    """Only the ONNX file, run as in ONNX Runtime's own documentation."""
    import onnxruntime

    session = onnxruntime.InferenceSession(f"{bundle.path}/model.onnx", providers=["CPUExecutionProvider"])
    return lambda images: session.run(["probabilities"], {"images": images})


def _torch_model(bundle: Bundle) -> Any:
    import torch
    import torchvision

    model = getattr(torchvision.models, f"resnet{bundle.config.model.resnet_depth}")(weights=None)
    model.fc = torch.nn.Linear(model.fc.in_features, len(bundle.class_names))
    return model.eval().to(memory_format=torch.channels_last)


def _run_torch(bundle: Bundle, model: Any) -> Run:
    import torch

    mean, std = (torch.tensor(values)[:, None, None] for values in _statistics(bundle))

    def run(images: np.ndarray) -> Any:
        with torch.inference_mode():
            # no copy: NHWC is PyTorch's channels_last
            return model((torch.from_numpy(images).permute(0, 3, 1, 2).float() - mean) / std)

    return run


def _open_torch(bundle: Bundle) -> Run:
    return _run_torch(bundle, _torch_model(bundle))


def _open_torch_compile(bundle: Bundle) -> Run:
    """Compiled with frozen weights, which folds batch norm, and compiled again for each batch size."""
    import torch
    from torch._inductor import config

    config.freezing = True
    return _run_torch(bundle, torch.compile(_torch_model(bundle), dynamic=False))


def _open_keras(bundle: Bundle) -> Run:
    """`keras.applications` as a `tf.function`. Its stride in the first 1x1 of a block saves 7 % of the work."""
    import keras
    import tensorflow as tf

    size, depth = bundle.image_size, bundle.config.model.resnet_depth
    create = getattr(keras.applications, f"ResNet{depth}")
    model = create(weights=None, input_shape=(size, size, 3), classes=len(bundle.class_names))
    mean, std = _statistics(bundle)

    @tf.function(input_signature=[tf.TensorSpec([None, size, size, 3], tf.uint8)])
    def call(images: Any) -> Any:
        return model((tf.cast(images, tf.float32) - mean) / std, training=False)

    return lambda images: call(images).numpy()


def _statistics(bundle: Bundle) -> tuple[Sequence[float], Sequence[float]]:
    return bundle.config.model.mean_rgb, bundle.config.model.stddev_rgb


def _ours(form: Form, module: str) -> Runtime:
    return Runtime(f"resnet-tpu, {form}", module, module, open=lambda bundle: load_classifier(bundle, form), form=form)


OURS = {
    "onnx": _ours("onnx", "onnxruntime"),
    "int8": _ours("int8", "onnxruntime"),
    "stablehlo": _ours("stablehlo", "jax"),
}
"""By the name of the form."""

PEERS = {
    "onnxruntime": Runtime("ONNX Runtime", "onnxruntime", "onnxruntime", open=_open_onnx_runtime, form="onnx"),
    "torch": Runtime("PyTorch", "torchvision", "torchvision", open=_open_torch, depths=_TORCH_DEPTHS),
    "torch_compile": Runtime(
        "torch.compile", "torchvision", "torchvision", open=_open_torch_compile, depths=_TORCH_DEPTHS
    ),
    "keras": Runtime("Keras", "tensorflow", "tensorflow", open=_open_keras, depths=_KERAS_DEPTHS),
}

RUNTIMES = OURS | PEERS
BARE = "onnxruntime"
"""The runtime to which a server over ONNX Runtime is compared."""


def choose(bundle: Bundle, asked: Collection[str]) -> tuple[list[str], list[str]]:
    """The requested runtimes that can run here, and a line for each one left out."""
    chosen, notes = [], []
    is_plain = _is_plain(bundle)
    for name, runtime in RUNTIMES.items():
        if name not in asked:
            continue
        if runtime.form and runtime.form not in bundle.forms:
            notes.append(f"Left out: {runtime.title}, the bundle has no {runtime.form}.")
        elif not runtime.form and not (is_plain and bundle.config.model.resnet_depth in runtime.depths):
            notes.append(f"Left out: {runtime.title}, which has no such network.")
        elif not is_installed(runtime.module):
            notes.append(f"Left out: {runtime.title}, not installed (pip install {runtime.package}).")
        else:
            chosen.append(name)
    return chosen, notes


def _is_plain(bundle: Bundle) -> bool:
    """Whether the network has exactly the arrays of the standard ResNet of its depth."""
    from resnet_tpu.models.from_options import create_network  # imports JAX, which not every runtime needs

    model, size = bundle.config.model, bundle.image_size
    plain = ModelConfig(resnet_depth=model.resnet_depth, stem="imagenet")
    ours, theirs = (
        create_network(config, num_classes=len(bundle.class_names), image_size=size).shapes()[0]
        for config in (model, plain)
    )
    return bool(ours == theirs)


def run_alone(name: str, bundle: str, seconds: float) -> list[str]:
    """The command that measures a runtime in a process of its own: `images_per_sec` and `cpu_ms` per batch size."""
    return child.command_of(__name__, name, bundle, json.dumps(seconds))


def measure(run: Run, image_size: int, seconds: float) -> dict[str, float]:
    """For each batch size n: `ms_n` of a call (median), `images_per_sec_n`, and `cpu_ms_n` per image."""
    figures = {}
    for batch_size in BATCH_SIZES:
        images = np.random.default_rng(0).integers(0, 256, (batch_size, image_size, image_size, 3), np.uint8)
        for _ in range(_WARM_UP_CALLS):
            run(images)
        times: list[float] = []
        cpu_begin, begin = cpu_secs_of_family(), time.perf_counter()
        while len(times) < _MIN_CALLS or time.perf_counter() - begin < seconds / len(BATCH_SIZES):
            start = time.perf_counter()
            run(images)
            times.append(time.perf_counter() - start)
        cpu = (cpu_secs_of_family() - cpu_begin) / (len(times) * batch_size)
        median = statistics.median(times)
        figures |= {
            f"ms_{batch_size}": 1000 * median,
            f"images_per_sec_{batch_size}": batch_size / median,
            f"cpu_ms_{batch_size}": 1000 * cpu,
        }
    return figures


def _measure(name: str, path: str, seconds: str) -> dict[str, float]:
    bundle = open_bundle(path)
    return measure(RUNTIMES[name].open(bundle), bundle.image_size, json.loads(seconds))


if __name__ == "__main__":
    child.print_figures(_measure)
