"""A compacted network has fewer filters and the same logits, and works like any other network."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu import cli
from resnet_tpu.checkpoints import reading
from resnet_tpu.checkpoints.meta import make_meta
from resnet_tpu.checkpoints.reading import Checkpoint
from resnet_tpu.checkpoints.writing import write_model_dir
from resnet_tpu.errors import UserError
from resnet_tpu.models.arrays import Arrays, leaves
from resnet_tpu.models.from_options import network_of
from resnet_tpu.options.config import Config
from resnet_tpu.pruning.compact import compact
from resnet_tpu.pruning.filters import remove_filters
from resnet_tpu.pruning.layers import kernels_of, maskable
from resnet_tpu.pruning.masks import Masks, full_masks
from resnet_tpu.pruning.methods import find_method
from resnet_tpu.pruning.start import start_arrays

TINY = {"resnet_depth": 20, "resnet_width": 4, "image_size": 12, "num_label_classes": 5, "precision": "float32"}
EVERY_OTHER = dict.fromkeys(range(2, 20, 2), 0.4)
"""The fraction of filters to remove from each inner convolution of a ResNet-20."""


def configured(**options: Any) -> Config:
    return Config().replace(**(TINY | options))


def draw(config: Config) -> Arrays:
    """Random checkpoint arrays, with statistics unlike those of a new network, so that empty channels are not 0."""
    rng = np.random.default_rng(0)
    network = network_of(config)

    def drawn(path: Any, leaf: Any) -> np.ndarray:
        values = rng.standard_normal(leaf.shape, np.float32)
        kinds = {"kernel": 0.1, "scale": 0.3, "var": 0.2}
        name = path[-1].key
        return (1 if name in ("scale", "var") else 0) + np.float32(kinds.get(name, 0.5)) * np.clip(values, -3, 3)

    params, batch_stats = jax.tree_util.tree_map_with_path(drawn, network.shapes())
    momentum = jax.tree.map(np.ones_like, params)
    arrays = {"step": np.int32(7), "params": params, "batch_stats": batch_stats, "momentum": momentum}
    if config.optimizer.moving_average_decay:
        params, batch_stats = jax.tree_util.tree_map_with_path(drawn, network.shapes())
        arrays["ema"] = {"params": params, "batch_stats": batch_stats}
    return arrays


def pruned(config: Config, arrays: Arrays, masks: Masks) -> Checkpoint:
    arrays = start_arrays(arrays, masks, maskable(network_of(config)), step=7, rewind_optimizer="restore")
    return Checkpoint(7, arrays, make_meta(config, None, 0))


def without_filters(config: Config, fractions: dict[int, float]) -> Checkpoint:
    arrays = draw(config)
    weights = kernels_of(arrays["params"], maskable(network_of(config)))
    return pruned(config, arrays, remove_filters(weights, full_masks(weights), fractions, 1))


def logits(config: Config, arrays: Arrays) -> np.ndarray:
    network = network_of(config)
    side = config.data.image_size
    images = np.random.default_rng(1).standard_normal((3, side, side, 3), np.float32)
    apply = jax.jit(lambda *given: network.apply(*given, train=False)[0])
    return np.asarray(apply(arrays["params"], arrays["batch_stats"], jnp.asarray(images)))


def assert_same_logits(config: Config, arrays: Arrays, checkpoint: Checkpoint) -> None:
    expected = logits(Config().replace(**checkpoint.meta["config"]), checkpoint.arrays)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(logits(config, arrays), expected, atol=1e-5 * np.abs(expected).max())


def channels(config: Config) -> list[int]:
    return [int(part) for part in config.model.inner_channels.split(",")]


@pytest.mark.parametrize(
    ("options", "fractions"),
    [
        ({}, EVERY_OTHER | {8: 1.0}),
        ({"resnet_depth": 18, "image_size": 40, "stem": "imagenet", "pre_activation": True}, {2: 0.5, 6: 0.5, 12: 0.3}),
        pytest.param(
            {"resnet_depth": 50, "resnetd_shortcut": True, "se_ratio": 0.25},
            {number: 0.5 for number in range(2, 50) if number % 3 != 1},
            marks=pytest.mark.long,
        ),
    ],
)
def test_logits_are_the_same(options: dict[str, Any], fractions: dict[int, float]) -> None:
    checkpoint = without_filters(configured(**options), fractions)
    config, arrays = compact(checkpoint)
    assert_same_logits(config, arrays, checkpoint)
    assert "masks" not in arrays
    shapes = dict(leaves(network_of(config).shapes()[0]))
    for tree in (arrays["params"], arrays["momentum"]):
        assert {name: leaf.shape for name, leaf in leaves(tree)} == {n: leaf.shape for n, leaf in shapes.items()}


@pytest.mark.long
@pytest.mark.parametrize(("depth", "method"), [(56, "prune_resnet56_B_3"), (34, "prune_resnet34_A_2")])
def test_tables_of_the_paper(depth: int, method: str) -> None:
    config = configured(resnet_depth=depth, resnet_width=10, image_size=32 if depth == 56 else 64)
    arrays = draw(config)
    weights = kernels_of(arrays["params"], maskable(network_of(config)))
    checkpoint = pruned(config, arrays, find_method(method)(weights, full_masks(weights)))
    narrowed, compacted = compact(checkpoint)
    assert_same_logits(narrowed, compacted, checkpoint)
    masks = dict(leaves(checkpoint.arrays["masks"]))
    inner = [mask for name, mask in masks.items() if name.endswith("conv1/conv/kernel")]
    live = [int(mask.any((0, 1, 2)).sum()) for mask in inner]
    # one channel more than the filters left, for the constants of the removed ones
    ours = [leaf.shape[3] for name, leaf in leaves(compacted["params"]) if name.endswith("conv1/conv/kernel")]
    assert [now - left for now, left in zip(ours, live, strict=True)] == [int(not mask.all()) for mask in inner]
    assert sorted(channels(narrowed)) == sorted(ours)


@pytest.mark.parametrize("factor", [3, 4])
def test_widths_of_a_multiple(factor: int) -> None:
    checkpoint = without_filters(configured(), {2: 0.5, 8: 0.75, 14: 0.5, 18: 0.9})
    (alone, _), (config, arrays) = compact(checkpoint), compact(checkpoint, multiple_of=factor)
    before = [4, 4, 4, 8, 8, 8, 16, 16, 16]
    rounded = [-(-width // factor) * factor for width in channels(alone)]
    assert channels(config) == [min(pair) for pair in zip(rounded, before, strict=True)]
    assert_same_logits(config, arrays, checkpoint)
    for path, bias in leaves(arrays["params"]):
        if path.endswith("conv1/norm/bias"):
            scale = dict(leaves(arrays["params"]))[path.replace("bias", "scale")]
            assert bias[scale == 0].sum() == (scale == 0).any()  # one constant; the others are 0 and stay 0
    with pytest.raises(UserError, match=r"got too few filters masked as a whole, .* Lower multiple_of, or choose"):
        compact(checkpoint, multiple_of=16)


@pytest.mark.long
def test_both_inner_convolutions_of_a_bottleneck_become_a_multiple() -> None:
    checkpoint = without_filters(
        configured(resnet_depth=50), {number: 0.6 for number in range(2, 50) if number % 3 != 1}
    )
    (alone, _), (config, arrays) = compact(checkpoint), compact(checkpoint, multiple_of=4)
    assert channels(config) == [-(-width // 4) * 4 for width in channels(alone)]
    assert channels(config)[-6:] == [16] * 6
    assert "masks" not in arrays
    assert_same_logits(config, arrays, checkpoint)


def test_channels_without_a_constant_leave_nothing() -> None:
    config = configured()
    checkpoint = without_filters(config, EVERY_OTHER)
    for group in ("group1", "group2", "group3"):
        for block in checkpoint.arrays["params"][group].values():
            block["conv1"]["norm"]["bias"] -= 100  # so nothing gets through the ReLU
    narrowed, arrays = compact(checkpoint)
    for path, leaf in leaves(arrays["params"]):
        if path.endswith("conv1/conv/kernel"):
            assert np.abs(leaf).sum((0, 1, 2)).all()
    kept = [mask.any((0, 1, 2)).sum() for name, mask in leaves(checkpoint.arrays["masks"]) if "conv1" in name]
    assert channels(narrowed) == kept


def test_a_convolution_without_filters_and_constants_keeps_a_channel() -> None:
    checkpoint = without_filters(configured(), {8: 1.0})
    checkpoint.arrays["params"]["group2"]["block1"]["conv1"]["norm"]["bias"] -= 100  # nothing gets through the ReLU
    config, arrays = compact(checkpoint)
    assert channels(config) == [4, 4, 4, 1, 8, 8, 16, 16, 16]
    assert_same_logits(config, arrays, checkpoint)


def test_averages_are_narrowed_with_constants_of_their_own() -> None:
    config = configured(moving_average_decay=0.9, bn_momentum=0.0)
    checkpoint = without_filters(config, EVERY_OTHER)
    narrowed, arrays = compact(checkpoint)
    expected = logits(config, checkpoint.arrays["ema"])
    np.testing.assert_allclose(logits(narrowed, arrays["ema"]), expected, atol=1e-5 * np.abs(expected).max())
    assert_same_logits(narrowed, arrays, checkpoint)
    for tree in ("params", "batch_stats"):
        assert jax.tree.map(np.shape, arrays["ema"][tree]) == jax.tree.map(np.shape, arrays[tree])


def test_masks_that_remove_more_stay() -> None:
    config = configured()
    checkpoint = without_filters(config, {2: 0.5})
    checkpoint.arrays["masks"]["group3"]["block1"]["conv2"]["conv"]["kernel"][0, 0] = False
    narrowed, arrays = compact(checkpoint)
    assert not arrays["masks"]["group3"]["block1"]["conv2"]["conv"]["kernel"][0, 0].any()
    for name, mask in leaves(arrays["masks"]):
        assert mask.shape == dict(leaves(arrays["params"]))[name].shape
    with pytest.raises(UserError, match="too few filters masked as a whole"):
        compact(Checkpoint(7, arrays, make_meta(narrowed, None, 0)))


def test_what_cannot_be_compacted() -> None:
    config = configured()
    arrays = draw(config)
    weights = kernels_of(arrays["params"], maskable(network_of(config)))
    with pytest.raises(UserError, match="no masks, expected one that was pruned by whole filters"):
        compact(Checkpoint(7, arrays, make_meta(config, None, 0)))
    single = find_method("prune_all_to_global_50")(weights, full_masks(weights))
    with pytest.raises(UserError, match=r"too few filters masked as a whole.*Choose a method that removes filters"):
        compact(pruned(config, arrays, single))
    evonorm = configured(pre_activation=True, norm_act_layer="evonorm_b0")
    with pytest.raises(UserError, match="norm_act_layer: got evonorm_b0"):
        compact(Checkpoint(7, arrays, make_meta(evonorm, None, 0)))


@pytest.mark.long
def test_every_verb_takes_what_compact_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = {"data_dir": "synthetic", "num_train_images": 16, "num_eval_images": 16, "train_batch_size": 8}
    config = configured(**own, eval_batch_size=16, train_steps=9, steps_per_eval=2, num_cores=1)
    checkpoint = without_filters(config, EVERY_OTHER)
    write_model_dir(str(tmp_path / "pruned"), config, checkpoint.arrays, None)
    assert cli.main(["compact", str(tmp_path / "pruned"), str(tmp_path / "small")]) == 0
    shown = capsys.readouterr().out
    assert "parameters" in shown and "no logit moved by more than" in shown
    before = dict(leaves(reading.stored_shapes(reading.find(str(tmp_path / "small")))["params"]))
    assert cli.main(["eval", str(tmp_path / "small"), "--num_cores=1"]) == 0
    line = [f"--{name}={value}" for name, value in (TINY | own).items()]
    train = ["train", *line, "--num_cores=1", "--mode=train"]
    assert cli.main([*train, "--train_steps=7", f"--model_dir={tmp_path / 'small'}"]) == 0  # nothing left to train
    assert (
        cli.main([*train, "--train_steps=1", f"--model_dir={tmp_path / 'new'}", f"--init_from={tmp_path / 'small'}"])
        == 0
    )
    trained = reading.load_all(reading.find(str(tmp_path / "new"))).arrays["params"]
    assert {name: leaf.shape for name, leaf in leaves(trained)} == {name: leaf.shape for name, leaf in before.items()}
    capsys.readouterr()
    assert cli.main(["convert", str(tmp_path / "small"), str(tmp_path / "x.safetensors")]) == 2
    assert "a compacted network" in capsys.readouterr().err
    assert cli.main(["compact", str(tmp_path / "pruned"), str(tmp_path / "small")]) == 2
