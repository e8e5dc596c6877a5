"""Worker processes that fill the rows of a batch."""

import queue
from multiprocessing.connection import Connection

import cv2
import numpy as np

from resnet_tpu.data.loader.filling import Chunk, RowFiller
from resnet_tpu.data.loader.memory import SharedMemory
from resnet_tpu.data.loader.slots import Layout, Slot, Slots, map_slot
from resnet_tpu.errors import UserError
from resnet_tpu.system.processes import Crew, outcome_of


class FillerProcesses:
    """A `FillChunk` that hands chunks to worker processes; as many threads as processes can call it at once."""

    def __init__(self, filler: RowFiller, slots: Slots, count: int) -> None:
        self._crew = Crew(count, _serve, (filler, slots.shared, slots.layout))
        self._idle: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        for connection in self._crew.connections:
            self._idle.put(connection)

    def __call__(self, chunk: Chunk, slot: Slot) -> list[str]:
        connection = self._idle.get()
        try:
            connection.send((chunk, slot.number))
            outcome = connection.recv()
        except (EOFError, OSError):
            do = "Start again: training resumes from its last checkpoint. If memory is short, lower num_parallel_calls."
            got = "a worker process that was killed or crashed"
            raise UserError("Decoding images", got, "all of them to keep running", do) from None
        finally:
            self._idle.put(connection)  # even a dead one, so that no other thread waits for it
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def close(self) -> None:
        """Ends the processes; threads waiting for one get a UserError."""
        self._crew.close()


def _serve(connection: Connection, filler: RowFiller, shared: SharedMemory, layout: Layout) -> None:
    cv2.setNumThreads(1)
    slots: dict[int, Slot] = {}
    while True:
        chunk, number = connection.recv()
        if number not in slots:
            slots[number] = Slot(number, layout.view(np.frombuffer(map_slot(shared, layout, number), np.uint8)))
        connection.send(outcome_of(filler.fill, chunk, slots[number]))
