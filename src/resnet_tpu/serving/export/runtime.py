"""Runs a bundle with ONNX Runtime on a CPU."""

import functools
from typing import Any

import numpy as np

from resnet_tpu.errors import UserError, first_line, is_lack_of_memory, missing_extra
from resnet_tpu.serving.export.bundle import Bundle, Form
from resnet_tpu.serving.export.classifier import Classifier, Output
from resnet_tpu.system.machine import cores_of_container

FILES: dict[Form, str] = {"onnx": "model.onnx", "int8": "model_int8.onnx"}
"""The file of each form that ONNX Runtime runs."""


def load_onnx(
    bundle: Bundle, form: Form, num_threads: int | None = None, output: Output = "probabilities"
) -> Classifier:
    """Loads a bundle into ONNX Runtime. Raises UserError when that is not installed, or the file is damaged.

    num_threads: by default one per core of the container, which may have fewer than the machine.
    """
    try:
        import onnxruntime
    except ImportError:
        raise missing_extra(f"Form {form}", "onnxruntime", "onnx") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads or cores_of_container() or 0  # 0: one per core of the machine
    options.log_severity_level = 3
    network = bundle.read(FILES[form])
    try:
        session = onnxruntime.InferenceSession(network, options, ["CPUExecutionProvider"])
    except Exception as error:  # its errors have no other class in common
        if is_lack_of_memory(error):
            raise
        do = "Upgrade onnxruntime, or choose --form=stablehlo."
        raise UserError(f"Bundle, {FILES[form]}", first_line(error), "what this ONNX Runtime can run", do) from None
    return functools.partial(_run, session, output)


def _run(session: Any, output: Output, images: np.ndarray) -> np.ndarray:
    (values,) = session.run([output], {"images": images})
    return values
