"""The training steps that `bench step` compares: the network they train, and how to make each."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from resnet_tpu.errors import UserError
from resnet_tpu.options.config import OPTIONS, Config
from resnet_tpu.performance.bench.compare import Peer

if TYPE_CHECKING:  # the peers' processes do not import JAX
    from jax.sharding import Mesh

    from resnet_tpu.training.kernel_choice.setting import KernelSetting

NUM_CLASSES = 1000
DEPTHS = (18, 20, 34, 50)
AUTO = "auto"

Step = Callable[[], float]
"""Makes one update, always with the same batch, which is complete on return. Returns the loss before it."""


@dataclass(frozen=True)
class Case:
    """What to train: `50:224:16` is ResNet-50 on images of 224 px in batches of 16; `50:224:16:gpu` names kernels."""

    depth: int
    image_size: int
    batch_size: int
    kernels: str = AUTO
    """The option `kernels` of resnet-tpu."""

    @classmethod
    def parse(cls, text: str) -> "Case":
        """Parses `depth:image_size:batch_size` or `depth:image_size:batch_size:kernels`. Raises UserError."""
        *numbers, kernels = (text if text.count(":") > 2 else f"{text}:{AUTO}").split(":")
        try:
            depth, image_size, batch_size = map(int, numbers)
        except ValueError:
            expected = "depth:image_size:batch_size, and :kernels if not auto"
            raise UserError("Case", repr(text), expected, "For example 50:224:16.") from None
        OPTIONS["kernels"].convert(kernels)
        if depth not in DEPTHS or image_size < (32 if depth == 20 else 64) or batch_size < 2:
            expected = "depth 18, 34 or 50 and at least 64 px, or 20 and 32 px; at least 2 images"
            raise UserError("Case", text, expected, "Change the case.")
        return cls(depth, image_size, batch_size, kernels)

    def __str__(self) -> str:
        return f"{self.depth}:{self.image_size}:{self.batch_size}:{self.kernels}".removesuffix(f":{AUTO}")

    @property
    def title(self) -> str:
        """A readable name."""
        kernels = "" if self.kernels == AUTO else f", kernels {self.kernels}"
        return f"ResNet-{self.depth}, {self.image_size} px, batch {self.batch_size}{kernels}"

    def config(self, precision: str) -> Config:
        """The options of our step and PyTorch's. The weight decay is so large that `--check` detects mistakes in it.

        A run this short uses kernels that were timed before, and times none itself.
        """
        return Config().replace(
            resnet_depth=self.depth,
            image_size=self.image_size,
            train_batch_size=self.batch_size,
            precision=precision,
            kernels=self.kernels,
            train_steps=1000,
            base_learning_rate=0.1,
            learning_rate_schedule="constant",
            num_train_images=1000,
            num_label_classes=NUM_CLASSES,
            label_smoothing=0.1,
            weight_decay=0.01,
        )

    def batch(self) -> dict[str, np.ndarray]:
        """Random images and labels, the same for all programs."""
        rng = np.random.default_rng(0)
        shape = (self.batch_size, self.image_size, self.image_size, 3)
        return {
            "image": rng.integers(0, 256, shape, np.uint8),
            "label": rng.integers(0, NUM_CLASSES, self.batch_size, np.int32),
            "weight": np.ones(self.batch_size, np.float32),
        }


def choose_ours(case: Case, precision: str) -> "tuple[Config, Mesh, KernelSetting]":
    """The options, device and kernels of resnet-tpu, as `train` would choose them here."""
    import jax

    from resnet_tpu.parallel import meshes, startup
    from resnet_tpu.training.kernel_choice.resolve import resolve_kernels

    startup.start_jax(use_tpu=True)
    config, mesh = case.config(precision), meshes.mesh_of(jax.devices()[:1])
    return config, mesh, resolve_kernels(config, mesh, None)


def make_ours(case: Case, precision: str) -> tuple[Any, Step]:
    """(initial parameters, a step on one device) of resnet-tpu, computed as `train` would here."""
    import jax

    from resnet_tpu.training.maths.network import network_on
    from resnet_tpu.training.maths.state import create_state

    config, mesh, setting = choose_ours(case, precision)
    network = network_on(config, mesh)
    state = create_state(network, config.optimizer, seed=0)
    params = jax.device_get(state.params)
    train_step = setting.train_step(network, config, mesh)
    batch = jax.device_put(case.batch())

    def step() -> float:
        nonlocal state
        state, metrics = train_step(state, batch)
        return float(jax.block_until_ready((state, metrics))[1]["loss"])

    return params, step


def make_torch(case: Case, precision: str, *, compiled: bool = False) -> tuple[Any, Step]:
    """(the network, a step whose loss lacks the L2 term) of PyTorch: channels_last, bfloat16 by autocast.

    compiled: by torch.compile, on a GPU with CUDA graphs; else eager.
    """
    from resnet_tpu.performance.bench import torch_resnet

    config = case.config(precision)
    options = config.optimizer
    model = torch_resnet.build(case.depth, NUM_CLASSES, seed=0)
    optimizer = torch_resnet.make_optimizer(
        model, momentum=options.momentum, nesterov=options.nesterov, weight_decay=options.weight_decay
    )
    train_step = torch_resnet.make_train_step(
        model, optimizer, label_smoothing=options.label_smoothing, precision=precision, compiled=compiled
    )
    images, labels = (torch_resnet.put(case.batch()[name]) for name in ("image", "label"))
    rate = options.base_learning_rate * case.batch_size / 256
    return model, lambda: train_step(images, labels, rate)


def _device_of_jax() -> str:
    import jax

    return jax.devices()[0].platform


def _device_of_torch() -> str:
    import torch

    return "gpu" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True, kw_only=True)
class Program(Peer):
    """A program to compare, and how to make its step."""

    make: Callable[[Case, str], tuple[Any, Step]]
    keeps_memory: bool = False
    """Whether to run it with settings of the C library that keep freed memory, as our program does by itself."""
    device: Callable[[], str] = _device_of_jax
    """Returns the kind of device that it computes on: cpu, gpu or tpu."""
    only_on: str = ""
    """The only kind of device that it is meant for; empty: any."""


KEEP_HEAP = (
    "GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1:"
    "glibc.malloc.mmap_threshold=17179869184:glibc.malloc.trim_threshold=17179869184"
)
"""Makes the C library (Linux, glibc >= 2.35) request huge pages and never return memory."""

OURS = "ours"
PROGRAMS = {
    OURS: Program("resnet-tpu", make=make_ours),
    "torch": Program("PyTorch", "torch", "torch", make=make_torch, device=_device_of_torch),
    "torch_kept": Program(
        "PyTorch, memory kept", "torch", "torch", make=make_torch, keeps_memory=True, device=_device_of_torch,
        only_on="cpu",
    ),
    "torch_compiled": Program(
        "PyTorch, compiled", "torch", "torch", make=functools.partial(make_torch, compiled=True),
        device=_device_of_torch, only_on="gpu",
    ),
}  # fmt: skip
