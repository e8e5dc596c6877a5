"""Convolution, pooling and dense layers. Images are NHWC, kernels HWIO."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from resnet_tpu.models import cpu
from resnet_tpu.models.architecture import LayerForm, PoolPadding

_CUT_DEVIATION = 0.87962566103423978
"""Standard deviation of a standard normal distribution cut at -2 and 2."""

DENSE_DEVIATION = 0.01

DIMENSIONS = ("NHWC", "HWIO", "NHWC")
"""Of the images, kernels and results of convolutions."""

LANES = 128
"""Values in a row of a TPU's vector memory: those of one channel for as many images, where channels are few."""

_HALF_UNIT = 64


def choose_form(device_kind: str, dtype: DTypeLike, *, num_devices: int = 1) -> LayerForm:
    """The form of the layers that trains fastest on so many devices of this kind.

    On TPUs float32 is plain, which is what the original computes to the last bits. On several virtual devices of a CPU
    all is: the partitioner cannot cut the library's layers.
    """
    if device_kind.startswith("TPU") and jnp.dtype(dtype) == jnp.bfloat16:
        return "tpu"
    return "cpu" if device_kind == "cpu" and num_devices == 1 and cpu.is_able(dtype) else "plain"


def draw_kernel(rng: np.random.Generator | None, shape: tuple[int, ...]) -> np.ndarray:
    """A convolution's initial kernel, float32: normal cut at two deviations, variance 1/fan_in. Zeros without `rng`.

    Drawn on the host: the same on any device, and no program to compile for each shape.
    """
    if rng is None:
        return np.zeros(shape, np.float32)
    values = rng.standard_normal(shape, np.float32)
    while (outside := np.abs(values) > 2).any():
        values[outside] = rng.standard_normal(int(outside.sum()), np.float32)
    return values * np.float32(1 / (math.sqrt(math.prod(shape[:-1])) * _CUT_DEVIATION))


def convolve(x: jax.Array, kernel: jax.Array, strides: tuple[int, int]) -> jax.Array:
    """x [n, h, w, in] by a kernel [k, any, in, out], padded by k-1 in height and in width, (k-1)//2 of it before."""
    padding = [((kernel.shape[0] - 1) // 2, kernel.shape[0] // 2)] * 2
    return jax.lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=DIMENSIONS)


class Conv(nnx.Module):
    """A convolution computed in `dtype`; its kernel [k, k, in, out] and its bias [out], if any, are float32.

    Stride 1 pads SAME. A larger stride pads k-1 in total whatever the input size, (k-1)//2 of it before, as the
    original does (TensorFlow's SAME would pad even sizes unevenly).
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        size: int,
        stride: int,
        *,
        dtype: DTypeLike,
        rng: np.random.Generator | None,
        bias: bool = False,
        paired_images: int = 0,
    ) -> None:
        self.kernel = nnx.Param(jnp.array(draw_kernel(rng, (size, size, in_features, out_features))))
        self.bias = nnx.Param(jnp.array(np.zeros(out_features, np.float32))) if bias else None
        self.stride = stride
        self.dtype = dtype
        self.paired_images = paired_images

    @property
    def widens(self) -> bool:
        """Whether it is a 1x1 convolution of stride 1 without bias that has no fewer channels after it than before."""
        height, width, before, after = self.kernel.shape
        return (height, width, self.stride) == (1, 1, 1) and self.bias is None and before <= after

    def can_pair(self, x: jax.Array) -> bool:
        """Whether it may be computed in pairs of columns of the result, which are at most half a matrix unit each."""
        size, _, _, features = self.kernel.shape
        is_narrow = self.bias is None and size % 2 == 1 and features <= _HALF_UNIT
        has_pairs = x.shape[2] % (2 * self.stride) == 0
        return is_narrow and has_pairs and self.paired_images > 0 and x.shape[0] % self.paired_images == 0

    def __call__(self, x: jax.Array, factor: jax.Array | None = None) -> jax.Array:
        """x [n, h, w, in] -> [n, ceil(h/stride), ceil(w/stride), out], `dtype`, by the kernel times `factor` [out]."""
        kernel = self.kernel[...] if factor is None else self.kernel[...] * factor
        y = convolve(x.astype(self.dtype), kernel.astype(self.dtype), (self.stride, self.stride))
        return y if self.bias is None else y + self.bias[...].astype(self.dtype)


class Dense(nnx.Module):
    """The classifier: float32 whatever the network computes in, kernel [in, out] drawn with deviation 0.01."""

    def __init__(self, in_features: int, out_features: int, *, rng: np.random.Generator | None) -> None:
        shape = (in_features, out_features)
        kernel = np.zeros(shape, np.float32) if rng is None else rng.standard_normal(shape, np.float32)
        self.kernel = nnx.Param(jnp.array(kernel * np.float32(DENSE_DEVIATION)))
        self.bias = nnx.Param(jnp.array(np.zeros(out_features, np.float32)))

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [n, in] -> float32 [n, out]."""
        return x.astype(jnp.float32) @ self.kernel[...] + self.bias[...]


def max_pool(x: jax.Array, padding: PoolPadding = "same") -> jax.Array:
    """The largest value of 3x3 windows with stride 2: [n, h, w, c] -> [n, ceil(h/2), ceil(w/2), c].

    Padded as TensorFlow's SAME, where even sizes get it only after, or by 1 on either side, as PyTorch's networks do.
    """
    pads = "SAME" if padding == "same" else ((0, 0), (1, 1), (1, 1), (0, 0))
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), pads)


def average_pool(x: jax.Array) -> jax.Array:
    """The mean of 2x2 windows with stride 2, of what lies on the map: [n, h, w, c] -> [n, ceil(h/2), ceil(w/2), c]."""
    return nnx.avg_pool(x, (2, 2), strides=(2, 2), padding="SAME", count_include_pad=False).astype(x.dtype)


def global_average(x: jax.Array) -> jax.Array:
    """x [n, h, w, c] -> float32 mean [n, c]."""
    return x.mean((1, 2), dtype=jnp.float32)
