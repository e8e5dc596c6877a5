"""One step: the same on one device and on eight, and with exact counts."""

import dataclasses
import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.models.arrays import Arrays
from resnet_tpu.models.from_options import create_network
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import Config, ModelConfig, OptimizerConfig
from resnet_tpu.parallel import meshes, placement
from resnet_tpu.parallel.placement import DeviceBatch
from resnet_tpu.training.maths.loss import cross_entropy, l2
from resnet_tpu.training.maths.mixing import mix
from resnet_tpu.training.maths.network import network_on
from resnet_tpu.training.maths.schedule import StepDecay, standard_boundaries
from resnet_tpu.training.maths.state import TrainState, create_state
from resnet_tpu.training.maths.step import (
    TrainStep,
    make_eval_step,
    make_output_step,
    make_train_step,
    normalize,
    train_step_of,
)

NUM_CLASSES, SIZE, BATCH = 7, 16, 16
CONFIG = Config().replace(resnet_depth=8, resnet_width=4, precision="float32", label_smoothing=0.1, weight_decay=0.01)
SCHEDULE = StepDecay(0.4, standard_boundaries(90), steps_per_epoch=10)  # the rate warms up by 0.008 per step
START = 10
LOSS_RTOL = 2e-6


@functools.cache
def make_network(*, batch_norm_groups: int = 1, precision: str = "float32") -> Network:
    """A network of one block, which has every kind of layer."""
    model = CONFIG.replace(precision=precision).model
    network = create_network(model, num_classes=NUM_CLASSES, image_size=SIZE, batch_norm_groups=batch_norm_groups)
    return dataclasses.replace(network, architecture=dataclasses.replace(network.architecture, blocks_per_group=(1,)))


@functools.cache
def make_step(config: OptimizerConfig = CONFIG.optimizer, **options: Any) -> TrainStep:
    """The compiled step of a network, shared by all tests."""
    return make_train_step(make_network(**options), SCHEDULE, config)


def make_batch(seed: int = 0, size: int = BATCH) -> DeviceBatch:
    """Noise, some images brighter than others."""
    rng = np.random.default_rng(seed)
    noise = rng.uniform(0, 256, (size, SIZE, SIZE, 3)) * rng.uniform(0, 1, (size, 1, 1, 1))
    return {
        "image": jnp.asarray(noise, jnp.uint8),
        "label": jnp.asarray(rng.integers(0, NUM_CLASSES, size), jnp.int32),
        "weight": jnp.ones(size),
    }


@functools.cache
def state_at_start(config: OptimizerConfig) -> TrainState:
    """A state in which every branch has an effect: no scale is zero, no statistic has its initial value."""
    state = create_state(make_network(), config, seed=0)
    rng = np.random.default_rng(1)
    params, batch_stats = jax.tree.map(
        lambda leaf: leaf + jnp.asarray(rng.uniform(0.1, 0.3, leaf.shape), jnp.float32) if leaf.ndim == 1 else leaf,
        (state.params, state.batch_stats),
    )
    return TrainState(jnp.int32(START), params, batch_stats, state.opt_state)


def make_state(config: OptimizerConfig = CONFIG.optimizer, *, step: int = START) -> TrainState:
    """A copy of `state_at_start`, as a step may take the memory of what it is given, that claims to be at `step`."""
    return dataclasses.replace(jax.tree.map(jnp.copy, state_at_start(config)), step=jnp.int32(step))


def train(
    batches: list[DeviceBatch], *, start: int = START, num_devices: int = 1, **options: Any
) -> tuple[TrainState, list[dict[str, float]]]:
    """The state and metrics after a step on each batch, split over `num_devices`."""
    mesh = meshes.make_mesh(num_devices)
    step = make_step(**options)
    state = placement.put_replicated(make_state(step=start), mesh)
    history = []
    for batch in batches:
        state, metrics = step(state, placement.put_batch({k: np.asarray(v) for k, v in batch.items()}, mesh))
        history.append({name: float(value) for name, value in metrics.items()})
    return state, history


def assert_close(actual: Arrays, expected: Arrays, *, rtol: float) -> None:
    """Every array differs by at most `rtol` of its largest element."""
    for (path, one), other in zip(jax.tree.leaves_with_path(actual), jax.tree.leaves(expected), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        assert np.abs(one - other).max() <= rtol * max(np.abs(other).max(), 1e-3), jax.tree_util.keystr(path)


@pytest.mark.parametrize(
    "batch_norm_groups", [pytest.param(1, id="global", marks=pytest.mark.long), pytest.param(8, id="replica")]
)
def test_eight_devices_do_what_one_does(batch_norm_groups: int) -> None:
    assert jax.device_count() == 8
    batches = [make_batch(0), make_batch(1)]
    one, metrics = train(batches, batch_norm_groups=batch_norm_groups)
    eight, metrics_of_eight = train(batches, num_devices=8, batch_norm_groups=batch_norm_groups)
    # Sums over the batch are taken in another order: some float32 roundings, 6e-8 each, in each layer.
    for name, values in (("params", one.params), ("batch_stats", one.batch_stats)):
        assert_close(getattr(eight, name), values, rtol=1e-5)
    assert_close(eight.to_arrays()["momentum"], one.to_arrays()["momentum"], rtol=1e-4)
    for row, row_of_eight in zip(metrics, metrics_of_eight, strict=True):
        assert row_of_eight == pytest.approx(row, rel=LOSS_RTOL)
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(eight))


def test_the_groups_of_batch_norm_change_the_result() -> None:
    # Shows that the test above can fail: the groups change the loss by 69 times the tolerance on its first batch, and
    # by 326 times on its second.
    results = [train([make_batch(1)], batch_norm_groups=groups)[1][0]["loss"] for groups in (1, 8)]
    assert abs(results[0] - results[1]) > 100 * LOSS_RTOL * results[0]


def test_statistics_of_a_replica_need_no_other_device() -> None:
    mesh = meshes.make_mesh(8)

    def collectives(groups: int) -> int:
        network = make_network(batch_norm_groups=groups)
        arrays = placement.put_replicated(make_state(), mesh)
        images = placement.put_batch({"image": np.asarray(make_batch()["image"])}, mesh)["image"]
        apply = jax.jit(lambda p, s, x: network.apply(p, s, normalize(x, network.model), train=True)[0])
        text = apply.lower(arrays.params, arrays.batch_stats, images).compile().as_text() or ""
        return sum(text.count(f"{name}(") for name in ("all-reduce", "all-gather", "all-to-all", "collective-permute"))

    assert collectives(1) > 0
    assert collectives(8) == 0


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain", marks=pytest.mark.long),
        pytest.param({"config": CONFIG.replace(mixup_alpha=0.4, decay_batch_norm=True).optimizer}, id="mixed"),
    ],
)
def test_metrics_and_update_are_those_of_the_formula(options: dict[str, Any]) -> None:
    network, images, state = make_network(), make_batch(), make_state()
    config = options.get("config", CONFIG.optimizer)
    mixing_key = jax.random.split(jax.random.fold_in(jax.random.key(0), START))[1]
    batch = mix(images, mixing_key, config)
    targets = ((batch["fraction"], batch["label"]), (1 - batch["fraction"], batch["partner"]))

    def loss_of(params: Arrays) -> tuple[jax.Array, jax.Array]:
        logits, _ = network.apply(params, state.batch_stats, normalize(batch["image"], network.model), train=True)
        losses = sum(share * cross_entropy(logits, label, 0.1) for share, label in targets)
        correct = sum(share * (logits.argmax(-1) == label) for share, label in targets)
        decay = 0.01 * l2(params, norms=config.decay_batch_norm)
        return jnp.mean(losses) + decay, jnp.mean(correct)

    (loss, accuracy), gradient = jax.jit(jax.value_and_grad(loss_of, has_aux=True))(state.params)
    after, (metrics,) = train([images], **options)
    expected = {"loss": float(loss), "learning_rate": 0.08, "top_1_accuracy": float(accuracy)}
    assert metrics == pytest.approx(expected, rel=1e-5)
    assert int(after.step) == START + 1
    rate = 0.08 * (1 + 0.9)  # the first step of Nesterov momentum
    assert_close(after.params, jax.tree.map(lambda p, g: p - rate * g, state.params, gradient), rtol=1e-5)


class Recorder(Network):
    """Its statistics after a step are what the step gave it: the progress, and moments of a draw with the key."""

    def apply(
        self,
        params: Arrays,
        batch_stats: Arrays,
        images: jax.Array,
        *,
        train: bool,
        key: jax.Array | None = None,
        progress: jax.Array | float = 0.0,
    ) -> tuple[jax.Array, Arrays]:
        assert key is not None
        draw = jax.random.uniform(key)
        recorded = {"progress": jnp.asarray(progress), "draw": draw, "square": draw**2}
        return jnp.zeros((len(images), self.num_classes)), recorded


@functools.cache
def recording_step(seed: int, parts: int) -> TrainStep:
    network = make_network()
    recorder = Recorder(network.model, network.architecture, NUM_CLASSES, SIZE)
    config = CONFIG.replace(gradient_accumulation_steps=parts).optimizer
    return make_train_step(recorder, SCHEDULE, config, seed=seed, total_steps=40)


def recorded(*, step: int = START, seed: int = 0, parts: int = 1) -> dict[str, float]:
    """What the step gives the network, averaged over the parts."""
    after, _ = recording_step(seed, parts)(make_state(step=step), make_batch())
    return {name: float(value) for name, value in after.batch_stats.items()}


def test_every_step_seed_and_part_draws_anew() -> None:
    first = recorded()
    assert first == recorded()
    assert first["progress"] == START / 40
    assert len({first["draw"], recorded(step=START + 1)["draw"], recorded(seed=1)["draw"]}) == 3
    parts = recorded(parts=4)
    assert parts["progress"] == START / 40
    assert parts["square"] - parts["draw"] ** 2 > 0.01  # the variance among four


def test_runs_share_a_step_unless_they_differ_in_an_option_that_changes_it() -> None:
    mesh = meshes.make_mesh(1)
    config = CONFIG.replace(
        num_train_images=32, num_label_classes=4, image_size=SIZE, train_batch_size=8, train_steps=9
    )

    def step_of(**changes: Any) -> TrainStep:
        changed = config.replace(**changes)
        return train_step_of(network_on(changed, mesh), changed, mesh)

    first = step_of()
    for unimportant in ({"model_dir": "elsewhere"}, {"save_checkpoints_steps": 2}, {"lottery_checkpoint_iters": "1"}):
        assert step_of(**unimportant) is first
    for important in (
        {"seed": 1}, {"train_steps": 8}, {"train_batch_size": 4}, {"num_train_images": 16}, {"resnet_width": 8},
        {"base_learning_rate": 1.0},
    ):  # fmt: skip
        assert step_of(**important) is not step_of()


def test_the_rate_is_the_one_of_the_step_before_the_update() -> None:
    state, metrics = train([make_batch(0), make_batch(1), make_batch(2)], start=0)
    assert [row["learning_rate"] for row in metrics] == pytest.approx([0, 0.008, 0.016], rel=1e-6)
    assert int(state.step) == 3
    first, _ = train([make_batch(0)], start=0)
    assert jax.tree.all(jax.tree.map(np.array_equal, first.params, make_state().params))  # its rate is 0


def test_bfloat16_trains_float32_parameters() -> None:
    state, metrics = train([make_batch(0)], precision="bfloat16")
    _, (exact,) = train([make_batch(0)])
    floats = [leaf for leaf in jax.tree.leaves(state) if leaf.ndim]
    assert {leaf.dtype for leaf in floats} == {np.dtype(np.float32)}
    assert all(np.isfinite(leaf).all() for leaf in floats)
    assert metrics[0]["loss"] == pytest.approx(exact["loss"], rel=0.02)  # 8 bits of precision


def test_the_same_batches_give_the_same_bits() -> None:
    runs = [train([make_batch(0), make_batch(1)])[0] for _ in range(2)]
    assert jax.tree.all(jax.tree.map(np.array_equal, *runs))


def test_the_loss_of_lars_is_without_decay() -> None:
    config = CONFIG.replace(enable_lars=True, weight_decay=0.5).optimizer
    batch, state = make_batch(), make_state(config)
    logits = jax.jit(lambda *arrays: make_network().apply(*arrays, train=True)[0])(
        state.params, state.batch_stats, normalize(batch["image"], CONFIG.model)
    )
    _, metrics = make_step(config)(state, batch)
    assert float(metrics["loss"]) == pytest.approx(float(cross_entropy(logits, batch["label"], 0.1).mean()), rel=1e-5)


def fixed_logits(logits: list[float]) -> tuple[Network, Arrays, Arrays]:
    """A network that answers `logits` whatever it sees."""
    network = make_network()
    params, batch_stats = network.init(0)
    kernel = jnp.zeros_like(params["dense"]["kernel"])
    return network, params | {"dense": {"kernel": kernel, "bias": jnp.array(logits)}}, batch_stats


def evaluate(logits: list[float], labels: list[int], weights: list[float]) -> dict[str, float]:
    network, params, batch_stats = fixed_logits(logits)
    batch = make_batch(size=len(labels)) | {"label": jnp.array(labels), "weight": jnp.array(weights)}
    sums = make_eval_step(network, CONFIG.optimizer)(params, batch_stats, batch)
    return {name: float(value) for name, value in sums.items()}


def test_evaluation_counts_by_rank() -> None:
    sums = evaluate([7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], list(range(7)), [1.0] * 7)
    assert (sums["examples"], sums["top_1"], sums["top_5"]) == (7, 1, 5)
    z = np.log(np.exp(np.arange(1, 8)).sum())
    logits = np.arange(7, 0, -1)
    by_hand = (0.9 * (z - logits) + 0.1 * (z - logits.mean())).sum()
    assert sums["cross_entropy"] == pytest.approx(by_hand, rel=1e-5)


def test_a_tie_with_the_fifth_counts_as_among_the_top_5() -> None:
    sums = evaluate([7.0, 6.0, 5.0, 4.0, 3.0, 3.0, 1.0], list(range(7)), [1.0] * 7)
    assert sums["top_5"] == 6
    assert evaluate([0.0] * 7, list(range(7)), [1.0] * 7)["top_5"] == 7


def test_padding_counts_for_nothing() -> None:
    logits = [7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    whole = evaluate(logits, [0, 1, 6], [1.0, 1.0, 1.0])
    assert evaluate(logits, [0, 1, 6, 0, 0], [1.0, 1.0, 1.0, 0.0, 0.0]) == pytest.approx(whole, rel=1e-6)


def test_an_unknown_label_is_never_right() -> None:
    sums = evaluate([0.0] * 6 + [-1.0], [-1, 6], [1.0, 1.0])
    assert sums["top_1"] == 0


@pytest.mark.parametrize("mode", ["predict", "eval"])
def test_prediction_and_evaluation_do_not_depend_on_the_rest_of_the_batch(mode: Literal["predict", "eval"]) -> None:
    network = make_network()
    state, batch = make_state(), make_batch()
    if mode == "predict":
        run = functools.partial(make_output_step(network, "probabilities"), state.params, state.batch_stats)
        probabilities = np.asarray(run(batch["image"]))
        assert probabilities.shape == (BATCH, NUM_CLASSES)
        np.testing.assert_allclose(probabilities.sum(-1), 1, rtol=1e-6)
        np.testing.assert_allclose(run(batch["image"][3:7]), probabilities[3:7], rtol=1e-4)
        return
    step = make_eval_step(network, CONFIG.optimizer)
    halves = [{name: value[part] for name, value in batch.items()} for part in (slice(0, 8), slice(8, 16))]
    parts = [step(state.params, state.batch_stats, half) for half in halves]
    total = jax.tree.map(lambda *values: float(sum(values)), *parts)
    assert {k: float(v) for k, v in step(state.params, state.batch_stats, batch).items()} == pytest.approx(
        total, rel=1e-4
    )


def test_images_are_normalised_by_the_statistics_of_imagenet() -> None:
    images = np.array([[[[0, 255, 128]]]], np.uint8)
    expected = (images - np.array([123.675, 116.28, 103.53])) / np.array([58.395, 57.12, 57.375])
    np.testing.assert_allclose(normalize(jnp.asarray(images), ModelConfig()), expected, rtol=1e-5)


def test_images_are_normalised_by_the_statistics_of_the_options() -> None:
    model = ModelConfig(mean_rgb=(0.5, 0.5, 0.5), stddev_rgb=(0.5, 0.25, 1.0))
    values = normalize(jnp.array([[[[0, 255, 255]]]], jnp.uint8), model)
    np.testing.assert_allclose(values, [[[[-1, 2, 0.5]]]], rtol=1e-6)
