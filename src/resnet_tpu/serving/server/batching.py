"""Dynamic batching: runs images of several requests through a network together."""

import asyncio
import functools
import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import numpy as np

from resnet_tpu.serving.server.metrics import ModelMetrics
from resnet_tpu.serving.server.refusal import Refusal
from resnet_tpu.serving.server.threads import start_threads

Answer = asyncio.Future[np.ndarray]
Decode = Callable[[], np.ndarray]
"""Decodes an image file, which it holds."""


class Batcher:
    """A network with its queue. All methods are called on the event loop; the network has a thread of its own.

    Waiting images run as soon as the network is free, at most `max_batch_size` at a time. An image waits for others
    that are still being decoded, but for at most `max_wait` seconds.
    """

    def __init__(
        self,
        classify: Callable[[np.ndarray], np.ndarray],
        *,
        decoders: Executor,
        metrics: ModelMetrics,
        max_batch_size: int,
        max_wait: float,
        max_queue: int,
        batch_sizes: Sequence[int] = (),
    ) -> None:
        """classify: images uint8 [n, s, s, 3] -> logits [n, classes]. batch_sizes: the values of n that it is called
        with, ascending; batches are padded with zeros to one of them. Empty: any n up to max_batch_size. Raises
        UserError when the system refuses the network's thread.
        """
        self._classify, self._decoders, self._metrics = classify, decoders, metrics
        self._max_batch_size, self._max_wait, self._max_queue = max_batch_size, max_wait, max_queue
        self._batch_sizes = batch_sizes
        self._runner = start_threads(1, "run")
        self._num_decoding = 0
        self._waiting: dict[Answer, tuple[np.ndarray, float]] = {}  # in order, with the time when the image was decoded
        self._is_running = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def queue_length(self) -> int:
        """Images that are being decoded or wait for the network."""
        return self._num_decoding + len(self._waiting)

    def submit(self, decodes: Sequence[Decode]) -> list[Answer]:
        """Futures of the logits [classes] of the images that these functions decode, which run on decoding threads.

        Cancelling a future takes its image out of the queue. A future raises what its function raises. Raises Refusal
        (503) when the queue has no room for all of the images.
        """
        count = len(decodes)
        if self.queue_length + count > self._max_queue:
            raise Refusal(503, f"Queue: got {count} more images, expected at most {self._max_queue} to wait.")
        loop, start = asyncio.get_running_loop(), time.perf_counter()
        answers = []
        for decode in decodes:
            answer: Answer = loop.create_future()
            held = [decode]
            job = loop.run_in_executor(self._decoders, _decode, held)
            self._num_decoding += 1
            job.add_done_callback(functools.partial(self._enqueue, answer, start))
            answer.add_done_callback(functools.partial(self._drop_cancelled, job, held))
            answers.append(answer)
        return answers

    def _enqueue(self, answer: Answer, start: float, job: asyncio.Future[np.ndarray]) -> None:
        """Puts a decoded image into the queue."""
        now = time.perf_counter()
        self._num_decoding -= 1
        if not job.cancelled() and not answer.done():
            if error := job.exception():
                answer.set_exception(error)
            else:
                self._metrics.decode.observe(now - start)
                self._waiting[answer] = job.result(), now
        self._run_if_due()

    def _drop_cancelled(self, job: asyncio.Future[np.ndarray], held: list[Decode], answer: Answer) -> None:
        """Drops the work for an answer that nobody is waiting for."""
        if answer.cancelled():
            job.cancel()
            held.clear()  # the executor keeps a cancelled job until a thread is free to drop it
            self._waiting.pop(answer, None)

    def _run_if_due(self) -> None:
        """Runs the next batch if it is time."""
        if self._is_running or not self._waiting:
            return
        if self._num_decoding and len(self._waiting) < self._max_batch_size:
            _, since = next(iter(self._waiting.values()))
            wait = since + self._max_wait - time.perf_counter()
            if wait > 0:
                if self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(wait, self._on_timer)
                return
        answers = list(itertools.islice(self._waiting, self._max_batch_size))
        taken = [self._waiting.pop(answer) for answer in answers]
        now = time.perf_counter()
        for _, since in taken:
            self._metrics.queue.observe(now - since)
        self._is_running = True
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._runner, self._run, [image for image, _ in taken])
        running.add_done_callback(functools.partial(self._finish, answers))

    def _on_timer(self) -> None:
        self._timer = None
        self._run_if_due()

    def _finish(self, answers: Sequence[Answer], done: asyncio.Future[np.ndarray]) -> None:
        self._is_running = False
        self._run_if_due()  # first, so that the network does not wait while answers are delivered
        error = done.exception()
        for index, answer in enumerate(answers):
            if answer.done():  # cancelled
                continue
            if error:
                answer.set_exception(error)
            else:
                answer.set_result(done.result()[index])

    def _run(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """The logits [n, classes]. Runs on the network's thread."""
        start = time.perf_counter()
        count = len(images)
        size = next((size for size in self._batch_sizes if size >= count), count)
        batch = np.zeros((size, *images[0].shape), np.uint8)
        np.stack(images, out=batch[:count])
        logits = self._classify(batch)[:count]
        self._metrics.run.observe(time.perf_counter() - start)
        self._metrics.batch_images.observe(count)
        return logits


def _decode(held: list[Decode]) -> np.ndarray:
    return held.pop()()
