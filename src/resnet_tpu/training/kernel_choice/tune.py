"""Finds the kernels that train fastest on these devices: each is checked against the plain layers, then timed."""

import dataclasses
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh

from resnet_tpu.checkpoints.transfer import with_options_of_weights
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.errors import UserError, first_line
from resnet_tpu.models.option_checks import check_options
from resnet_tpu.options.config import Config
from resnet_tpu.parallel import division, hosts, meshes
from resnet_tpu.reports.progress import track
from resnet_tpu.training.kernel_choice.memory import remember
from resnet_tpu.training.kernel_choice.random_inputs import random_batch, random_state
from resnet_tpu.training.kernel_choice.reference import Reference
from resnet_tpu.training.kernel_choice.setting import KernelSetting, candidates
from resnet_tpu.training.maths.network import network_on
from resnet_tpu.training.maths.step import TrainStep
from resnet_tpu.training.run import fill_in_counts
from resnet_tpu.training.start import initial_weights

ROUNDS, STEPS = 3, 5
"""Each candidate is timed in ROUNDS rounds of STEPS steps. The candidates take turns, and the median decides."""

_GAIN = 0.02  # how much faster than the plain setting another must be to be worth its complexity


@dataclass(frozen=True)
class Trial:
    """The result of one setting: its time, or why it is left out."""

    setting: KernelSetting
    milliseconds: float | None = None
    left_out: str = ""


def tune(config: Config, mesh: Mesh) -> tuple[KernelSetting, list[Trial]]:
    """Times each setting for the step of a run whose options are resolved, and remembers the fastest.

    Returns (the fastest, all trials). A setting that does not compile, does not fit in memory or does not agree with
    the plain layers is left out. The images are random. With several hosts, all must call this; the first decides.
    """
    reference, network = Reference(config, mesh), network_on(config, mesh)
    every = candidates(config, mesh)
    trials, steps = [], {}
    for setting in track(every, "verify kernels", len(every)):
        try:
            step = setting.train_step(network, config, mesh)
            wrong = reference.why_not(reference.distances(step, mesh))
        except (jax.errors.JaxRuntimeError, UserError, ValueError, TypeError) as error:
            step, wrong = None, first_line(error)
        if left_out := next(filter(None, hosts.exchange(wrong)), ""):  # all hosts must time the same settings
            trials.append(Trial(setting, left_out=left_out))
        elif step is not None:
            steps[setting] = step
    trials += _time(steps, config, mesh)
    trials = [_as_trial(row) for row in hosts.from_first(lambda: [dataclasses.asdict(trial) for trial in trials])]
    best = fastest(trials)
    if hosts.is_first():
        remember(config, mesh, best)
    return best, trials


def tune_run(config: Config) -> tuple[KernelSetting, list[Trial]]:
    """`tune` for a run. Raises the errors that `train` raises for options, data and devices that do not fit."""
    check_options(config)
    with hosts.connected(config.run):
        mesh = meshes.make_mesh(config.run.num_cores)
        division.check_batch_divides(config, mesh.devices.size)
        config = fill_in_counts(config, open_source(config.data, "train"))
        if weights := initial_weights(config):
            config = with_options_of_weights(config, weights)  # the step that `train` looks up
        return tune(config, mesh)


def fastest(trials: list[Trial]) -> KernelSetting:
    """The fastest setting, or the plain one if that is at most 2 % slower. Raises UserError if none could be timed."""
    timed = {trial.setting: trial.milliseconds for trial in trials if trial.milliseconds is not None}
    if not timed:
        got = "; ".join(f"{trial.setting}: {trial.left_out}" for trial in trials)
        raise UserError("Kernels", got, "kernels that run here", "Lower train_batch_size, or update the drivers.")
    best = min(timed, key=lambda setting: timed[setting])
    plain = [setting for setting in timed if setting.kernels == "plain" and timed[setting] <= timed[best] * (1 + _GAIN)]
    return min(plain, key=lambda setting: timed[setting]) if plain else best


def _time(steps: dict[KernelSetting, TrainStep], config: Config, mesh: Mesh) -> Iterator[Trial]:
    """The median time of each step over rounds in which they take turns."""
    batch = random_batch(config, mesh)
    times: dict[KernelSetting, list[float]] = {setting: [] for setting in steps}
    for _ in track(range(ROUNDS), "time kernels", ROUNDS):
        for setting, step in steps.items():
            state, metrics = step(random_state(config, mesh), batch)
            jax.block_until_ready((state, metrics))
            start = time.perf_counter()
            for _ in range(STEPS):
                state, metrics = step(state, batch)
            jax.block_until_ready((state, metrics))
            times[setting].append((time.perf_counter() - start) / STEPS * 1000)
    return (Trial(setting, statistics.median(step_times)) for setting, step_times in times.items())


def _as_trial(row: dict[str, Any]) -> Trial:
    return Trial(KernelSetting(**row["setting"]), row["milliseconds"], row["left_out"])
