"""A phase of an experiment: a `model_dir` that starts from the checkpoint of a pruned network, and is trained again."""

import contextlib
import json
import logging
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from resnet_tpu import storage
from resnet_tpu.checkpoints import folders, reading
from resnet_tpu.checkpoints.meta import config_of, make_meta
from resnet_tpu.checkpoints.store import CheckpointStore
from resnet_tpu.errors import UserError
from resnet_tpu.models.arrays import Arrays, require_finite
from resnet_tpu.models.from_options import network_of
from resnet_tpu.options.config import Config
from resnet_tpu.parallel import hosts
from resnet_tpu.pruning.layers import kernels_of, maskable, masks_of
from resnet_tpu.pruning.masks import LayerKernels, Masks, are_equal, density, full_masks
from resnet_tpu.pruning.methods import Method, find_method
from resnet_tpu.pruning.retrain import RETRAININGS
from resnet_tpu.pruning.start import fresh_arrays, start_arrays
from resnet_tpu.reports.metrics import evaluation_at, read_metrics
from resnet_tpu.reports.run_curves import curves_path
from resnet_tpu.storage import checked_json
from resnet_tpu.training.maths.schedule import make_schedule
from resnet_tpu.training.photos_seen import inherit_photos

log = logging.getLogger(__name__)

_DESCRIPTION = "pruning.json"
_LOW = 1e-4
"""If the last learning rate is below this share of an earlier one, it is too low to train with. The step schedule for
ImageNet ends at 1e-3."""


@dataclass(frozen=True)
class Unpruned:
    """A run that was not pruned: its options, its last step, and the step that retraining goes back to."""

    model_dir: str
    config: Config
    last_step: int
    rewind_step: int

    def at(self, step: int) -> str:
        """The path of the checkpoint of `step`."""
        return storage.join(folders.folder_of(self.model_dir), str(step))

    def last_loss(self) -> float | None:
        """The loss of the last step, which identifies the run in any folder; None if its metrics lack it."""
        losses = {row["step"]: row.get("loss") for row in read_metrics(self.model_dir, "train")}
        return losses.get(self.last_step - 1)


def read_description(model_dir: str) -> dict[str, Any]:
    """The description that `Phase.begin` wrote in `model_dir`; empty if it is missing or damaged."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError):
        return checked_json.loads(storage.read_text(storage.join(model_dir, _DESCRIPTION)))
    return {}


@dataclass(frozen=True)
class Phase:
    """Which network is pruned, by which method, and how it is trained again."""

    model_dir: str
    previous: str  # the model_dir whose last checkpoint is pruned
    method: str
    retrain: str
    rewind_optimizer: Literal["restore", "reset"]
    unpruned: Unpruned

    @property
    def level(self) -> str:
        """The name of the level, and of its folder."""
        return self.model_dir.rsplit("/", 1)[-1]

    def config(self) -> Config:
        """The options for retraining: those of the unpruned run, with another last step and rate if needed."""
        unpruned, retraining = self.unpruned, RETRAININGS[self.retrain]
        last_step = unpruned.last_step
        if retraining.step == "last":
            last_step = reading.step_of(reading.find(self.previous)) + unpruned.last_step - unpruned.rewind_step
        rate = unpruned.config.optimizer.lottery_force_learning_rate
        if retraining.low_rate:
            rate = float(make_schedule(unpruned.config)(jnp.int32(unpruned.last_step - 1)))
        return unpruned.config.replace(
            model_dir=self.model_dir,
            mode="train_and_eval",
            train_steps=last_step,
            resnet_checkpoint="",
            lottery_checkpoint_iters="",
            lottery_force_learning_rate=rate,
        )

    def check_begun(self) -> None:
        """Raises UserError when this phase was begun with other options, or from another run."""
        begun = read_description(self.model_dir)
        asked = {name: value for name, value in self._description().items() if value is not None}
        # an unknown entry cannot differ: earlier versions wrote fewer, and the loss may be lost
        if other := {name: value for name, value in asked.items() if begun.get(name) not in (None, value)}:
            got = "one begun with " + ", ".join(f"{name} {begun[name]}" for name in other)
            expected = ", ".join(f"{name} {value}" for name, value in other.items())
            raise UserError(f"Phase {self.model_dir}", got, expected, "Give another output_dir.")

    def is_done(self) -> bool:
        """Whether this phase is complete, including its curves."""
        return is_done(self.model_dir, int(self.config().train.train_steps))

    def begin(self) -> None:
        """Writes the checkpoint to start from, unless one is there already."""
        folder = folders.folder_of(self.model_dir)
        if hosts.from_first(lambda: folders.steps_in(folder)):
            return
        if hosts.is_first():
            self._warn_of_low_rate()
        arrays, meta = self._start()  # before anything is written, because it may raise UserError
        if hosts.is_first():
            storage.make_dir(self.model_dir)
            text = json.dumps(self._description(), indent=2)
            storage.write_text(storage.join(self.model_dir, _DESCRIPTION), text)
            if RETRAININGS[self.retrain].weights != "fresh":
                inherit_photos(self.model_dir, reading.find(self.previous))
        with CheckpointStore(folder, keep=1) as checkpoints:
            checkpoints.save(int(arrays["step"]), arrays, meta)

    def _warn_of_low_rate(self) -> None:
        """Logs a warning if the last learning rate is too low to train with, as at the end of a cosine schedule."""
        schedule, step = make_schedule(self.unpruned.config), self.unpruned.rewind_step
        before, last = float(schedule(jnp.int32(step))), float(schedule(jnp.int32(self.unpruned.last_step - 1)))
        if RETRAININGS[self.retrain].low_rate and last < _LOW * before:
            log.warning(
                "%s trains at the last learning rate, %.1e, and will hardly change the weights: at step %d it was "
                "%.1e. A run with learning_rate_schedule=step ends with a higher one.",
                self.retrain, last, step, before,
            )  # fmt: skip

    def _description(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "retrain": self.retrain,
            "rewind_optimizer": self.rewind_optimizer,
            "rewind_step": self.unpruned.rewind_step,
            "last_step": self.unpruned.last_step,
            "unpruned_loss": self.unpruned.last_loss(),
        }

    def _start(self) -> tuple[Arrays, dict[str, Any]]:
        """The arrays and the description of the checkpoint that retraining starts from."""
        unpruned, retraining = self.unpruned, RETRAININGS[self.retrain]
        network = network_of(unpruned.config)
        pruned = reading.load_for(network, reading.find(self.previous))
        require_finite(pruned.arrays, f"step {pruned.step} in {self.previous}", "Prune an earlier checkpoint.")
        layers = maskable(network)
        prune = find_method(self.method, seed=unpruned.config.train.seed)
        kernels, before = kernels_of(pruned.arrays["params"], layers), masks_of(pruned.arrays, layers)
        masks = prune(kernels, before)
        self._check_removes(prune, kernels, before, masks)
        if retraining.weights == "early":
            arrays = reading.load_for(network, unpruned.at(unpruned.rewind_step)).arrays
        elif retraining.weights == "fresh":
            arrays = fresh_arrays(network, unpruned.config)
        else:
            arrays = pruned.arrays
        step = {"last": pruned.step, "early": unpruned.rewind_step, "first": 0}[retraining.step]
        arrays = start_arrays(arrays, masks, layers, step=step, rewind_optimizer=self.rewind_optimizer)
        return arrays, make_meta(self.config(), pruned.meta["class_names"], self._position(step, pruned))

    def _position(self, step: int, pruned: reading.Checkpoint) -> int:
        """The images consumed before `step`; from a checkpoint if possible, as the batch size may have changed."""
        if step == pruned.step:
            return pruned.meta["position"]
        if step in folders.steps_of_run(self.unpruned.model_dir):
            return reading.read_meta(self.unpruned.at(step))["position"]
        return step * self.unpruned.config.train.train_batch_size

    def _check_removes(self, prune: Method, kernels: LayerKernels, before: Masks, after: Masks) -> None:
        """Raises UserError if a network that was pruned before loses no weight, but an unpruned one would."""
        if self.previous != self.unpruned.model_dir or not are_equal(before, after):
            return
        whole, rng = full_masks(kernels), np.random.default_rng(0)
        # not the network's own weights: pruned ones are 0, and a method may keep weights equal to its threshold
        weights = {name: rng.standard_normal(kernel.shape) for name, kernel in kernels.items()}
        if not are_equal(before, whole) and not are_equal(prune(weights, whole), whole):
            kept = f"the {100 * density(before.values()):.3g} % that {self.previous} keeps already"
            do = "Give a lower density: density, levels and rate all count from the unpruned network."
            raise UserError("method", f"{self.method}, which removes nothing", f"fewer weights than {kept}", do)


def config_at(model_dir: str) -> Config:
    """The resolved options of the run in `model_dir`."""
    return config_of(reading.read_meta(reading.find(model_dir)))


def is_done(model_dir: str, last_step: int) -> bool:
    """Whether `model_dir` has the checkpoint and the evaluation of `last_step`, and the curves."""
    saved = last_step in folders.steps_of_run(model_dir)
    return saved and bool(evaluation_at(model_dir, last_step)) and storage.exists(curves_path(model_dir))
