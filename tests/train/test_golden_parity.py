"""Our model, loss and training step give the numbers of the original's own code.

The reference data (an eighth of the width, 64 px, batches of 4, float32) hold for every array how much the original
differs from itself when computed with other kernels: its noise. We may differ by 20 times that, where a noise below
one unit in the last place of the array's largest value counts as that unit. Seen: at most 8 times.

The later steps of some networks begin a few float32 roundings away from a kink of a ReLU. Which side of it a run is on
moves the gradients by more than all its roundings do: 20 to 160 times the noise where the last bits of the weights are
changed at random. What is compared there is our arithmetic in float64, which does not depend on such luck.
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.checkpoints import tf1, tf1_names
from resnet_tpu.config import Config
from resnet_tpu.models.arrays import Arrays
from resnet_tpu.models.network import Network
from resnet_tpu.train.loss import cross_entropy, l2
from resnet_tpu.train.optimizer import make_optimizer
from resnet_tpu.train.schedule import constant
from resnet_tpu.train.state import TrainState
from resnet_tpu.train.step import make_train_step, normalize

OPTIONS: dict[str, dict[str, Any]] = {
    "r18": {"resnet_depth": 18},
    "r34": {"resnet_depth": 34},
    "r50": {"resnet_depth": 50},
    "r101": {"resnet_depth": 101},
    "r50_preact": {"resnet_depth": 50, "pre_activation": True},
    "r50_d_se": {"resnet_depth": 50, "use_resnetd_stem": True, "resnetd_shortcut": True, "se_ratio": 0.25},
}
NEAR_A_KINK = ("r50", "r50_preact")
MULTIPLE = 20
LEARNING_RATE = 0.05
Values = Mapping[str, np.ndarray]


class Case:
    """One network of the reference data, with ours beside it."""

    def __init__(self, golden: Path, name: str, *, precision: str = "float32") -> None:
        self.folder = golden / "model" / name
        self.noise = json.loads((golden / "model/noise.json").read_text())[name]
        self.results = np.load(self.folder / "results.npz")
        inputs = np.load(golden / "model/inputs.npz")
        self.images, self.labels = inputs["images"], inputs["labels"]
        config = Config().replace(resnet_width=8, stem="imagenet", precision="float32", label_smoothing=0.1)
        config = config.replace(**OPTIONS[name])
        self.config = config.optimizer
        model = dataclasses.replace(config.model, precision=precision)  # float64 is no option
        self.network = Network.create(model, num_classes=10, image_size=64)
        self.names = tf1_names.tf_names(self.network)
        self.optimizer = make_optimizer(config.optimizer)
        self.step = make_train_step(self.network, self.optimizer, constant(LEARNING_RATE), config.optimizer)
        self.eval_logits = jax.jit(lambda *arrays: self.network.apply(*arrays, train=False)[0])
        self.train_logits = jax.jit(lambda *arrays: self.network.apply(*arrays, train=True)[0])

    def batch(self, k: int) -> dict[str, jax.Array]:
        rows = slice(4 * k, 4 * k + 4)
        return {
            "image": jnp.asarray(self.images[rows]),
            "label": jnp.asarray(self.labels[rows]),
            "weight": jnp.ones(4),
        }

    def load(self, checkpoint: str) -> tf1.Restored:
        return tf1.from_tf1(self.network, tf1.read_checkpoint(str(self.folder / checkpoint)))

    def state(self, restored: tf1.Restored, momentum: Arrays | None) -> TrainState:
        new = TrainState(
            jnp.int32(restored.global_step or 0),
            restored.params,
            restored.batch_stats,
            self.optimizer.init(restored.params),
        )
        if momentum is not None:
            new = new.with_arrays(new.to_arrays() | {"momentum": momentum})
        return jax.tree.map(jnp.array, new)  # copies, for a step reuses the memory of what it is given

    def run(self, state: TrainState) -> tuple[list[TrainState], list[float]]:
        """The states after, and the losses before, a step on each of the three batches."""
        states, losses = [], []
        for k in range(3):
            state, metrics = self.step(jax.tree.map(jnp.array, state), self.batch(k))
            states.append(state)
            losses.append(float(metrics["loss"]))
        return states, losses

    def variables(self, params: Arrays, batch_stats: Arrays | None = None) -> Values:
        """The arrays under the original's names, in its order; without `batch_stats` the trainable ones."""
        found = {}
        for name, (collection, path) in self.names.items():
            node: Any = params if collection == "params" else batch_stats
            if node is not None:
                for key in path:
                    node = node[key]
                found[name] = np.asarray(node)
        return found

    def assert_close(self, what: str, actual: Any, expected: Any = None, *, noise: str = "") -> None:
        expected = self.results[what] if expected is None else expected
        recorded = self.noise[noise or what]
        unit = max(recorded["max_abs_diff"], float(np.spacing(np.float32(recorded["max_abs_value"]))))
        difference = np.abs(np.asarray(actual, np.float64) - np.asarray(expected, np.float64))
        assert np.shape(actual) == np.shape(expected)
        assert np.nanmax(difference) <= MULTIPLE * unit, f"{what}: {np.nanmax(difference) / unit:.1f} times the noise"

    def assert_arrays_close(self, what: str, values: Values) -> None:
        """Compares samples, sum and norm of every array."""
        wide = [value.astype(np.float64) for value in values.values()]
        self.assert_close(f"{what}_samples", _samples(list(values.values())))
        self.assert_close(f"{what}_sum", [value.sum() for value in wide])
        self.assert_close(f"{what}_l2", [np.linalg.norm(value) for value in wide])

    def assert_full_arrays_close(self, file: str, values: Values, *, noise: str) -> None:
        """Compares the arrays that the reference data hold whole."""
        for name, expected in np.load(self.folder / file).items():
            self.assert_close(f"{file}: {name}", values[name], expected, noise=noise)


def _samples(values: Sequence[np.ndarray]) -> np.ndarray:
    """Up to 32 evenly spaced elements of each array, NaN where it has fewer: float32 [len(values), 32]."""
    rows = np.full((len(values), 32), np.nan, np.float32)
    for row, value in zip(rows, values, strict=True):
        places = np.linspace(0, value.size - 1, min(value.size, 32)).astype(np.int64)
        row[: len(places)] = value.flat[places]
    return rows


@pytest.fixture(scope="module", params=OPTIONS)
def case(golden: Path, request: pytest.FixtureRequest) -> Case:
    return Case(golden, request.param)


@pytest.fixture(scope="module")
def start(case: Case) -> tf1.Restored:
    return case.load("start")


@pytest.fixture(scope="module")
def run(case: Case, start: tf1.Restored) -> tuple[list[TrainState], list[float]]:
    """Three steps from the start; depth 50 has momentum there."""
    return case.run(case.state(start, start.momentum))


@contextlib.contextmanager
def in_float64() -> Iterator[None]:
    """Computes in float64 wherever the package says float32."""
    with jax.enable_x64(True), pytest.MonkeyPatch.context() as patch:
        patch.setattr(jnp, "float32", jnp.float64)
        yield


@pytest.fixture(scope="module")
def three_steps(
    golden: Path, case: Case, run: tuple[list[TrainState], list[float]]
) -> tuple[Case, list[TrainState], list[float]]:
    """The case and its three steps from the start, near a kink in float64."""
    if case.folder.name not in NEAR_A_KINK:
        return case, *run
    with in_float64():
        case = Case(golden, case.folder.name, precision="float64")
        start = case.load("start")
        state = case.state(start, start.momentum)
        wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float64) if leaf.dtype.kind == "f" else leaf, state)
        return case, *case.run(wide)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_logits_and_loss(case: Case, start: tf1.Restored, mode: str) -> None:
    forward = case.eval_logits if mode == "eval" else case.train_logits
    logits = forward(start.params, start.batch_stats, normalize(case.images[:4], case.network.model))
    case.assert_close(f"{mode}_logits", logits)
    loss = cross_entropy(logits, jnp.asarray(case.labels[:4]), label_smoothing=0.1).mean()
    case.assert_close(f"{mode}_cross_entropy", loss)
    case.assert_close(f"{mode}_loss", loss + case.config.weight_decay * l2(start.params))


def test_gradients(case: Case, start: tf1.Restored) -> None:
    # After one step from no momentum, the momentum is the gradient.
    state, _ = case.step(case.state(start, None), case.batch(0))
    gradients = case.variables(state.to_arrays()["momentum"])
    case.assert_arrays_close("grad", gradients)
    squares = sum(np.square(gradient.astype(np.float64)).sum() for gradient in gradients.values())
    case.assert_close("grad_global_norm", np.sqrt(squares))
    case.assert_full_arrays_close("grads_full.npz", gradients, noise="grad_samples")


def test_first_step(case: Case, run: tuple[list[TrainState], list[float]]) -> None:
    states, _ = run
    case.assert_arrays_close("after1", case.variables(states[0].params, states[0].batch_stats))


def test_three_steps(three_steps: tuple[Case, list[TrainState], list[float]]) -> None:
    case, states, losses = three_steps
    case.assert_close("step_losses", losses)
    assert int(states[-1].step) == int(states[0].step) + 2
    values = case.variables(states[-1].params, states[-1].batch_stats)
    momentum = case.variables(states[-1].to_arrays()["momentum"])
    case.assert_arrays_close("after", values)
    case.assert_arrays_close("mom", momentum)
    if case.folder.name != "r18":
        case.assert_full_arrays_close("after_full.npz", values, noise="after_samples")
        case.assert_full_arrays_close("after_momentum_full.npz", momentum, noise="mom_samples")


def test_evaluation_after_three_steps(three_steps: tuple[Case, list[TrainState], list[float]]) -> None:
    case, states, _ = three_steps
    state = states[-1]
    with in_float64() if case.folder.name in NEAR_A_KINK else contextlib.nullcontext():
        logits = case.eval_logits(state.params, state.batch_stats, normalize(case.images[:4], case.network.model))
        loss = cross_entropy(logits, jnp.asarray(case.labels[:4]), label_smoothing=0.1).mean()
        case.assert_close("after_eval_logits", logits)
        case.assert_close("after_eval_cross_entropy", loss)
        case.assert_close("after_eval_loss", loss + case.config.weight_decay * l2(state.params))


@pytest.mark.parametrize("case", ["r18"], indirect=True)
def test_a_run_of_the_original_resumes_here(case: Case) -> None:
    restored = case.load("after")
    assert restored.global_step == 1254
    states, losses = case.run(case.state(restored, restored.momentum))
    case.assert_close("resume_losses", losses)
    case.assert_arrays_close("resume1", case.variables(states[0].params, states[0].batch_stats))
