"""Masked arrays are restored bit for bit, and only the values that the masks keep are stored."""

import math
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import numpy as np
import pytest

from resnet_tpu.checkpoints import checksums, reading
from resnet_tpu.checkpoints.reading import DamagedCheckpointError
from resnet_tpu.checkpoints.store import CheckpointStore
from resnet_tpu.models.arrays import Arrays, leaves

SHAPE = (3, 3, 37, 41)
KEPT = 0.1


def draw() -> Arrays:
    rng = np.random.default_rng(0)
    mask = rng.random(SHAPE) < KEPT
    whole = rng.random((41, 7)) < 2

    def values() -> Arrays:
        kernel = np.where(mask, rng.standard_normal(SHAPE, np.float32), np.float32(0))
        dense = {"kernel": rng.standard_normal((41, 7), np.float32), "bias": rng.standard_normal(7, np.float32)}
        return {"stem": {"conv": {"kernel": kernel}, "norm": {"scale": np.ones(41, np.float32)}}, "dense": dense}

    return {
        "step": np.int32(5),
        "params": values(),
        "batch_stats": {"stem": {"norm": {"mean": rng.standard_normal(41, np.float32)}}},
        "momentum": values(),
        "ema": {"params": values(), "batch_stats": {"stem": {"norm": {"mean": np.zeros(41, np.float32)}}}},
        "masks": {"stem": {"conv": {"kernel": mask}}, "dense": {"kernel": whole}},
    }


def save(folder: Path, arrays: Arrays) -> str:
    with CheckpointStore(str(folder), keep=1) as checkpoints:
        checkpoints.save(5, jax.tree.map(jax.numpy.asarray, arrays), {"config": {}})
    return str(folder / "5")


def assert_same_bits(found: Arrays, expected: Arrays) -> None:
    ours, theirs = (dict(leaves(arrays)) for arrays in (found, expected))
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert array.dtype == theirs[name].dtype, name
        assert np.asarray(array).tobytes() == theirs[name].tobytes(), name


def test_everything_comes_back_bit_for_bit(tmp_path: Path) -> None:
    arrays = draw()
    path = save(tmp_path, arrays)
    checkpoint = reading.load_all(path)
    assert_same_bits(checkpoint.arrays, arrays)
    assert checkpoint.meta == reading.read_meta(path) == {"config": {}}
    described = {name: (tuple(leaf.shape), leaf.dtype) for name, leaf in leaves(reading.stored_shapes(path))}
    assert described == {name: (array.shape, array.dtype) for name, array in leaves(arrays)}


@pytest.mark.parametrize("name", ["params", "momentum", "ema", "masks"])
def test_one_collection_alone(name: str, tmp_path: Path) -> None:
    arrays = draw()
    found = reading.load_all(save(tmp_path, arrays), (name,)).arrays
    assert_same_bits(found, {name: arrays[name]})


def test_files_are_checked_once_for_the_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = draw()
    path = save(tmp_path, arrays)
    monkeypatch.setattr(checksums, "check", check := Mock(wraps=checksums.check))
    masks = reading.load_masks(path)
    assert masks is not None
    assert_same_bits(masks, arrays["masks"])
    assert [call.args for call in check.call_args_list] == [(path, name) for name in ("arrays", "sparse", "meta")]


def test_arrays_are_restored_to_the_requested_devices(tmp_path: Path) -> None:
    arrays = draw()
    mesh = jax.make_mesh((2,), ("batch",), devices=jax.devices()[:2])
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere), arrays)
    found = reading.load(save(tmp_path, arrays), {"params": shapes["params"]}).arrays
    assert_same_bits(found, {"params": arrays["params"]})
    assert {leaf.sharding for leaf in jax.tree.leaves(found)} == {everywhere}


@pytest.mark.parametrize("value", [np.float32(-0.0), np.float32(1e-30), np.float32(np.nan)])
def test_what_is_masked_but_not_zero_is_not_lost(value: Any, tmp_path: Path) -> None:
    arrays = draw()
    kernel, mask = arrays["params"]["stem"]["conv"]["kernel"], arrays["masks"]["stem"]["conv"]["kernel"]
    kernel[tuple(np.argwhere(~mask)[0])] = value
    assert_same_bits(reading.load_all(save(tmp_path, arrays)).arrays, arrays)


def test_a_layer_of_which_nothing_is_kept(tmp_path: Path) -> None:
    arrays = draw()
    before = reading.stored_bytes(save(tmp_path / "before", arrays))
    arrays["masks"]["dense"]["kernel"][:] = False
    for place in (arrays["params"], arrays["momentum"], arrays["ema"]["params"]):
        place["dense"]["kernel"][:] = 0
    path = save(tmp_path / "after", arrays)
    assert_same_bits(reading.load_all(path).arrays, arrays)
    assert before - reading.stored_bytes(path) == 3 * 4 * (41 * 7 - 1)


def test_only_what_is_kept_is_stored_and_a_bit_for_each_weight_of_a_mask(tmp_path: Path) -> None:
    arrays = draw()
    masks = dict(leaves(arrays["masks"]))
    dense = sum(array.nbytes for name, array in leaves(arrays) if not name.startswith("masks"))
    removed = sum(np.count_nonzero(~mask) for mask in masks.values())
    bits = sum(math.ceil(mask.size / 8) for mask in masks.values())
    assert reading.stored_bytes(save(tmp_path, arrays)) == dense - 3 * 4 * removed + bits


def test_masks_that_do_not_fit_are_damage(tmp_path: Path) -> None:
    path = save(tmp_path, draw())
    text = (tmp_path / "5" / "sparse" / "data.json").read_text()
    assert "masks/stem/conv/kernel" in text
    (tmp_path / "5" / "sparse" / "data.json").write_text(text.replace("37", "36"))
    with pytest.raises(DamagedCheckpointError):
        reading.load_all(path)
