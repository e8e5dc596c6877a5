"""Writes the network as StableHLO: one program for CPU, GPU, TPU and any number of images, with separate weights."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from jax import export, lax

from resnet_tpu.errors import UserError, first_line, is_lack_of_memory
from resnet_tpu.models.architecture import EPSILON
from resnet_tpu.models.layers import DIMENSIONS
from resnet_tpu.serving.export.bundle import Bundle
from resnet_tpu.serving.export.classifier import OUTPUTS, Classifier, Output
from resnet_tpu.serving.export.fold import Folded
from resnet_tpu.serving.export.walk import Pads, walk
from resnet_tpu.training.compiler_options import required_options_for

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
GRAPH, WEIGHTS = "model.stablehlo", "weights.safetensors"


def write_stablehlo(folded: Folded) -> dict[str, bytes]:
    """Makes the files of the form.

    `model.stablehlo`: a serialised `jax.export` of (weights by name, images uint8 [n, s, s, 3]) -> (logits,
    probabilities), float32 [n, classes], normalisation included. `weights.safetensors`: the weights.
    """

    def apply(weights: Mapping[str, jax.Array], images: jax.Array) -> tuple[jax.Array, jax.Array]:
        return walk(_Ops(weights), folded, images)

    size = folded.image_size
    (batch,) = export.symbolic_shape("n")
    images = jax.ShapeDtypeStruct((batch, size, size, 3), jnp.uint8)
    shapes = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in folded.weights.items()}
    exported = export.export(jax.jit(apply), platforms=PLATFORMS)(shapes, images)
    return {GRAPH: bytes(exported.serialize()), WEIGHTS: safetensors.numpy.save(folded.weights)}


def load_stablehlo(bundle: Bundle, output: Output = "probabilities") -> Classifier:
    """Loads a bundle into XLA. The network is compiled for each batch size it is called with.

    Raises UserError when one of its files is damaged, or was written by a JAX that is too new for this one.
    """
    graph, arrays = bundle.read(GRAPH), bundle.read(WEIGHTS)
    with _naming(GRAPH, "what this JAX can run", "Upgrade jax, or choose --form=onnx."):
        exported = export.deserialize(bytearray(graph))
        exported.mlir_module()  # only now JAX parses the program, which it cannot if a later JAX wrote it
    with _naming(WEIGHTS, "a whole .safetensors file", "Export it again, or choose --form=onnx."):
        stored = safetensors.numpy.load(arrays)
    weights = {name: jnp.asarray(array) for name, array in stored.items()}
    call = jax.jit(exported.call, compiler_options=required_options_for())
    index = OUTPUTS.index(output)
    return lambda images: np.asarray(call(weights, images)[index])


@contextlib.contextmanager
def _naming(file: str, expected: str, do: str) -> Iterator[None]:
    """Turns the error for a file that JAX or safetensors cannot read into UserError."""
    try:
        yield
    except Exception as error:  # their errors have no other class in common
        if is_lack_of_memory(error):
            raise
        raise UserError(f"Bundle, {file}", first_line(error), expected, do) from None


@dataclass(frozen=True)
class _Ops:
    """`walk.Ops` in JAX."""

    weights: Mapping[str, jax.Array]

    def normalize(self, images: jax.Array, mean: np.ndarray, std: np.ndarray) -> jax.Array:
        return (images.astype(jnp.float32) - mean) / std

    def conv(self, x: jax.Array, name: str, *, stride: int = 1, relu: bool = False) -> jax.Array:
        kernel, bias = self.weights[f"{name}/kernel"], self.weights.get(f"{name}/bias")
        total = kernel.shape[0] - 1
        if total:
            pads = [(total // 2, total - total // 2)] * 2
            x = lax.conv_general_dilated(x, kernel, (stride, stride), pads, dimension_numbers=DIMENSIONS)
        else:  # as a matrix product, which XLA computes faster on a CPU
            x = x[:, ::stride, ::stride] @ kernel[0, 0]
        x = x if bias is None else x + bias
        return jax.nn.relu(x) if relu else x

    def scale_shift(self, x: jax.Array, name: str) -> jax.Array:
        return jax.nn.relu(self._affine(x, name))

    def evonorm_b0(self, x: jax.Array, name: str) -> jax.Array:
        own = self.weights[f"{name}/v"] * x + jnp.sqrt(x.var((1, 2), keepdims=True) + EPSILON)
        return self._affine(x / jnp.maximum(self.weights[f"{name}/std"], own), name)

    def evonorm_s0(self, x: jax.Array, name: str, groups: int) -> jax.Array:
        n, height, width, features = x.shape
        shape = (n, height, width, groups, features // groups)
        std = jnp.sqrt(x.reshape(shape).var((1, 2, 4), keepdims=True) + EPSILON)
        active = x * jax.nn.sigmoid(self.weights[f"{name}/v"] * x)
        return self._affine((active.reshape(shape) / std).reshape(x.shape), name)

    def _affine(self, x: jax.Array, name: str) -> jax.Array:
        return x * self.weights[f"{name}/scale"] + self.weights[f"{name}/bias"]

    def max_pool(self, x: jax.Array, pads: Pads) -> jax.Array:
        padding = ((0, 0), pads, pads, (0, 0))
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), padding)

    def average_pool(self, x: jax.Array, pads: Pads) -> jax.Array:
        padding = ((0, 0), pads, pads, (0, 0))
        total, count = (
            lax.reduce_window(values, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), padding)
            for values in (x, jnp.ones((1, *x.shape[1:3], 1), jnp.float32))
        )
        return total / count

    def add(self, x: jax.Array, y: jax.Array, *, relu: bool) -> jax.Array:
        return jax.nn.relu(x + y) if relu else x + y

    def gate(self, x: jax.Array, y: jax.Array) -> jax.Array:
        return x * jax.nn.sigmoid(y)

    def global_mean(self, x: jax.Array) -> jax.Array:
        return x.mean((1, 2), keepdims=True)

    def classify(self, x: jax.Array, name: str) -> tuple[jax.Array, jax.Array]:
        logits = x[:, 0, 0] @ self.weights[f"{name}/kernel"] + self.weights[f"{name}/bias"]
        return logits, jax.nn.softmax(logits)
