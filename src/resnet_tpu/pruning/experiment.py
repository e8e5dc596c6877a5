"""Runs pruning and retraining from start to end, in phases that are each run only once.

Each phase has its own `model_dir`: its start is written there as a checkpoint, from which `train` resumes. So the same
command continues a phase that was stopped, and only reads the outcome of a finished one. Several processes go through
the same phases together; the first one, which writes, decides whether a phase is done.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from resnet_tpu import storage
from resnet_tpu.checkpoints import folders, reading
from resnet_tpu.checkpoints.meta import changed_options
from resnet_tpu.errors import UserError, check_kind
from resnet_tpu.models.arrays import leaves
from resnet_tpu.options.config import Config
from resnet_tpu.options.fields import GivenPath, expand_home
from resnet_tpu.options.overrides import Layer, merge
from resnet_tpu.options.run_file import read_run
from resnet_tpu.parallel import hosts
from resnet_tpu.pruning.levels import Level, plan_levels
from resnet_tpu.pruning.methods import family_of
from resnet_tpu.pruning.options import COMPUTING, Experiment
from resnet_tpu.pruning.outcome import UNPRUNED, Outcome, PhaseName, read_outcome
from resnet_tpu.pruning.phase import Phase, Unpruned, config_at, is_done, read_description
from resnet_tpu.pruning.retrain import RETRAININGS
from resnet_tpu.training.loop import train
from resnet_tpu.training.maths.lengths import lengths_of, steps_of
from resnet_tpu.training.run import check_training

log = logging.getLogger(__name__)

_SEED = "seed_"
_ELSEWHERE = "Give another output_dir."


def prune_run(
    model_dir: GivenPath, output_dir: GivenPath, experiment: Experiment, *, computing: Mapping[str, Any] | None = None
) -> list[Outcome]:
    """Prunes and retrains the network in `model_dir`, for each seed, retraining and level; resumes if stopped.

    The phases are in `output_dir/seed_<n>/<retrain>/<level>/`. For a seed other than that of `model_dir`, the unpruned
    network is trained first, in `output_dir/seed_<n>/unpruned/`. Unfinished training is finished first, including that
    in `model_dir`. computing: overrides of options that change where and how training is computed, not what is trained:
    `data_dir` for images that have moved, `precision`, `kernels`, `num_cores`, and those for several processes, all of
    which must make the same call. Returns the outcomes: for each seed that of the unpruned network, then those of its
    phases. The command `resnet-tpu prune` also writes their table and pictures; run afterwards, it trains nothing
    again. Raises UserError for options that do not fit together or do not fit `output_dir`, for a network that is
    already pruned as far, and when the rewind step has no checkpoint.
    """
    model_dir, output_dir = expand_home(model_dir), expand_home(output_dir)
    check_kind("experiment", experiment, Experiment, "Make one: Experiment(density='20').")
    retrains, seeds = experiment.retrains(), experiment.seed_numbers()
    levels = plan_levels(experiment.method, density=experiment.density, levels=experiment.levels, rate=experiment.rate)
    if unfit := [name for name in computing or {} if name not in COMPUTING]:
        raise UserError("computing", unfit[0], f"one of {', '.join(COMPUTING)}", "Leave it out: the run sets it.")
    folders.check_model_dir(model_dir)
    saved = read_run(model_dir)  # not from its checkpoints: to read these, JAX must have been started
    from_table = {"bigtable_instance": ""} if computing and "data_dir" in computing else {}
    changed = Layer("computing", {**from_table, **(computing or {})})
    run_options = merge(Config(), [*([saved] if saved else []), changed]).run
    outcomes: list[Outcome] = []
    with hosts.connected(run_options):
        config = merge(config_at(model_dir), [changed])
        experiments: list[tuple[Unpruned, list[Phase]]] = []
        for seed in seeds or [config.train.seed]:
            folder = storage.join(output_dir, f"{_SEED}{seed}")
            unpruned = _plan_unpruned(config, model_dir, storage.join(folder, "unpruned"), seed, experiment)
            phases = [
                _plan_phase(folder, level, retrain, unpruned, experiment) for retrain in retrains for level in levels
            ]
            experiments.append((unpruned, phases))
        hosts.from_first(lambda: _check_output(output_dir, [phase for _, phases in experiments for phase in phases]))
        for unpruned, phases in experiments:
            outcomes += [_run_unpruned(unpruned, experiment), *map(_run_phase, phases)]
    return outcomes


def _check_output(output_dir: str, phases: Sequence[Phase]) -> None:
    """Raises UserError when `output_dir` contains phases of other options or another method."""
    for phase in phases:
        phase.check_begun()
    family = family_of(phases[0].method)
    for model_dir in _levels_in(output_dir):
        method = read_description(model_dir).get("method", "")
        if method and family_of(method) != family:
            got, expected = f"{method} in {model_dir}", f"levels of one method, {family}"
            raise UserError(f"output_dir {output_dir}", got, expected, _ELSEWHERE)


def _levels_in(output_dir: str) -> Iterator[str]:
    """The folders of all levels in an `output_dir`."""
    for seed in storage.list_dir(output_dir):
        for retrain in RETRAININGS if seed.startswith(_SEED) else ():
            folder = storage.join(output_dir, seed, retrain)
            yield from (storage.join(folder, level) for level in storage.list_dir(folder))


def _plan_phase(folder: str, level: Level, retrain: str, unpruned: Unpruned, experiment: Experiment) -> Phase:
    """The phase of one level. folder: that of the seed."""
    folder = storage.join(folder, retrain)
    previous = storage.join(folder, level.follows.name) if level.follows else unpruned.model_dir
    return Phase(
        storage.join(folder, level.name), previous, level.method, retrain, experiment.rewind_optimizer, unpruned
    )


def _run_phase(phase: Phase) -> Outcome:
    """Prunes and trains one level, unless it is done already."""
    seed = phase.unpruned.config.train.seed
    if not hosts.from_first(phase.is_done):
        check_training(phase.config())
        phase.begin()
        log.info("%s, %s, seed %d: in %s", phase.method, phase.retrain, seed, phase.model_dir)
        train(phase.config())
        hosts.wait_for_all()  # until the first process has written everything
    return read_outcome(PhaseName(phase.model_dir, seed, phase.retrain, phase.level, phase.method))


def _plan_unpruned(config: Config, model_dir: str, own_dir: str, seed: int, experiment: Experiment) -> Unpruned:
    """The run with `seed` to prune: the one in `model_dir`, which has these options, or one like it in `own_dir`."""
    # train_and_eval, because the result compares accuracies; this model_dir, because the run may have been moved
    config = config.replace(mode="train_and_eval", model_dir=model_dir)
    last_step = lengths_of(config).total
    rewind_step = _rewind_step(config, last_step, experiment)
    kept_steps = config.train.lottery_checkpoint_iters
    if config.train.seed != seed:
        if hosts.from_first(lambda: _is_pruned(model_dir)):
            expected = f"{config.train.seed} alone: {model_dir} is already pruned; networks of other seeds would not be"
            raise UserError("Seed", seed, expected, "Leave --seeds out, or prune the network before it was pruned.")
        model_dir, kept_steps = own_dir, ""
        config = config.replace(seed=seed, model_dir=own_dir)
        _check_alike(own_dir, config)
    config = config.replace(lottery_checkpoint_iters=",".join(filter(None, (kept_steps, str(rewind_step)))))
    return Unpruned(model_dir, config, last_step, rewind_step)


def _is_pruned(model_dir: str) -> bool:
    """Whether any weight of the newest checkpoint is masked; False if that is damaged, as training skips it."""
    with contextlib.suppress(reading.DamagedCheckpointError):
        masks = reading.load_masks(reading.find(model_dir))
        return masks is not None and not all(mask.all() for _, mask in leaves(masks))
    return False


def _check_alike(model_dir: str, config: Config) -> None:
    """Raises UserError when the run of a further seed, in `model_dir`, was begun with options other than `config`."""
    if not hosts.from_first(lambda: folders.steps_of_run(model_dir)):
        return
    aside = {*COMPUTING, "bigtable_instance", "lottery_checkpoint_iters"}  # data_dir replaces a Bigtable
    if changed := [text for text in changed_options(config_at(model_dir), config) if text.split()[0] not in aside]:
        got = f"one begun with other options: {', '.join(changed)}"
        raise UserError(f"Run {model_dir}", got, "the options of the run to be pruned", _ELSEWHERE)


def _run_unpruned(unpruned: Unpruned, experiment: Experiment) -> Outcome:
    """Trains the network to prune, unless that is done. Raises UserError if the rewind step has no checkpoint."""
    model_dir, seed = unpruned.model_dir, unpruned.config.train.seed
    if hosts.from_first(lambda: folders.steps_of_run(model_dir)[-1:] >= [unpruned.rewind_step]):
        _check_rewind_step(unpruned, experiment)  # before training on, which would not write this checkpoint
    if not hosts.from_first(lambda: is_done(model_dir, unpruned.last_step)):
        log.info("The run to be pruned, seed %d: in %s", seed, model_dir)
        train(unpruned.config)
        hosts.wait_for_all()
    _check_rewind_step(unpruned, experiment)
    return read_outcome(PhaseName(model_dir, seed, UNPRUNED, UNPRUNED, UNPRUNED))


def _check_rewind_step(unpruned: Unpruned, experiment: Experiment) -> None:
    saved_steps = folders.steps_of_run(unpruned.model_dir)
    if unpruned.rewind_step not in saved_steps and any(
        RETRAININGS[name].weights == "early" for name in experiment.retrains()
    ):
        expected = f"one of the checkpoints in {unpruned.model_dir}: {', '.join(map(str, saved_steps))}"
        do = f"Choose one of them, or train again with --lottery_checkpoint_iters={unpruned.rewind_step}."
        raise UserError("Rewind step", unpruned.rewind_step, expected, do)


def _rewind_step(config: Config, last_step: int, experiment: Experiment) -> int:
    """The step that retraining goes back to: by default, the one after a tenth of the original run."""
    lengths = {"rewind_to": experiment.rewind_to, "retrain_epochs": experiment.retrain_epochs}
    given = {name: length for name, length in lengths.items() if length is not None}
    if len(given) > 1:
        raise UserError(" and ".join(given), " and ".join(map(str, given.values())), "one of them", "Leave one out.")
    name, length = next(iter(given.items()), ("rewind_to", None))
    if given and all(RETRAININGS[retrain].step == "first" for retrain in experiment.retrains()):
        got = f"{length} with retrain {experiment.retrain}"
        raise UserError(name, got, "retraining that does not begin at step 0", f"Leave {name} out.")
    if length is None:
        step = last_step // 10
    elif name == "retrain_epochs":
        step = last_step - steps_of(config, name, f"{length}epochs")
    else:
        step = steps_of(config, name, length)
    if not 0 <= step < last_step:
        raise UserError(name, f"step {step}", f"one of the {last_step} steps of the run", "Change the value.")
    return step
