"""Fetches the metrics of steps that are still running on the devices, without stalling them."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from resnet_tpu.parallel import placement


def steps_ahead(mesh: Mesh) -> int:
    """How many steps the host may be ahead of the devices.

    Enough for the devices never to wait for Python, but not so many that batches fill their memory. 0 for several
    virtual CPU devices, which deadlock when several collectives are in flight.
    """
    return 0 if mesh.devices.size > 1 and mesh.devices.flat[0].platform == "cpu" else 4


class StepsInFlight:
    """The dispatched steps, the oldest first."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, Mapping[str, jax.Array]]] = deque()

    def add(self, step: int, metrics: Mapping[str, jax.Array]) -> None:
        """Records a step just dispatched; its metrics are copied to the host as soon as they are computed."""
        for value in metrics.values():
            value.copy_to_host_async()
        self._steps.append((step, metrics))

    def ended(self, keep: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields every step except the newest `keep`, with its metrics, once it has ended."""
        while len(self._steps) > keep:
            step, metrics = self._steps.popleft()
            yield step, {name: placement.gather(value) for name, value in metrics.items()}


def paced(steps: Iterable[Mapping[str, jax.Array]], keep: int) -> Iterator[dict[str, Any]]:
    """Dispatches steps and yields their metrics in order; dispatches none while more than `keep` are unfinished.

    keep: see `steps_ahead`. With several processes, every one must iterate over all of it.
    """
    flight = StepsInFlight()
    for step, outputs in enumerate(steps):
        flight.add(step, outputs)
        yield from (metrics for _, metrics in flight.ended(keep))
    yield from (metrics for _, metrics in flight.ended(0))
