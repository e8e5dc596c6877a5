"""The mesh: which devices it holds."""

from unittest.mock import Mock

import jax
import pytest

from resnet_tpu.errors import UserError
from resnet_tpu.parallel import meshes


@pytest.mark.parametrize(("asked", "devices"), [(None, 8), (3, 3), (100, 8)])
def test_the_mesh_holds_at_most_the_devices_asked_for(asked: int | None, devices: int) -> None:
    assert meshes.make_mesh(asked).devices.shape == (devices,)


def test_every_process_has_the_same_number_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    one, *others = jax.devices()
    found = [Mock(process_index=0, id=one.id), *(Mock(process_index=1, id=device.id) for device in others)]
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "devices", lambda: found)
    monkeypatch.setattr(meshes, "mesh_of", list)
    expected = r"Devices: got 1 in process 0, {} in process 1, expected the same number .*\. Use num_cores=2\."
    for asked, there in ((None, 7), (8, 7), (6, 3)):
        with pytest.raises(UserError, match=expected.format(there)):
            meshes.make_mesh(asked)
    assert meshes.make_mesh(2) == found[:2]


def test_devices_add_up() -> None:
    assert meshes.add_up(meshes.make_mesh(3)) == 3
