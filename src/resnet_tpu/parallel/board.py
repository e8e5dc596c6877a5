"""A board on which each process pins notes for the others: the key-value store of `jax.distributed`.

Orbax uses the store too, and it has no public name. It ends with process 0.
"""

from typing import Any

_ROOT = "resnet_tpu"


class Board:
    """The board, seen from process `index`. Every call raises what JAX raises once the store is lost."""

    def __init__(self, index: int) -> None:
        from jax._src.distributed import global_state

        self._index = index
        self._client: Any = global_state.client

    def pin(self, topic: str, note: str) -> None:
        """Pins this process's note on a topic, in place of an earlier one."""
        self._client.key_value_set(f"{_ROOT}/{topic}/{self._index}", note, allow_overwrite=True)

    def take_down(self, topic: str) -> None:
        """Removes this process's note on a topic, if there is one."""
        self._client.key_value_delete(f"{_ROOT}/{topic}/{self._index}")

    def notes(self, topic: str) -> dict[int, str]:
        """The notes on a topic so far, by process."""
        entries = self._client.key_value_dir_get(f"{_ROOT}/{topic}/")
        return {int(key.rpartition("/")[2]): note for key, note in entries}

    def wait_for(self, topic: str, index: int, timeout_secs: float) -> str:
        """The note of process `index` on a topic, as soon as it is there."""
        return self._client.blocking_key_value_get(f"{_ROOT}/{topic}/{index}", max(1, int(1000 * timeout_secs)))
