"""Writes the network as ONNX, for ONNX Runtime and other programs."""

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from resnet_tpu import __version__
from resnet_tpu.models.architecture import EPSILON
from resnet_tpu.serving.export.classifier import OUTPUTS
from resnet_tpu.serving.export.fold import Folded
from resnet_tpu.serving.export.runtime import FILES
from resnet_tpu.serving.export.walk import Pads, walk

OPSET = 17
"""From 2022: old enough for the ONNX readers in use, new enough for everything that a ResNet needs."""

_IR_VERSION = 8  # the version that came with this opset

_MAPS = [2, 3]  # axes of height and width


def write_onnx(folded: Folded) -> dict[str, bytes]:
    """Makes the file of the form: `images` uint8 [n, s, s, 3] -> `logits` and `probabilities` float32 [n, classes].

    Normalisation is included, channels come first inside, n is symbolic. The metadata hold class names and image size.
    """
    model = make_model(folded)
    onnx.checker.check_model(model, full_check=True)
    return {FILES["onnx"]: model.SerializeToString()}


def make_model(folded: Folded) -> onnx.ModelProto:
    """The model that `write_onnx` writes."""
    ops, size = _Ops(folded), folded.image_size
    results = walk(ops, folded, "images")
    ops.nodes += [helper.make_node("Identity", [result], [name]) for result, name in zip(results, OUTPUTS, strict=True)]
    graph = helper.make_graph(
        ops.nodes,
        "resnet",
        [helper.make_tensor_value_info("images", TensorProto.UINT8, ["n", size, size, 3])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", len(folded.class_names)]) for name in OUTPUTS],
        list(ops.initializers.values()),
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=_IR_VERSION,
        producer_name="resnet_tpu",
        producer_version=__version__,
    )
    about = {"class_names": json.dumps(folded.class_names, ensure_ascii=False), "image_size": str(size), **folded.about}
    helper.set_model_props(model, about)
    return model


@dataclass
class _Ops:
    """`walk.Ops` as ONNX nodes. Values are represented by their names; activations are [n, c, h, w]."""

    folded: Folded
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict)

    def normalize(self, images: str, mean: np.ndarray, std: np.ndarray) -> str:
        x = self._node("Transpose", "images/channels_first", images, perm=[0, 3, 1, 2])
        x = self._node("Cast", "images/float", x, to=TensorProto.FLOAT)
        x = self._node("Sub", "images/centred", x, self._constant("images/mean", _per_channel(mean)))
        return self._node("Div", "images/normalized", x, self._constant("images/std", _per_channel(std)))

    def conv(self, x: str, name: str, *, stride: int = 1, relu: bool = False) -> str:
        kernel = self.folded.weights[f"{name}/kernel"]
        size = kernel.shape[0]
        before, after = (size - 1) // 2, size // 2
        arrays = [self._constant(f"{name}/kernel", np.ascontiguousarray(kernel.transpose(3, 2, 0, 1)))]
        if f"{name}/bias" in self.folded.weights:
            arrays.append(self._constant(f"{name}/bias", self.folded.weights[f"{name}/bias"]))
        y = self._node(
            "Conv", name, x, *arrays, strides=[stride] * 2, kernel_shape=[size] * 2, pads=[before] * 2 + [after] * 2
        )
        return self._node("Relu", f"{name}/relu", y) if relu else y

    def scale_shift(self, x: str, name: str) -> str:
        return self._node("Relu", f"{name}/relu", self._affine(x, name))

    def evonorm_b0(self, x: str, name: str) -> str:
        mean = self._node("ReduceMean", f"{name}/mean", x, axes=_MAPS, keepdims=1)
        own = self._node("Mul", f"{name}/own", x, self._weight(name, "v"))
        own = self._node("Add", f"{name}/denominator", own, self._deviation(x, mean, _MAPS, name))
        own = self._node("Max", f"{name}/largest", own, self._weight(name, "std"))
        return self._affine(self._node("Div", f"{name}/divided", x, own), name)

    def evonorm_s0(self, x: str, name: str, groups: int) -> str:
        shape = self._node("Shape", f"{name}/shape", x)
        by_group = self._constant(f"{name}/by_group", np.asarray([0, groups, -1], np.int64))
        grouped = self._node("Reshape", f"{name}/grouped", x, by_group)
        mean = self._node("ReduceMean", f"{name}/mean", grouped, axes=[2], keepdims=1)
        std = self._deviation(grouped, mean, [2], name)
        gate = self._node("Sigmoid", f"{name}/gate", self._node("Mul", f"{name}/own", x, self._weight(name, "v")))
        active = self._node("Mul", f"{name}/active", x, gate)
        active = self._node("Reshape", f"{name}/active_grouped", active, by_group)
        divided = self._node("Div", f"{name}/divided", active, std)
        return self._affine(self._node("Reshape", f"{name}/maps", divided, shape), name)

    def max_pool(self, x: str, pads: Pads) -> str:
        return self._node("MaxPool", f"{x}/max_pool", x, **_window(3, pads))

    def average_pool(self, x: str, pads: Pads) -> str:
        return self._node("AveragePool", f"{x}/average_pool", x, count_include_pad=0, **_window(2, pads))

    def add(self, x: str, y: str, *, relu: bool) -> str:
        total = self._node("Add", f"{x}/add", x, y)
        return self._node("Relu", f"{total}/relu", total) if relu else total

    def gate(self, x: str, y: str) -> str:
        return self._node("Mul", f"{y}/gated", x, self._node("Sigmoid", f"{y}/gate", y))

    def global_mean(self, x: str) -> str:
        return self._node("GlobalAveragePool", f"{x}/global_mean", x)

    def classify(self, x: str, name: str) -> tuple[str, str]:
        arrays = [self._constant(f"{name}/{key}", self.folded.weights[f"{name}/{key}"]) for key in ("kernel", "bias")]
        logits = self._node("Gemm", name, self._node("Flatten", f"{name}/flat", x), *arrays)
        return logits, self._node("Softmax", f"{name}/softmax", logits, axis=1)

    def _affine(self, x: str, name: str) -> str:
        scaled = self._node("Mul", f"{name}/scaled", x, self._weight(name, "scale"))
        return self._node("Add", f"{name}/shifted", scaled, self._weight(name, "bias"))

    def _deviation(self, x: str, mean: str, axes: list[int], name: str) -> str:
        centered = self._node("Sub", f"{name}/centred", x, mean)
        squared = self._node("Mul", f"{name}/squared", centered, centered)
        variance = self._node("ReduceMean", f"{name}/variance", squared, axes=axes, keepdims=1)
        epsilon = self._constant("epsilon", np.float32(EPSILON))
        return self._node("Sqrt", f"{name}/root", self._node("Add", f"{name}/with_epsilon", variance, epsilon))

    def _weight(self, name: str, key: str) -> str:
        return self._constant(f"{name}/{key}", _per_channel(self.folded.weights[f"{name}/{key}"]))

    def _constant(self, name: str, array: Any) -> str:
        self.initializers[name] = numpy_helper.from_array(np.asarray(array), name)
        return name

    def _node(self, kind: str, output: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output


def _per_channel(values: np.ndarray) -> np.ndarray:
    """[c] -> [1, c, 1, 1]"""
    return values.reshape(1, -1, 1, 1)


def _window(size: int, pads: Pads) -> dict[str, list[int]]:
    before, after = pads
    return {"kernel_shape": [size] * 2, "strides": [2, 2], "pads": [before, before, after, after]}
