"""The network in evaluation as a sequence of a few operations. Each exported form implements these operations."""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from resnet_tpu.models.architecture import evonorm_groups
from resnet_tpu.serving.export.fold import Folded

T = TypeVar("T")

Pads = tuple[int, int]
"""Padding before and after, the same for rows and columns."""


class Ops(Protocol[T]):
    """The operations that a form implements. Activations are T, float32 [n, h, w, c] or in the form's order of axes.

    name: of a layer; its arrays are those in `Folded.weights` whose names begin with it.
    """

    def normalize(self, images: T, mean: np.ndarray, std: np.ndarray) -> T:
        """(images - mean) / std, of uint8 [n, s, s, 3]."""
        ...

    def conv(self, x: T, name: str, *, stride: int = 1, relu: bool = False) -> T:
        """A convolution, padded by k-1 in total, (k-1)//2 of that before; with a bias if the layer has one."""
        ...

    def scale_shift(self, x: T, name: str) -> T:
        """max(x * scale + bias, 0)"""
        ...

    def evonorm_b0(self, x: T, name: str) -> T:
        """x / max(std, v x + sqrt(variance over the map + EPSILON)) * scale + bias"""
        ...

    def evonorm_s0(self, x: T, name: str, groups: int) -> T:
        """x sigmoid(v x) / sqrt(variance over the image's group of channels + EPSILON) * scale + bias"""
        ...

    def max_pool(self, x: T, pads: Pads) -> T:
        """The maximum over 3x3 windows with stride 2."""
        ...

    def average_pool(self, x: T, pads: Pads) -> T:
        """The mean over 2x2 windows with stride 2, not counting the padding."""
        ...

    def add(self, x: T, y: T, *, relu: bool) -> T:
        """x + y"""
        ...

    def gate(self, x: T, y: T) -> T:
        """x * sigmoid(y), y [n, 1, 1, c]."""
        ...

    def global_mean(self, x: T) -> T:
        """The means of the maps, [n, 1, 1, c]."""
        ...

    def classify(self, x: T, name: str) -> tuple[T, T]:
        """Logits and probabilities [n, classes] of x [n, 1, 1, c]."""
        ...


def walk(ops: Ops[T], folded: Folded, images: T) -> tuple[T, T]:
    """Logits and probabilities [n, classes] of images uint8 [n, s, s, 3], by `ops`."""
    return _Walk(ops, folded).network(images)


@dataclass(frozen=True)
class _Walk(Generic[T]):
    ops: Ops[T]
    folded: Folded

    def has(self, name: str) -> bool:
        return name in self.folded.weights

    def network(self, images: T) -> tuple[T, T]:
        settings = self.folded.architecture
        x, size = self.stem(self.ops.normalize(images, self.folded.mean, self.folded.std))
        for group, blocks in enumerate(settings.blocks_per_group, start=1):
            for number in range(1, blocks + 1):
                stride = 2 if group > 1 and number == 1 else 1
                x = self.block(x, f"group{group}/block{number}", size, stride)
                size = -(-size // stride)
        if settings.pre_activation:
            x = self.norm(x, "norm_out")
        return self.ops.classify(self.ops.global_mean(x), "dense")

    def stem(self, x: T) -> tuple[T, int]:
        """The input of the first group of blocks, and its height, which is also its width."""
        settings, size = self.folded.architecture, self.folded.image_size
        last, stride = "stem", 1 if settings.small_stem else 2
        if settings.use_resnetd_stem:
            x = self.conv_act(self.conv_act(x, "stem/conv1", 2), "stem/conv2")
            last, stride = "stem/conv3", 1
        x = self.ops.conv(x, last, stride=stride) if settings.pre_activation else self.conv_act(x, last, stride)
        if settings.small_stem:
            return x, size
        size = -(-size // 2)
        if settings.replace_stem_max_pool:
            x = self.ops.conv(x, "pool", stride=2, relu=True)
        else:
            x = self.ops.max_pool(x, (1, 1) if settings.pool_padding == "symmetric" else same_pads(size, 3))
        return x, -(-size // 2)

    def block(self, x: T, name: str, size: int, stride: int) -> T:
        settings, shortcut = self.folded.architecture, x
        if settings.pre_activation:
            x = self.norm(x, f"{name}/norm_in")
        if self.has(f"{name}/projection/kernel"):
            shortcut = self.project(x, name, size, stride)
        if not settings.bottleneck:
            x = self.ops.conv(self.conv_act(x, f"{name}/conv1", stride), f"{name}/conv2")
        else:
            x = self.conv_act(self.conv_act(x, f"{name}/conv1"), f"{name}/conv2", stride)
            x = self.ops.conv(x, f"{name}/conv3")
        if self.has(f"{name}/squeeze_excite/reduce/kernel"):
            squeezed = self.ops.conv(self.ops.global_mean(x), f"{name}/squeeze_excite/reduce", relu=True)
            x = self.ops.gate(x, self.ops.conv(squeezed, f"{name}/squeeze_excite/expand"))
        return self.ops.add(x, shortcut, relu=not settings.pre_activation)

    def project(self, x: T, name: str, size: int, stride: int) -> T:
        """The projection of a shortcut whose input has height and width `size`."""
        pools = self.folded.architecture.resnetd_shortcut and stride == 2
        seen = self.ops.average_pool(x, same_pads(size, 2)) if pools else x
        return self.ops.conv(seen, f"{name}/projection", stride=1 if pools else stride)

    def conv_act(self, x: T, name: str, stride: int = 1) -> T:
        """A convolution and its activation; a batch norm between them is folded into the convolution."""
        if self.has(f"{name}/norm/v"):
            return self.norm(self.ops.conv(x, name, stride=stride), f"{name}/norm")
        return self.ops.conv(x, name, stride=stride, relu=True)

    def norm(self, x: T, name: str) -> T:
        """A norm that is not folded into a convolution, and its activation."""
        if self.has(f"{name}/std"):
            return self.ops.evonorm_b0(x, name)
        if self.has(f"{name}/v"):
            features = self.folded.weights[f"{name}/v"].size
            return self.ops.evonorm_s0(x, name, evonorm_groups(features))
        return self.ops.scale_shift(x, name)


def same_pads(size: int, window: int) -> Pads:
    """TensorFlow's SAME padding for windows with stride 2 on a map of side `size`: the smaller half comes before."""
    total = max((-(-size // 2) - 1) * 2 + window - size, 0)
    return total // 2, total - total // 2
