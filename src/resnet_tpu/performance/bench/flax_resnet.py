"""A ResNet made of flax's own layers, for comparison: one module after another, no special techniques."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

BLOCKS_PER_GROUP = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}


class Block(nnx.Module):
    """Convolutions with batch norms around a shortcut, which is projected where the shape changes."""

    def __init__(self, before: int, width: int, stride: int, dtype: jnp.dtype, rngs: nnx.Rngs, *, wide: bool) -> None:
        after = width * (4 if wide else 1)
        sizes = [(before, width, 1, 1), (width, width, 3, stride), (width, after, 1, 1)]
        if not wide:
            sizes = [(before, width, 3, stride), (width, width, 3, 1)]
        if before != after or stride != 1:
            sizes.append((before, after, 1, stride))
        conv = partial(nnx.Conv, use_bias=False, dtype=dtype, rngs=rngs)
        self.convs = nnx.List([conv(b, a, (k, k), strides=s) for b, a, k, s in sizes])
        self.norms = nnx.List([nnx.BatchNorm(a, momentum=0.9, dtype=dtype, rngs=rngs) for _, a, _, _ in sizes])
        self.length = 3 if wide else 2

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [n, h, w, before] -> [n, h/stride, w/stride, after]."""
        layers = list(zip(self.convs, self.norms, strict=True))
        y = x
        for number, (conv, norm) in enumerate(layers[: self.length], start=1):
            y = norm(conv(y))
            y = nnx.relu(y) if number < self.length else y
        for conv, norm in layers[self.length :]:
            x = norm(conv(x))
        return nnx.relu(x + y)


class ResNet(nnx.Module):
    """Normalised images [n, h, w, 3] in, float32 logits [n, num_classes] out."""

    def __init__(self, depth: int, num_classes: int, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(3, 64, (7, 7), strides=2, use_bias=False, dtype=dtype, rngs=rngs)
        self.norm = nnx.BatchNorm(64, momentum=0.9, dtype=dtype, rngs=rngs)
        blocks, features = [], 64
        for group, count in enumerate(BLOCKS_PER_GROUP[depth]):
            for number in range(count):
                stride = 2 if group and not number else 1
                blocks.append(Block(features, 64 * 2**group, stride, dtype, rngs, wide=depth >= 50))
                features = 64 * 2**group * (4 if depth >= 50 else 1)
        self.blocks = nnx.List(blocks)
        self.dense = nnx.Linear(features, num_classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """In training mode: the running statistics are updated."""
        x = nnx.max_pool(nnx.relu(self.norm(self.conv(x))), (3, 3), strides=(2, 2), padding="SAME")
        for block in self.blocks:
            x = block(x)
        return self.dense(x.mean((1, 2)).astype(jnp.float32))


def make_resnet(depth: int, num_classes: int, precision: str) -> ResNet:
    """A new network of depth 18, 34 or 50 that computes in `precision`."""
    return ResNet(depth, num_classes, jnp.dtype(precision), nnx.Rngs(0))
