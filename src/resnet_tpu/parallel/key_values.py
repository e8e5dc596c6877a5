"""The key-value store of `jax.distributed`, in which each process leaves values for the others.

It has no public name, Orbax uses it too, and it ends with process 0.
"""

from typing import Any

_ROOT = "resnet_tpu"


class KeyValueStore:
    """The store, seen from process `index`. Every call raises what JAX raises once the store is lost."""

    def __init__(self, index: int) -> None:
        from jax._src.distributed import global_state

        self._index = index
        self._client: Any = global_state.client

    def set(self, topic: str, value: str) -> None:
        """Stores this process's value on a topic, in place of an earlier one."""
        self._client.key_value_set(f"{_ROOT}/{topic}/{self._index}", value, allow_overwrite=True)

    def delete(self, topic: str) -> None:
        """Deletes this process's value on a topic, if there is one."""
        self._client.key_value_delete(f"{_ROOT}/{topic}/{self._index}")

    def values(self, topic: str) -> dict[int, str]:
        """The values on a topic so far, by process."""
        entries = self._client.key_value_dir_get(f"{_ROOT}/{topic}/")
        return {int(key.rpartition("/")[2]): value for key, value in entries}

    def wait_for(self, topic: str, index: int, timeout_secs: float) -> str:
        """The value of process `index` on a topic, as soon as it is there."""
        return self._client.blocking_key_value_get(f"{_ROOT}/{topic}/{index}", max(1, int(1000 * timeout_secs)))
