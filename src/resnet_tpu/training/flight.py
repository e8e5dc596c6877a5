"""The metrics of steps that the devices are still at, fetched without stopping them."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import jax


class StepsInFlight:
    """Steps handed over to the devices, oldest first."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, Mapping[str, jax.Array]]] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: int, metrics: Mapping[str, jax.Array]) -> None:
        """Notes a step just handed over; its metrics start for the host as soon as they are there."""
        for value in metrics.values():
            value.copy_to_host_async()
        self._steps.append((step, metrics))

    def land(self, keep: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Each step but the newest `keep`, with its metrics; waits for its end."""
        while len(self._steps) > keep:
            step, metrics = self._steps.popleft()
            yield step, jax.device_get(dict(metrics))
