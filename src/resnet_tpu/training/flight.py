"""Metrics of steps that are still running on the devices, fetched without stalling them."""

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
        """Records a step just dispatched; its metrics are copied to the host as soon as they are computed."""
        for value in metrics.values():
            value.copy_to_host_async()
        self._steps.append((step, metrics))

    def land(self, keep: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields every step but the newest `keep`, with its metrics, once it has ended."""
        while len(self._steps) > keep:
            step, metrics = self._steps.popleft()
            yield step, jax.device_get(dict(metrics))
