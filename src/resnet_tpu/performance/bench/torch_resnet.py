"""The same ResNet in PyTorch, for comparison, written as a PyTorch user would write it.

It computes what `resnet_tpu.models` computes (`resnet-tpu bench step --check` compares the two): post-activation
blocks with the stride in the 3x3 convolution, a projection in the first block of every group, the last batch norm of
every branch starting at 0, no bias in convolutions, the same distributions of initial weights.

It uses the idioms that make PyTorch fast: channels_last memory, in-place ReLU, the fused optimizer; on a GPU, if asked
for, also `torch.compile` with CUDA graphs.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

BLOCKS_PER_GROUP = {18: (2, 2, 2, 2), 20: (3, 3, 3), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}
CIFAR_DEPTH = 20
MEAN_RGB = (123.675, 116.28, 103.53)
STDDEV_RGB = (58.395, 57.12, 57.375)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""The device of networks: a GPU if this PyTorch can use one."""


class ConvNorm(nn.Module):
    """A convolution without bias, then batch norm, whose running statistics move by a tenth per step."""

    def __init__(self, in_features: int, out_features: int, size: int, stride: int = 1, *, last: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_features, out_features, size, stride, padding=(size - 1) // 2, bias=False)
        self.norm = nn.BatchNorm2d(out_features, eps=1e-5, momentum=0.1)
        std = math.sqrt(1 / (in_features * size * size)) / 0.87962566103423978  # before truncation
        nn.init.trunc_normal_(self.conv.weight, std=std, a=-2 * std, b=2 * std)
        if last:
            nn.init.zeros_(self.norm.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [n, in, h, w] -> [n, out, h/stride, w/stride]."""
        return self.norm(self.conv(x))


class Block(nn.Module):
    """A residual block: its convolutions, and that of the shortcut, if any."""

    def __init__(self, convs: list[ConvNorm], projection: ConvNorm | None) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)
        self.projection = projection

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [n, in, h, w] -> [n, out, h/stride, w/stride]."""
        shortcut = x if self.projection is None else self.projection(x)
        for conv in self.convs[:-1]:
            x = functional.relu(conv(x), inplace=True)
        return functional.relu(self.convs[-1](x).add_(shortcut), inplace=True)


class ResNet(nn.Module):
    """Normalised images [n, 3, h, w] -> float32 logits [n, num_classes]. depth: 18, 34, 50, or 20 for CIFAR."""

    def __init__(self, depth: int, num_classes: int) -> None:
        super().__init__()
        self.is_small = depth == CIFAR_DEPTH
        width = 16 if self.is_small else 64
        self.stem = ConvNorm(3, width, 3, 1) if self.is_small else ConvNorm(3, width, 7, 2)
        groups, features = [], width
        for group, blocks in enumerate(BLOCKS_PER_GROUP[depth]):
            members = []
            for block in range(blocks):
                stride = 2 if group > 0 and block == 0 else 1
                members.append(_block(features, width * 2**group, stride, bottleneck=depth >= 50, project=block == 0))
                features = width * 2**group * (4 if depth >= 50 else 1)
            groups.append(nn.Sequential(*members))
        self.groups = nn.Sequential(*groups)
        self.dense = nn.Linear(features, num_classes)
        nn.init.normal_(self.dense.weight, std=0.01)
        nn.init.zeros_(self.dense.bias)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Batch norm uses the mode set by `train()` or `eval()`."""
        x = functional.relu(self.stem(images), inplace=True)
        if not self.is_small:
            # TensorFlow's SAME: an even side is padded by one pixel, after the image
            even = x.shape[-1] % 2 == 0
            x = functional.max_pool2d(x, 3, 2, padding=0 if even else 1, ceil_mode=even)
        x = self.groups(x).mean((2, 3), dtype=torch.float32)
        with torch.autocast(DEVICE.type, enabled=False):
            return self.dense(x)


def _block(in_features: int, width: int, stride: int, *, bottleneck: bool, project: bool) -> Block:
    out = width * (4 if bottleneck else 1)
    projection = ConvNorm(in_features, out, 1, stride) if project else None
    if bottleneck:
        convs = [ConvNorm(in_features, width, 1), ConvNorm(width, width, 3, stride), ConvNorm(width, out, 1, last=True)]
    else:
        convs = [ConvNorm(in_features, width, 3, stride), ConvNorm(width, width, 3, last=True)]
    return Block(convs, projection)


def build(depth: int, num_classes: int, *, seed: int) -> ResNet:
    """A new network in channels_last memory, its weights drawn from `seed`."""
    torch.manual_seed(seed)
    # torch's own stubs omit the memory format of Module.to
    model: Any = ResNet(depth, num_classes)
    return model.to(device=DEVICE, memory_format=torch.channels_last)


def make_optimizer(model: ResNet, *, momentum: float, nesterov: bool, weight_decay: float) -> torch.optim.SGD:
    """Momentum SGD without weight decay for batch norm. The learning rate is passed to every step."""
    named = list(model.named_parameters())
    norms = [value for name, value in named if ".norm." in name]
    others = [value for name, value in named if ".norm." not in name]
    groups = [{"params": others, "weight_decay": weight_decay}, {"params": norms, "weight_decay": 0.0}]
    return torch.optim.SGD(groups, lr=0.0, momentum=momentum, nesterov=nesterov, fused=True)


def make_train_step(
    model: ResNet, optimizer: torch.optim.SGD, *, label_smoothing: float, precision: str, compiled: bool = False
) -> Callable[[np.ndarray | torch.Tensor, np.ndarray | torch.Tensor, float], float]:
    """(images uint8 [n, s, s, 3], labels int [n], learning rate) -> cross-entropy before the update.

    precision: float32, or bfloat16 for autocast, in which parameters stay float32.
    compiled: by torch.compile, on a GPU with CUDA graphs.
    """

    def loss_of(images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=precision == "bfloat16"):
            logits = model(normalize(images))
        return functional.cross_entropy(logits, targets, label_smoothing=label_smoothing)

    compute: Any = torch.compile(loss_of, mode="reduce-overhead") if compiled else loss_of

    def step(images: np.ndarray | torch.Tensor, labels: np.ndarray | torch.Tensor, rate: float) -> float:
        model.train()
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = compute(put(images), put(labels).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def put(array: np.ndarray | torch.Tensor) -> torch.Tensor:
    """The array on `DEVICE`; not copied if it is there already."""
    return torch.as_tensor(array, device=DEVICE)


def normalize(images: torch.Tensor) -> torch.Tensor:
    """uint8 [n, s, s, 3] -> float32 [n, 3, s, s] in channels_last memory, of mean 0 and std 1 over ImageNet."""
    mean, std = (torch.tensor(colors, device=images.device) for colors in (MEAN_RGB, STDDEV_RGB))
    return images.float().sub_(mean).div_(std).permute(0, 3, 1, 2)


def compute_exactly() -> None:
    """Keeps a GPU's matrix units from rounding float32 to TF32."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False


def sum_of_squares(model: ResNet) -> float:
    """The sum of squares of all parameters that decay."""
    with torch.no_grad():
        return sum(value.square().sum().item() for name, value in model.named_parameters() if ".norm." not in name)


def copy_weights(model: ResNet, params: Mapping[str, Any]) -> None:
    """Copies the parameters of a resnet_tpu network of the same depth into `model`."""

    def copy(into: ConvNorm, source: Mapping[str, Any]) -> None:
        into.conv.weight.copy_(_tensor(source["conv"]["kernel"]).permute(3, 2, 0, 1))
        into.norm.weight.copy_(_tensor(source["norm"]["scale"]))
        into.norm.bias.copy_(_tensor(source["norm"]["bias"]))

    with torch.no_grad():
        copy(model.stem, params["stem"])
        for number, group in enumerate(model.groups, 1):
            assert isinstance(group, nn.Sequential)
            for position, block in enumerate(group, 1):
                assert isinstance(block, Block)
                source = params[f"group{number}"][f"block{position}"]
                if block.projection is not None:
                    copy(block.projection, source["projection"])
                for index, conv in enumerate(block.convs, 1):
                    assert isinstance(conv, ConvNorm)
                    copy(conv, source[f"conv{index}"])
        model.dense.weight.copy_(_tensor(params["dense"]["kernel"]).T)
        model.dense.bias.copy_(_tensor(params["dense"]["bias"]))


def _tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array))
