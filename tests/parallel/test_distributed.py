"""Devices: the mesh, dividing the batch, and prefetching to devices."""

from pathlib import Path
from unittest.mock import Mock

import jax
import numpy as np
import pytest

from resnet_tpu import storage
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import Config
from resnet_tpu.parallel import distributed


def test_compiled_steps_are_cached_in_the_default_or_the_given_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = [getattr(jax.config, name) for name in names]
    try:
        distributed.start_jax(use_tpu=False)
        assert [getattr(jax.config, name) for name in names] == before
        jax.config.update(names[0], None)
        (tmp_path / "file").touch()
        with monkeypatch.context() as patch:  # a folder that JAX would warn about
            patch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
            distributed.start_jax(use_tpu=False)
        assert getattr(jax.config, names[0]) is None
        distributed.start_jax(use_tpu=False)
        assert [getattr(jax.config, name) for name in names] == [f"{storage.cache_dir()}/xla", 0.5]
        assert storage.cache_dir().startswith(str(tmp_path))
    finally:
        for name, value in zip(names, before, strict=True):
            jax.config.update(name, value)


@pytest.mark.parametrize(("asked", "devices"), [(None, 8), (3, 3), (100, 8)])
def test_the_mesh_holds_at_most_the_devices_asked_for(asked: int | None, devices: int) -> None:
    assert distributed.make_mesh(asked).devices.shape == (devices,)


def test_every_process_has_the_same_number_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    one, *others = jax.devices()
    found = [Mock(process_index=0, id=one.id), *(Mock(process_index=1, id=device.id) for device in others)]
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "devices", lambda: found)
    monkeypatch.setattr(distributed, "mesh_of", list)
    expected = r"Devices: got 1 in process 0, {} in process 1, expected the same number .*\. Use num_cores=2\."
    for asked, there in ((None, 7), (8, 7), (6, 3)):
        with pytest.raises(UserError, match=expected.format(there)):
            distributed.make_mesh(asked)
    assert distributed.make_mesh(2) == found[:2]


def test_devices_add_up() -> None:
    assert distributed.add_up(distributed.make_mesh(3)) == 3


def test_a_batch_is_cut_along_its_first_axis() -> None:
    mesh = distributed.make_mesh()
    batch = distributed.put_batch({"image": np.arange(16 * 3).reshape(16, 3)}, mesh)["image"]
    assert {shard.data.shape for shard in batch.addressable_shards} == {(2, 3)}
    np.testing.assert_array_equal(batch, np.arange(16 * 3).reshape(16, 3))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10])
def test_prefetching_changes_neither_order_nor_number(count: int) -> None:
    batches = [{"label": np.full(8, number, np.int32)} for number in range(count)]
    found = list(distributed.prefetch(iter(batches), distributed.make_mesh()))
    assert [int(batch["label"][0]) for batch in found] == list(range(count))
    assert all(isinstance(batch["label"], jax.Array) for batch in found)


@pytest.mark.parametrize(("batch_size", "choice"), [(20, r"Use 16 or 24\."), (3, r"Use 8\."), (9, r"Use 8 or 16\.")])
def test_a_batch_that_does_not_divide_is_refused_with_one_that_does(batch_size: int, choice: str) -> None:
    with pytest.raises(
        UserError, match=rf"train_batch_size: got {batch_size}, .* multiple of the 8 devices\. {choice}"
    ):
        distributed.check_batch_divides(Config().replace(train_batch_size=batch_size), 8)


def test_each_part_of_a_batch_must_divide() -> None:
    expected = r"train_batch_size: got 24, .* the 8 devices times gradient_accumulation_steps=2\. Use 16 or 32\."
    with pytest.raises(UserError, match=expected):
        distributed.check_batch_divides(Config().replace(train_batch_size=24, gradient_accumulation_steps=2), 8)
