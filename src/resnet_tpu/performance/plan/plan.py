"""Plans a run on a TPU slice or GPUs: estimates whether it fits, its speed, its duration and its cost."""

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.errors import UserError, check_kind
from resnet_tpu.models.flops import PASSES_PER_STEP, forward_flops
from resnet_tpu.models.from_options import network_of
from resnet_tpu.models.option_checks import check_options
from resnet_tpu.options.config import Config, require_config
from resnet_tpu.parallel import division, meshes
from resnet_tpu.performance.plan.compiler import Estimate, OutOfMemory, compile_step, compiler_of, devices_of
from resnet_tpu.performance.plan.host import Host
from resnet_tpu.performance.plan.lowering import eval_batch_size, lower_eval_step, lower_train_step
from resnet_tpu.performance.plan.memory import Memory
from resnet_tpu.performance.plan.operations import Operation, by_layer
from resnet_tpu.performance.plan.search import find_largest
from resnet_tpu.performance.plan.timing import Timing, time_step
from resnet_tpu.performance.plan.topology import Topology, smallest_like
from resnet_tpu.training.maths.lengths import lengths_of
from resnet_tpu.training.run import fill_in_counts

PROGRAM = 0.03
"""Fraction of a device's memory left for the program when only the rest is estimated. Seen so far: 0.01 to 0.26 GiB."""

_ANY_LENGTH = {"num_train_images": 1_281_167, "train_steps": 112_590}
"""Lengths to compile with: they only change numbers in the schedule, so runs of all lengths can share one program."""

Notice = Callable[[str], contextlib.AbstractContextManager[Any]]
"""Shows what is being done during a block: `with notice("compiling ..."):`."""


@dataclass(frozen=True)
class Step:
    """One step of training or evaluation on a slice."""

    batch_size: int  # of the whole slice
    batch_per_device: int
    fits: bool
    needed: int | None  # bytes on each device; if it does not fit, None unless the compiler says
    memory: Memory | None = None  # None if the step does not fit, like all fields below
    time: Timing | None = None
    operations: tuple[Operation, ...] = ()  # summed by kind, layer and direction
    utilisation: float | None = None  # of the matrix units: the network's FLOPs relative to the peak in that time
    parts: int = 1  # into which the batch is split; they run one after the other

    @property
    def images_per_second(self) -> float | None:
        """Images per second of the whole slice; None when the step does not fit."""
        return self.batch_size / self.time.total if self.time else None


@dataclass(frozen=True)
class Plan:
    """A run on a slice."""

    topology: Topology
    devices: int  # number used by the run
    train: Step | None
    eval: Step | None
    train_images: int
    eval_images: int
    train_steps: int
    evaluations: int
    price_per_chip_hour: float | None
    host: Host | None  # how fast each supplies images; None: as fast as the devices take them
    largest_batch: int | None  # that fits on the whole slice; None if it was not searched, or nothing fits
    compiled_for: str  # the slice that the compiler was given
    compiler: str  # its name and version

    @property
    def fits(self) -> bool:
        """Whether all compiled steps fit."""
        return all(step.fits for step in (self.train, self.eval) if step)

    @property
    def hours(self) -> float | None:
        """Hours of training and, if planned, its evaluations; None if training was not planned or does not fit.

        If supplying the images of a step takes longer than computing it, that time counts.
        """
        if not (self.train and self.train.time and self.fits):
            return None
        seconds = self.train_steps * self._seconds(self.train)
        if self.eval and self.eval.time:
            seconds += self.evaluations * math.ceil(self.eval_images / self.eval.batch_size) * self._seconds(self.eval)
        return seconds / 3600

    @property
    def input_wait(self) -> float | None:
        """The fraction of training time in which the devices wait for images; None if the host's speed is not known."""
        if not (self.train and self.train.time and self.host):
            return None
        return 1 - self.train.time.total / self._seconds(self.train)

    def _seconds(self, step: Step) -> float:
        assert step.time
        images = step.batch_size / (self.topology.hosts * self.host.most_images_per_sec) if self.host else 0
        return max(step.time.total, images)

    @property
    def cost(self) -> float | None:
        """The cost of these hours on all chips of the slice."""
        if self.hours is None or self.price_per_chip_hour is None:
            return None
        return self.hours * self.topology.chips * self.price_per_chip_hour


def plan(
    config: Config,
    topology: Topology,
    *,
    price_per_chip_hour: float | None = None,
    host: Host | None = None,
    search: bool = False,
    fast: bool = False,
    notice: Notice = contextlib.nullcontext,
) -> Plan:
    """Compiles the steps that `mode` asks for, for the slice, and combines the compiler's estimates.

    price_per_chip_hour: for the cost of the run. host: the speed at which each machine supplies images, so that waiting
    for them counts; None: as fast as the devices take them.
    search: also looks for the largest training batch that fits.
    fast: compiles for four chips of the generation, with as many images on each as in the slice; transfers are those
    of the whole slice.
    Takes minutes: see `compile_step`. Raises UserError for options that do not fit together, a batch that is not
    divisible among the devices, or if the compiler is not installed.
    """
    require_config(config)
    check_kind("topology", topology, Topology, "Find it by its name: find_topology('v5e-8').")
    check_plan(config, topology)
    mode, config = config.run.mode, resolve_counts(config)
    small = smallest_like(topology)
    is_enough = topology.chips > small.chips and small.devices % config.model.batch_norm_group_size == 0
    compiled_for = small if fast and is_enough else topology
    planner = _Planner(config, topology, compiled_for, notice)
    lengths = lengths_of(config)
    train = planner.train() if mode in ("train", "train_and_eval") else None
    return Plan(
        topology=topology,
        devices=planner.devices,
        train=train,
        eval=planner.eval() if mode != "train" else None,
        train_images=config.data.num_train_images or 0,
        eval_images=config.data.num_eval_images or 0,
        train_steps=lengths.total,
        evaluations=math.ceil(lengths.total / lengths.per_eval) if mode == "train_and_eval" else 0,
        price_per_chip_hour=price_per_chip_hour,
        host=host,
        largest_batch=planner.largest_batch(train) if search else None,
        compiled_for=compiled_for.name,
        compiler=compiler_of(topology),
    )


def check_plan(config: Config, topology: Topology) -> None:
    """Raises UserError for options that do not fit together or do not fit the slice, before anything is compiled."""
    check_options(config)
    if config.run.mode == "predict":
        raise UserError("mode", "predict", "train, eval or train_and_eval", "Plan eval: prediction is much the same.")
    devices = devices_used(config, topology)
    if devices < topology.devices:
        meshes.check_num_cores(devices, topology.hosts)
    division.batch_norm_groups(config.model, devices)
    if config.run.mode != "eval":
        division.check_batch_divides(config, devices)


def devices_used(config: Config, topology: Topology) -> int:
    """All devices of the slice, or `num_cores` of them."""
    return min(topology.devices, config.run.num_cores or topology.devices)


def resolve_counts(config: Config) -> Config:
    """The options with counts of images and classes, taken from the data, or from ImageNet if no data are given."""
    config = fill_in_counts(config, open_source(config.data, "train"))
    if config.run.mode == "train" or config.data.num_eval_images:
        return config
    return config.replace(num_eval_images=len(open_source(config.data, "validation")))


class _Planner:
    """Compiles the steps of one run for one slice."""

    def __init__(self, config: Config, topology: Topology, compiled_for: Topology, notice: Notice) -> None:
        self._config, self._topology, self._compiled_for, self._notice = config, topology, compiled_for, notice
        self.devices = devices_used(config, topology)
        self._flops = forward_flops(network_of(config))

    def train(self) -> Step:
        """A step of training."""
        return self._step("train", self._config.train.train_batch_size)

    def eval(self) -> Step:
        """A step of evaluation."""
        return self._step("eval", eval_batch_size(self._config, self.devices))

    def largest_batch(self, known: Step | None) -> int | None:
        """The largest training batch that fits on the whole slice. known: a compiled step, which saves compiling it."""
        unit = self.devices * self._config.optimizer.gradient_accumulation_steps
        available = (1 - PROGRAM) * self._topology.device_memory

        def needed(batch: int) -> float:
            if known and known.batch_size == batch * unit:
                total = known.needed or math.inf
                return min(total, available) if known.fits else total  # with its program: no room is reserved
            try:
                return self._compile("train", batch * unit, memory_only=True).memory.total
            except OutOfMemory as error:
                return error.needed or math.inf

        found = find_largest(needed, available, self._config.train.train_batch_size // unit)
        return found and found * unit

    def _step(self, what: Literal["train", "eval"], batch_size: int) -> Step:
        per_device = batch_size // self.devices
        parts = self._config.optimizer.gradient_accumulation_steps if what == "train" else 1
        try:
            estimate = self._compile(what, batch_size)
        except OutOfMemory as error:
            return Step(batch_size, per_device, fits=False, needed=error.needed, parts=parts)
        flops = self._flops * per_device * (PASSES_PER_STEP if what == "train" else 1)
        time = time_step(estimate.operations, self._topology, flops)
        return Step(
            batch_size, per_device, True, estimate.memory.total, estimate.memory, time,
            tuple(by_layer(estimate.operations)), time.peak / time.total, parts,
        )  # fmt: skip

    def _compile(self, what: Literal["train", "eval"], batch_size: int, *, memory_only: bool = False) -> Estimate:
        per_device = batch_size // self.devices
        mesh = meshes.mesh_of(devices_of(self._compiled_for)[: self.devices])
        config = self._config.replace(**{f"{what}_batch_size": per_device * mesh.devices.size}, **_ANY_LENGTH)
        doing = f"looking for the memory of the {what} step" if memory_only else f"compiling the {what} step"
        with self._notice(f"{doing} for {self._compiled_for.name}, {per_device} images per device"):
            lowered = (lower_train_step if what == "train" else lower_eval_step)(config, mesh)
            return compile_step(lowered, self._compiled_for, memory_only=memory_only)
