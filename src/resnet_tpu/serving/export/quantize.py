"""Quantises a trained network to 8-bit weights and activations for CPUs, with ONNX Runtime."""

import logging
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static

from resnet_tpu.data.loader.batches import eval_batches
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.data.sources.subset import evenly_spaced
from resnet_tpu.errors import NonFiniteError, UserError
from resnet_tpu.options.config import DataConfig
from resnet_tpu.reports.finite import check_finite
from resnet_tpu.reports.progress import track
from resnet_tpu.serving.export.fold import Folded
from resnet_tpu.serving.export.onnx import make_model
from resnet_tpu.serving.export.runtime import FILES

NUM_IMAGES = 256
"""Training images whose activations determine the range of each tensor."""

_BATCH = 8

_DO = "Take an earlier checkpoint, or leave int8 out of --forms."

_QUANTIZED = ("Conv", "Add", "MaxPool", "AveragePool", "GlobalAveragePool", "Relu")
"""Types of nodes computed in 8 bits. The classifier, gates and EvoNorms stay in float32."""


def write_int8(folded: Folded, data: DataConfig) -> dict[str, bytes]:
    """Makes the file of the form: an ONNX model with quantised tensors (QDQ), inputs and outputs as in `write_onnx`.

    data: its training images calibrate the ranges. Raises UserError when they cannot be opened.
    """
    images = _calibration_images(data)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from NumPy, about the internals of ONNX Runtime
        source, target = Path(folder) / "model.onnx", Path(folder) / "int8.onnx"
        onnx.save(make_model(folded), source)
        root = logging.getLogger()  # whose filters see only what is logged directly on it, as ONNX Runtime does
        root.addFilter(_is_error)  # it advises simplifying the model, but there is nothing left to simplify
        try:
            quantize_static(
                source, target, _Reader(images), quant_format=QuantFormat.QDQ, per_channel=True,
                activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, op_types_to_quantize=list(_QUANTIZED),
                nodes_to_exclude=_left_in_float(folded), calibrate_method=CalibrationMethod.MinMax,
                reduce_range=True,  # 7-bit weights: CPUs without VNNI add pairs of products in 16 bits
            )  # fmt: skip
        except AssertionError as error:  # raised for a range that is nan
            raise NonFiniteError("Calibration of int8", f"{error} in a range", "finite activations", _DO) from None
        finally:
            root.removeFilter(_is_error)
        onnx.checker.check_model(str(target))
        _check_ranges(onnx.load(target))
        return {FILES["int8"]: target.read_bytes()}


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def _check_ranges(model: onnx.ModelProto) -> None:
    """Raises NonFiniteError if an activation was not finite during calibration, which makes its range meaningless."""
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            array = onnx.numpy_helper.to_array(tensor)
            check_finite(f"Calibration of int8, {tensor.name}", array, lambda: _DO)


def _left_in_float(folded: Folded) -> list[str]:
    """Nodes excluded although their type is quantised: squeeze-and-excite gates are small, and sensitive."""
    names = [name.removesuffix("/kernel") for name in folded.weights if "/squeeze_excite/" in name]
    return [node for name in names for node in (name, f"{name}/relu")]


def _calibration_images(data: DataConfig) -> Iterator[np.ndarray]:
    try:
        source = open_source(data, "train")
    except UserError as error:
        do = f"{error.do} Or leave int8 out of --forms."
        raise error.but(what=f"Calibration of int8: {error.what}", do=do) from None
    chosen = evenly_spaced(source, NUM_IMAGES)
    batches = eval_batches(chosen, data, batch_size=min(_BATCH, len(chosen)))
    num_whole = 0
    for batch in track(batches, "calibrate int8", total=-(-len(chosen) // _BATCH)):
        images = batch["image"][batch["weight"] > 0]
        num_whole += len(images)
        if len(images):
            yield images
    if not num_whole:
        raise UserError("Calibration of int8", "only damaged images", "some that can be read", "Replace them.")


class _Reader(CalibrationDataReader):
    def __init__(self, images: Iterator[np.ndarray]) -> None:
        self._images = images

    def get_next(self) -> Any:  # None at the end, which the base class does not declare
        images = next(self._images, None)
        return None if images is None else {"images": images}
