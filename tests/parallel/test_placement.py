"""Batches on devices: cut along the first axis, and prefetched."""

import jax
import numpy as np
import pytest

from resnet_tpu.parallel import meshes, placement


def test_a_batch_is_cut_along_its_first_axis() -> None:
    mesh = meshes.make_mesh()
    batch = placement.put_batch({"image": np.arange(16 * 3).reshape(16, 3)}, mesh)["image"]
    assert {shard.data.shape for shard in batch.addressable_shards} == {(2, 3)}
    np.testing.assert_array_equal(batch, np.arange(16 * 3).reshape(16, 3))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10])
def test_prefetching_changes_neither_order_nor_number(count: int) -> None:
    batches = [{"label": np.full(8, number, np.int32)} for number in range(count)]
    found = list(placement.prefetch(iter(batches), meshes.make_mesh()))
    assert [int(batch["label"][0]) for batch in found] == list(range(count))
    assert all(isinstance(batch["label"], jax.Array) for batch in found)
