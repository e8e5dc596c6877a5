"""Traces a few training steps, and shows where their time goes."""

import logging
import tempfile
from dataclasses import dataclass

from resnet_tpu import storage
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.errors import UserError
from resnet_tpu.models.flops import PASSES_PER_STEP, forward_flops
from resnet_tpu.models.from_options import network_of
from resnet_tpu.options.config import Config
from resnet_tpu.parallel import meshes, startup
from resnet_tpu.performance.plan.lowering import lower_train_step
from resnet_tpu.performance.profiling.labels import labels_of, read_labels, write_labels
from resnet_tpu.performance.profiling.peaks import find_peak
from resnet_tpu.performance.profiling.summary import StepSummary, summarize
from resnet_tpu.performance.profiling.trace import find_trace, read_trace
from resnet_tpu.training.kernel_choice.resolve import resolve_kernels
from resnet_tpu.training.loop import train
from resnet_tpu.training.profiler import can_trace, publish
from resnet_tpu.training.run import fill_in_counts

log = logging.getLogger(__name__)

_WARM_UP = 6
"""Steps before the trace: the first compiles, and then the host gets as far ahead of the devices as it can."""


@dataclass(frozen=True)
class Throughput:
    """Figures of training that a trace does not contain."""

    device: str
    images_per_sec: float
    flops_per_image: float
    peak_flops: float | None
    """Of all devices together, per second in bfloat16; None if unknown."""

    @property
    def utilisation(self) -> float | None:
        """Model FLOPs done as a share of the peak."""
        return self.images_per_sec * self.flops_per_image / self.peak_flops if self.peak_flops else None


@dataclass(frozen=True)
class TrainProfile:
    """Where the time of training steps goes. `throughput` is None if only a trace is available."""

    trace: str
    steps: StepSummary
    throughput: Throughput | None


def profile_training(config: Config, *, steps: int) -> TrainProfile:
    """Trains a few steps, traces `steps` of them into `model_dir/plugins/profile`, and summarises the trace.

    Reads and changes nothing else in `model_dir`, and discards the trained network. The first steps are not traced.
    Raises the errors that `train` raises.
    """
    startup.start_jax(use_tpu=config.run.use_tpu)
    if not can_trace():
        raise UserError("Profiler", "libtpu without a TPU", "a TPU, or no libtpu", "Pass --use_tpu=False.")
    total = _WARM_UP + steps
    run = config.replace(
        mode="train", train_steps=total, steps_per_eval=total, iterations_per_loop=total, save_checkpoints_steps=total,
        profile_every_n_steps=_WARM_UP, tpu_profile_duration=24 * 3600 * 1000,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        train(run.replace(model_dir=scratch))
        folder = publish(scratch, config.run.model_dir)
    run = fill_in_counts(run, open_source(run.data, "train"))
    mesh = meshes.make_mesh(run.run.num_cores)
    trace = read_trace(path := find_trace(folder))
    labels = labels_of(lower_train_step(run, mesh, resolve_kernels(run, mesh, None)).compile().as_text() or "")
    write_labels(folder, labels, (event.name for lanes in trace.devices.values() for lane in lanes for event in lane))
    summary = summarize(trace, labels)
    device, peak = mesh.devices.flat[0].device_kind, find_peak(mesh.devices.flat[0].device_kind)
    throughput = Throughput(
        device=f"{mesh.devices.size} x {device}",
        images_per_sec=1000 * run.train.train_batch_size / summary.mean_ms,
        flops_per_image=PASSES_PER_STEP * forward_flops(network_of(run)),
        peak_flops=None if peak is None else peak * mesh.devices.size,
    )
    return TrainProfile(path, summary, throughput)


def read_profile(path: str) -> TrainProfile:
    """The profile from the newest trace at `path`, whichever run captured it; see `find_trace`."""
    found = find_trace(path)
    return TrainProfile(found, summarize(read_trace(found), read_labels(storage.parent_of(found))), None)
