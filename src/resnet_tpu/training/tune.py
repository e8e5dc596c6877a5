"""Finds the kernels that train fastest on these devices: each is checked against the plain layers, then timed."""

import dataclasses
import json
import logging
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh

from resnet_tpu import storage
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.errors import UserError, first_line
from resnet_tpu.kernels.choose import KERNELS, choose_kernels, why_not
from resnet_tpu.models.network import Network
from resnet_tpu.options.checks import check
from resnet_tpu.options.config import Config
from resnet_tpu.options.network import network_of
from resnet_tpu.parallel import distributed, hosts
from resnet_tpu.reports.progress import track
from resnet_tpu.storage import checked_json
from resnet_tpu.training.compiler_options import compiler_options_for, sound_options_for
from resnet_tpu.training.reference import Reference, random_batch, random_state
from resnet_tpu.training.run import lengths_of, resolve
from resnet_tpu.training.step import TrainStep, train_step_of

log = logging.getLogger(__name__)

ROUNDS, STEPS = 3, 5
"""Each candidate is timed in ROUNDS rounds of STEPS steps. The candidates take turns; the median counts."""

_WORTH = 20_000  # steps from which on a run repays the minutes of compiling all candidates
_GAIN = 0.02  # by which another has to be faster than plain to be worth its complexity
_FILE = "kernels.json"


@dataclass(frozen=True)
class Choice:
    """How a training computes its steps."""

    kernels: str
    tuned_compiler: bool = True
    """Whether the compiler gets the options that make such devices faster by its own estimate."""

    def __str__(self) -> str:
        return self.kernels + ("" if self.tuned_compiler else ", the compiler's own options")


@dataclass(frozen=True)
class Trial:
    """What became of one choice: its time, or why it is left out."""

    choice: Choice
    milliseconds: float | None = None
    left_out: str = ""


def resolve_kernels(config: Config, mesh: Mesh, before: dict[str, Any] | None) -> Choice:
    """The choice of a run whose options are resolved; it is logged. With several hosts, all must call this.

    With `kernels=auto` it is the first of these that exists: the choice of the checkpoint it resumes from, `before`
    (see `describe`), if that was for such devices; the fastest when such a step was timed here; on a TPU or GPU and
    for a long enough training, the fastest when timed now; the choice of `choose_kernels`.
    """
    choice, why = _choose(config, mesh, before)
    if hosts.is_first():
        log.info("Kernels: %s%s", choice, f" ({why})" if why else "")
        if before is not None and before != describe(choice, mesh):
            log.warning(
                "Until now the kernels were %s on %s: results will agree except for rounding.",
                before.get("kernels"), before.get("device"),
            )  # fmt: skip
    return choice


def describe(choice: Choice, mesh: Mesh) -> dict[str, Any]:
    """What a checkpoint keeps of the choice."""
    return {**dataclasses.asdict(choice), "device": mesh.devices.flat[0].device_kind}


def _choose(config: Config, mesh: Mesh, before: dict[str, Any] | None) -> tuple[Choice, str]:
    default = Choice(choose_kernels(config.model, mesh).name)
    if config.model.kernels != "auto":
        return default, ""
    kept = _as_choice(before or {})
    if kept in candidates(config, mesh) and describe(kept, mesh) == before:
        return kept, "as until now"
    if found := _recall(config, mesh):
        return found, "the fastest when they were timed here"
    if not _on_accelerator(mesh):
        return default, why_not("cpu", config.model.precision, mesh)
    if lengths_of(config).total < _WORTH:
        return default, ""
    return tune(config, mesh)[0], "the fastest here"


def _on_accelerator(mesh: Mesh) -> bool:
    return mesh.devices.flat[0].platform != "cpu"


def tune(config: Config, mesh: Mesh) -> tuple[Choice, list[Trial]]:
    """Times each choice for the step of a run whose options are resolved, and remembers the fastest.

    Returns (the fastest, all trials). A choice that does not compile, does not fit in memory or does not agree with the
    plain layers is left out. The images are random. With several hosts, all must call this; the first decides.
    """
    reference, network = Reference(config, mesh), network_of(config, mesh)
    every = candidates(config, mesh)
    trials, steps = [], {}
    for choice in track(every, "verify kernels", len(every)):
        try:
            step = step_of(choice, network, config, mesh)
            if wrong := reference.why_not(reference.distances(step, mesh)):
                trials.append(Trial(choice, left_out=wrong))
                continue
        except (jax.errors.JaxRuntimeError, UserError, ValueError, TypeError) as error:
            trials.append(Trial(choice, left_out=first_line(error)))
            continue
        steps[choice] = step
    trials += _time(steps, config, mesh)
    trials = [_as_trial(row) for row in hosts.from_first(lambda: [dataclasses.asdict(trial) for trial in trials])]
    best = fastest(trials)
    if hosts.is_first():
        _remember(config, mesh, best)
    return best, trials


def tune_run(config: Config) -> tuple[Choice, list[Trial]]:
    """`tune` for a run. Raises as `train` does for options, data and devices that do not fit."""
    check(config)
    with hosts.connected(config.run):
        mesh = distributed.make_mesh(config.run.num_cores)
        distributed.check_divides(config, mesh.devices.size)
        return tune(resolve(config, open_source(config.data, "train")), mesh)


def candidates(config: Config, mesh: Mesh) -> list[Choice]:
    """All choices that such devices may have, the plain one first."""
    device = mesh.devices.flat[0]
    names = [name for name in KERNELS if not why_not(name, config.model.precision, mesh)]
    if not _on_accelerator(mesh):  # block is fused, but for the sizes of an accelerator's batches
        names = [name for name in names if name != "block"]
    has_options = compiler_options_for(device) != sound_options_for(device)
    return [Choice(name, tuned) for name in names for tuned in ((False, True) if has_options else (True,))]


def fastest(trials: list[Trial]) -> Choice:
    """The fastest choice, or the plain one if that is at most 2 % slower. Raises UserError if none could be timed."""
    timed = {trial.choice: trial.milliseconds for trial in trials if trial.milliseconds is not None}
    if not timed:
        got = "; ".join(f"{trial.choice}: {trial.left_out}" for trial in trials)
        raise UserError("Kernels", got, "kernels that run here", "Lower train_batch_size, or update the drivers.")
    best = min(timed, key=lambda choice: timed[choice])
    plain = [choice for choice in timed if choice.kernels == "plain" and timed[choice] <= timed[best] * (1 + _GAIN)]
    return min(plain, key=lambda choice: timed[choice]) if plain else best


def step_of(choice: Choice, network: Network, config: Config, mesh: Mesh) -> TrainStep:
    """The training step of a run whose options are resolved, with the kernels and compiler options of `choice`."""
    kernels = KERNELS[choice.kernels](mesh)
    return train_step_of(network, config, mesh, kernels=kernels, tuned_compiler=choice.tuned_compiler)


def _time(steps: dict[Choice, TrainStep], config: Config, mesh: Mesh) -> Iterator[Trial]:
    """The median time of each step over rounds in which they take turns."""
    batch = random_batch(config, mesh)
    found: dict[Choice, list[float]] = {choice: [] for choice in steps}
    for _ in track(range(ROUNDS), "time kernels", ROUNDS):
        for choice, step in steps.items():
            state, metrics = step(random_state(config, mesh), batch)
            jax.block_until_ready((state, metrics))
            start = time.perf_counter()
            for _ in range(STEPS):
                state, metrics = step(state, batch)
            jax.block_until_ready((state, metrics))
            found[choice].append((time.perf_counter() - start) / STEPS * 1000)
    return (Trial(choice, statistics.median(times)) for choice, times in found.items())


def remembered() -> dict[str, Choice]:
    """What was remembered on this machine: for each step, in words, the choice."""
    found = ((str(entry.get("of")), _as_choice(entry)) for entry in _read().values())
    return {words: choice for words, choice in found if choice}


def _recall(config: Config, mesh: Mesh) -> Choice | None:
    """What the first host remembers of such a step on such devices, if they can run it."""
    entry = hosts.from_first(lambda: _read().get(_key(config, mesh)))
    choice = _as_choice(entry) if entry else None
    return choice if choice in candidates(config, mesh) else None


def _remember(config: Config, mesh: Mesh, choice: Choice) -> None:
    entries = {**_read(), _key(config, mesh): {"of": _words(config, mesh), **dataclasses.asdict(choice)}}
    try:
        storage.make_dir(storage.cache_dir())
        storage.write_text(_path(), json.dumps(entries, indent=1) + "\n")
    except OSError as error:
        log.warning("The choice of kernels is not remembered: %s", error)


def _read() -> dict[str, Any]:
    try:
        found = checked_json.parse(storage.read_text(_path()))
        return checked_json.as_kind(dict[str, dict[str, Any]], found, _FILE)
    except (OSError, ValueError, TypeError):  # a cache: what cannot be read is timed again
        return {}


def _path() -> str:
    return storage.join(storage.cache_dir(), _FILE)


def _key(config: Config, mesh: Mesh) -> str:
    """All that a step's time may depend on, as text."""
    device = mesh.devices.flat[0]
    model = {name: value for name, value in dataclasses.asdict(config.model).items() if name != "kernels"}
    parts = config.optimizer.gradient_accumulation_steps
    compiler = getattr(device.client, "platform_version", "")
    sizes = [config.data.image_size, config.data.num_label_classes, config.train.train_batch_size, parts]
    return json.dumps([device.device_kind, mesh.devices.size, jax.__version__, compiler, sizes, model], default=str)


def _words(config: Config, mesh: Mesh) -> str:
    return (
        f"ResNet-{config.model.resnet_depth}, {config.data.image_size} px, {config.model.precision}, "
        f"batch {config.train.train_batch_size} on {mesh.devices.size} x {mesh.devices.flat[0].device_kind}, "
        f"jax {jax.__version__}"
    )


def _as_choice(entry: dict[str, Any]) -> Choice | None:
    kernels, tuned = entry.get("kernels"), entry.get("tuned_compiler")
    return Choice(kernels, tuned) if isinstance(kernels, str) and isinstance(tuned, bool) else None


def _as_trial(row: dict[str, Any]) -> Trial:
    return Trial(Choice(**row["choice"]), row["milliseconds"], row["left_out"])
