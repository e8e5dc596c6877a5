"""Our model, loss and training step give the numbers of the original's own code.

The reference data (narrow networks, small images and batches, float32) record for every array its noise: how much the
original differs from itself when computed with other kernels. We may differ by 20 times that; a noise below one unit
in the last place of the array's largest value counts as that unit. The largest difference seen is 8 times the noise.

A step may begin a few float32 roundings away from the kink of a ReLU. The side of the kink that a run falls on moves
the gradients by more than all other roundings do, in the original too. So the claim is: from weights that equal the
checkpoint's except in their last bits, we reproduce all of the original's numbers within that tolerance. The
checkpoint's own bits are tried first, then a few random ones; a real fault of ours would not depend on these bits.
Logits, losses, gradients and single steps are compared in float32; several steps, each of which may meet a kink, in
float32 or float64.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.checkpoints import tf1, tf1_names
from resnet_tpu.models.arrays import Arrays
from resnet_tpu.models.from_options import create_network
from resnet_tpu.options.config import Config
from resnet_tpu.training.maths.loss import cross_entropy, l2
from resnet_tpu.training.maths.optimizer import make_optimizer
from resnet_tpu.training.maths.schedule import Constant
from resnet_tpu.training.maths.state import TrainState
from resnet_tpu.training.maths.step import make_train_step, normalize

MULTIPLE = 20
DRAWS = 8  # tries with other last bits
FULL_WIDTH = 64  # channels of the original's first convolution
NOISE_OF = {
    "grads_full.npz": "grad_samples",
    "after_full.npz": "after_samples",
    "after_momentum_full.npz": "mom_samples",
}
Values = Mapping[str, np.ndarray]
Found = dict[str, np.ndarray]  # by name in results.npz, or "FILE: VARIABLE" for arrays that are stored whole


class Case:
    """One network of the reference data, and ours for comparison."""

    def __init__(self, golden: Callable[[str], Path], name: str, *, precision: str = "float32") -> None:
        self.folder = golden(f"model/{name}")
        self.dtype = jnp.dtype(precision)
        self.meta = json.loads((self.folder / "meta.json").read_text())
        self.noise = json.loads(golden("model/noise.json").read_text())[name]
        with np.load(self.folder / "results.npz") as results, np.load(golden("model/inputs.npz")) as inputs:
            self.results = dict(results)
            self.images, self.labels = inputs["images"], inputs["labels"]
        settings = self.settings = self.meta["settings"]
        options = {name: settings[name] for name in ("momentum", "weight_decay", "label_smoothing", "bn_momentum")}
        options |= {"stem": "imagenet", "resnet_width": FULL_WIDTH // settings["width_div"], "precision": "float32"}
        config = Config().replace(**options | self.meta["upstream_params"])
        model = dataclasses.replace(config.model, precision=precision)  # the option does not allow float64
        self.network = create_network(model, num_classes=settings["num_classes"], image_size=settings["image_size"])
        self.names = tf1_names.tf_names(self.network)
        self.optimizer = make_optimizer(config.optimizer)
        self.step = make_train_step(self.network, Constant(settings["lr"]), config.optimizer)
        self.eval_logits = jax.jit(lambda *arrays: self.network.apply(*arrays, train=False)[0])
        self.train_logits = jax.jit(lambda *arrays: self.network.apply(*arrays, train=True)[0])

    def batch(self, k: int) -> dict[str, jax.Array]:
        size = self.settings["batch"]
        rows = slice(size * k, size * (k + 1))
        return {
            "image": jnp.asarray(self.images[rows]),
            "label": jnp.asarray(self.labels[rows]),
            "weight": jnp.ones(size),
        }

    def load(self, checkpoint: str, *, momentum: bool = True, seed: int | None = None) -> TrainState:
        """The state in a checkpoint of the original; a momentum that it lacks is 0.

        With a `seed`, the weights are changed at random by up to one unit in the last place.
        """
        variables = tf1.read_checkpoint(str(self.folder / self.meta[f"{checkpoint}_checkpoint"]))
        restored = tf1.from_tf1(self.network, variables)
        assert restored["step"] == self.meta[f"{checkpoint}_global_step"]
        params = restored["params"]
        if seed is not None:
            rng = np.random.default_rng(seed)
            params = jax.tree.map(lambda leaf: leaf * (1 + 2.0**-23 * rng.uniform(-1, 1, leaf.shape)), params)
        params, batch_stats, trace = jax.tree.map(
            lambda leaf: jnp.asarray(leaf, self.dtype), (params, restored["batch_stats"], restored.get("momentum"))
        )
        new = TrainState(jnp.int32(restored["step"]), params, batch_stats, self.optimizer(0.0).init(params))
        return new.with_arrays(new.to_arrays() | {"momentum": trace}) if momentum and trace is not None else new

    def run(self, state: TrainState, steps: int) -> tuple[list[TrainState], list[float]]:
        """The states after, and the losses before, a step on each of the first batches."""
        states, losses = [], []
        for k in range(steps):
            state, metrics = self.step(jax.tree.map(jnp.array, state), self.batch(k))  # donates its input
            states.append(state)
            losses.append(float(metrics["loss"]))
        return states, losses

    def forward(self, mode: str, params: Arrays, batch_stats: Arrays) -> Found:
        """Logits and losses of the first batch in the mode "eval" or "train"."""
        batch = self.batch(0)
        apply = self.eval_logits if mode == "eval" else self.train_logits
        logits = apply(params, batch_stats, normalize(batch["image"], self.network.model))
        loss = cross_entropy(logits, batch["label"], label_smoothing=self.settings["label_smoothing"]).mean()
        total = loss + self.settings["weight_decay"] * l2(params)
        return {"logits": np.asarray(logits), "cross_entropy": np.asarray(loss), "loss": np.asarray(total)}

    def variables(self, params: Arrays, batch_stats: Arrays | None = None) -> Values:
        """The arrays under the original's names, in its order; without `batch_stats`, only the trainable ones."""
        found = {}
        for name, (collection, path) in self.names.items():
            node: Any = params if collection == "params" else batch_stats
            if node is not None:
                for key in path:
                    node = node[key]
                found[name] = np.asarray(node)
        return found

    def whole(self, file: str, values: Values) -> Found:
        """Those of the arrays that the reference data store whole in `file`, if it exists."""
        path = self.folder / file
        return {f"{file}: {name}": values[name] for name in np.load(path).files} if path.exists() else {}

    def expected(self, what: str) -> np.ndarray:
        file, _, name = what.rpartition(": ")
        return np.load(self.folder / file)[name] if file else self.results[what]

    def noise_of(self, what: str) -> float:
        recorded = self.noise[NOISE_OF.get(what.partition(": ")[0], what)]
        return max(recorded["max_abs_diff"], float(np.spacing(np.float32(recorded["max_abs_value"]))))

    def beyond(self, found: Found) -> dict[str, str]:
        """The values that differ from the original by more than 20 times its noise."""
        times = {what: distance(value, self.expected(what)) / self.noise_of(what) for what, value in found.items()}
        return {what: f"{value:.1f} times the noise" for what, value in times.items() if not value <= MULTIPLE}


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """The largest absolute difference; infinite if only one of them has a NaN somewhere."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    assert a.shape == b.shape
    return float(np.max(np.where(np.isnan(a) & np.isnan(b), 0, np.nan_to_num(np.abs(a - b), nan=np.inf))))


def summary(name: str, values: Values) -> Found:
    """Samples, sum and norm of every array, as in the reference data."""
    wide = [value.astype(np.float64) for value in values.values()]
    return {
        f"{name}_samples": _samples(list(values.values())),
        f"{name}_sum": np.array([value.sum() for value in wide]),
        f"{name}_l2": np.array([np.linalg.norm(value) for value in wide]),
    }


def _samples(values: Sequence[np.ndarray]) -> np.ndarray:
    """Up to 32 evenly spaced elements of each array, padded with NaN: [len(values), 32]."""
    rows = np.full((len(values), 32), np.nan, np.float32)
    for row, value in zip(rows, values, strict=True):
        places = np.linspace(0, value.size - 1, min(value.size, 32)).astype(np.int64)
        row[: len(places)] = value.flat[places]
    return rows


Cases = Callable[[str], Case]


# ---------------------------------------------------------------------------------- what is computed, in any precision


def gradients(case: Case, start: TrainState) -> Found:
    """The gradients of the first batch: after one step from zero momentum, the momentum is the gradient."""
    (state,), _ = case.run(start, 1)
    found = case.variables(state.to_arrays()["momentum"])
    norm = np.sqrt(sum(np.square(gradient.astype(np.float64)).sum() for gradient in found.values()))
    return summary("grad", found) | case.whole("grads_full.npz", found) | {"grad_global_norm": norm}


def first_step(case: Case, start: TrainState) -> Found:
    (state,), _ = case.run(start, 1)
    return summary("after1", case.variables(state.params, state.batch_stats))


def all_steps(case: Case, start: TrainState) -> Found:
    """All steps from the start, and an evaluation after them."""
    states, losses = case.run(start, case.settings["steps"])
    state = states[-1]
    assert int(state.step) == case.meta["after_global_step"]
    values = case.variables(state.params, state.batch_stats)
    momentum = case.variables(state.to_arrays()["momentum"])
    found = summary("after", values) | case.whole("after_full.npz", values)
    found |= summary("mom", momentum) | case.whole("after_momentum_full.npz", momentum)
    evaluated = case.forward("eval", state.params, state.batch_stats)
    return {"step_losses": np.array(losses)} | found | {f"after_eval_{name}": it for name, it in evaluated.items()}


def resumed_step(case: Case, start: TrainState) -> Found:
    (state,), _ = case.run(start, 1)
    return summary("resume1", case.variables(state.params, state.batch_stats))


def resumed_losses(case: Case, start: TrainState) -> Found:
    return {"resume_losses": np.array(case.run(start, case.settings["steps"])[1])}


# ----------------------------------------------------------------------------------------------------------- comparing


@contextlib.contextmanager
def computing_in(precision: str) -> Iterator[None]:
    """With float64, computes in it wherever the package says float32."""
    if precision == "float32":
        yield
        return
    with jax.enable_x64(True), pytest.MonkeyPatch.context() as patch:
        patch.setattr(jnp, "float32", jnp.float64)
        yield


def assert_is_the_originals(
    compute: Callable[[Case, TrainState], Found], cases: Cases, *precisions: str, start: str, momentum: bool = True
) -> None:
    """Checks the rule at the top of this file."""
    tried = {}
    for seed, precision in itertools.product((None, *range(DRAWS)), precisions):
        with computing_in(precision):
            case = cases(precision)
            beyond = case.beyond(compute(case, case.load(start, momentum=momentum, seed=seed)))
        if not beyond:
            return
        tried[f"{precision}, {'the same bits' if seed is None else f'other bits {seed}'}"] = beyond
    pytest.fail("\n".join(f"{way}: {beyond}" for way, beyond in tried.items()))


@pytest.fixture(scope="module")
def step_cases(golden: Callable[[str], Path], golden_step: str) -> Cases:
    """The network in float32 or float64, created once on first use."""
    return functools.cache(lambda precision: Case(golden, golden_step, precision=precision))


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_logits_and_loss(golden: Callable[[str], Path], golden_case: str, mode: str) -> None:
    case = Case(golden, golden_case)
    start = case.load("start")
    found = case.forward(mode, start.params, start.batch_stats)
    assert case.beyond({f"{mode}_{name}": value for name, value in found.items()}) == {}


def test_gradients(step_cases: Cases) -> None:
    assert_is_the_originals(gradients, step_cases, "float32", start="start", momentum=False)


def test_first_step(step_cases: Cases) -> None:
    assert_is_the_originals(first_step, step_cases, "float32", start="start")
    if step_cases("float32").meta["after_checkpoint"]:  # a run of the original is resumed here
        assert_is_the_originals(resumed_step, step_cases, "float32", start="after")


def test_all_steps_and_evaluation_after_them(step_cases: Cases) -> None:
    assert_is_the_originals(all_steps, step_cases, "float32", "float64", start="start")
    if step_cases("float32").meta["after_checkpoint"]:
        assert_is_the_originals(resumed_losses, step_cases, "float32", "float64", start="after")
