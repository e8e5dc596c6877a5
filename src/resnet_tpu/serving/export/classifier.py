"""Runs the network of a bundle with ONNX Runtime or XLA."""

import importlib.util
import os
from collections.abc import Callable
from typing import Literal, get_args

import numpy as np

from resnet_tpu.errors import UserError, check_kind
from resnet_tpu.serving.export.bundle import FORMS, Bundle, Form
from resnet_tpu.system.machine import has_accelerator

Output = Literal["logits", "probabilities"]
"""The outputs of a form that takes pixels, in this order, float32 [n, classes]."""

OUTPUTS: tuple[Output, ...] = get_args(Output)

Classifier = Callable[[np.ndarray], np.ndarray]
"""images uint8 [n, s, s, 3] -> an `Output`, float32 [n, classes], for any n. Any number of threads may call it."""

_PLUGINS = ("libtpu", "jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm7_plugin")
"""Packages through which JAX reaches accelerators."""


def load_classifier(
    bundle: Bundle, form: Form | None = None, num_threads: int | None = None, output: Output = "probabilities"
) -> Classifier:
    """Loads the network of the bundle.

    form: by default `onnx` on a CPU, if the bundle has it and ONNX Runtime is installed; else `stablehlo`; `int8` only
    if it has neither. num_threads: for ONNX Runtime, by default one per core. XLA always uses all cores.
    Raises UserError for a form that the bundle does not have, whose package is missing, or whose file is damaged, and
    for `savedmodel`, which TensorFlow Serving runs.
    """
    check_kind("bundle", bundle, Bundle, "Open it first: open_bundle(PATH).")
    if output not in OUTPUTS:
        raise UserError("output", repr(output), f"one of {', '.join(OUTPUTS)}", "Change the value.")
    form = form or default_form(bundle)
    if form not in bundle.forms:
        again = f", or export again with --forms={','.join([*bundle.forms, form])}" if form in FORMS else ""
        do = f"Choose another{again}."
        raise UserError("Form", form, f"one that {bundle.path} has: {', '.join(bundle.forms)}", do)
    if form == "savedmodel":
        do = "Serve it with TensorFlow Serving, or choose another form."
        raise UserError("Form", form, "one that takes pixels: stablehlo, onnx or int8", do)
    if form == "stablehlo":
        from resnet_tpu.serving.export.stablehlo import load_stablehlo

        classify = load_stablehlo(bundle, output)
    else:
        from resnet_tpu.serving.export.runtime import load_onnx

        classify = load_onnx(bundle, form, num_threads, output)
    return _checking_pixels(classify, bundle.image_size, len(bundle.class_names))


def _checking_pixels(classify: Classifier, image_size: int, num_classes: int) -> Classifier:
    """`classify`, but images of another shape or dtype raise UserError instead of an error from the runtime."""

    def checked(images: np.ndarray) -> np.ndarray:
        images = np.asarray(images)
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != (image_size, image_size, 3):
            expected = f"uint8 [n, {image_size}, {image_size}, 3]"
            do = "Crop and convert them. load_model(PATH).predict takes photos of any size."
            raise UserError("Images", f"{images.dtype} {list(images.shape)}", expected, do)
        return classify(images) if len(images) else np.zeros((0, num_classes), np.float32)

    return checked


def default_form(bundle: Bundle) -> Form:
    """The form that `load_classifier` takes when none is named."""
    order: tuple[Form, ...] = ("onnx", "stablehlo", "int8")
    if importlib.util.find_spec("onnxruntime") is None or _runs_on_accelerator():
        order = ("stablehlo", "onnx", "int8")
    for form in order:
        if form in bundle.forms:
            return form
    do = "Export it with --forms=stablehlo,onnx."
    raise UserError(f"Bundle {bundle.path}", ", ".join(bundle.forms), "a form that takes pixels", do)


def _runs_on_accelerator() -> bool:
    """Whether JAX runs on anything but a CPU here. Imports JAX only if there may be an accelerator."""
    if os.environ.get("JAX_PLATFORMS") == "cpu" or not any(map(importlib.util.find_spec, _PLUGINS)):
        return False
    if not has_accelerator():
        return False
    import jax

    return jax.default_backend() != "cpu"


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities [..., classes]. Importing SciPy's softmax would delay a server's start by a seventh of a second."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
