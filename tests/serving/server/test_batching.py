"""Which images run together, and what happens to those that do not run."""

import asyncio
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from resnet_tpu.serving.server.batching import Batcher
from resnet_tpu.serving.server.metrics import Metrics
from resnet_tpu.serving.server.refusal import Refusal

LONG = 1000.0


class Network:
    """Answers [value, value + 1] for an image filled with `value`, and records its batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.may_run = threading.Event()
        self.may_run.set()
        self.is_running = threading.Event()

    def __call__(self, images: np.ndarray) -> np.ndarray:
        self.is_running.set()
        assert self.may_run.wait(30)
        values = images[:, 0, 0, 0].astype(np.float32)
        self.batches.append(values.astype(int).tolist())
        if 99 in values:
            raise RuntimeError("99 is too much")
        return np.stack([values, values + 1], 1)


def image(value: int) -> Callable[[], np.ndarray]:
    return lambda: np.full((1, 1, 3), value, np.uint8)


def check(work: Callable[[Network, Callable[..., Batcher]], Any]) -> Network:
    """Runs `work` with a network and a function that makes a batcher for it."""
    network = Network()

    async def run() -> None:
        with ThreadPoolExecutor(4) as decoders:

            def make(**options: Any) -> Batcher:
                usual: dict[str, Any] = {"decoders": decoders, "max_batch_size": 8, "max_wait": 0.0, "max_queue": 1000}
                return Batcher(network, metrics=Metrics().of_model("m"), **{**usual, **options})

            await asyncio.wait_for(work(network, make), 60)

    asyncio.run(run())
    return network


def assert_right(values: Sequence[int], answers: Sequence[np.ndarray]) -> None:
    np.testing.assert_array_equal(np.stack(answers), [[value, value + 1] for value in values])


@pytest.mark.parametrize("sizes", [(), (1, 4, 8)])
def test_many_get_their_own_answers_in_batches_of_the_sizes_allowed(sizes: tuple[int, ...]) -> None:
    async def work(network: Network, make: Callable[..., Batcher]) -> None:
        batcher = make(batch_sizes=sizes)
        values = [index % 90 + 1 for index in range(300)]
        answers = [answer for value in values for answer in batcher.submit([image(value)])]
        assert_right(values, await asyncio.gather(*answers))
        assert batcher.queue_length == 0

    lengths = {len(batch) for batch in check(work).batches}
    assert lengths <= (set(sizes) or set(range(1, 9)))


def test_one_alone_does_not_wait() -> None:
    async def work(network: Network, make: Callable[..., Batcher]) -> None:
        assert_right([5], await asyncio.gather(*make(max_wait=LONG).submit([image(5)])))

    check(work)


@pytest.mark.parametrize(("max_wait", "batches"), [(LONG, [[1, 2]]), (0.0, [[1], [2]])])
def test_the_wait_is_for_those_being_decoded(max_wait: float, batches: list[list[int]]) -> None:
    async def work(network: Network, make: Callable[..., Batcher]) -> None:
        may_end = threading.Event()

        def slow() -> np.ndarray:
            assert may_end.wait(30)
            return image(2)()

        batcher = make(max_wait=max_wait)
        first, second = batcher.submit([image(1), slow])
        await asyncio.wait((first,), timeout=None if max_wait == 0 else 0.2)
        assert first.done() == (max_wait == 0)
        may_end.set()
        assert_right([1, 2], await asyncio.gather(first, second))

    assert check(work).batches == batches


def test_the_wait_has_an_end_every_time() -> None:
    async def work(_: Network, make: Callable[..., Batcher]) -> None:
        may_end = threading.Event()
        batcher = make(max_wait=0.01)
        (late,) = batcher.submit([lambda: [may_end.wait(30), image(3)()][1]])
        for value in (1, 2):
            assert_right([value], [await asyncio.wait_for(batcher.submit([image(value)])[0], 10)])
        may_end.set()
        assert_right([3], [await late])

    assert check(work).batches == [[1], [2], [3]]


def test_a_full_batch_does_not_wait() -> None:
    async def work(network: Network, make: Callable[..., Batcher]) -> None:
        may_end = threading.Event()
        batcher = make(max_wait=LONG, max_batch_size=2)
        *full, late = batcher.submit([image(1), image(2), lambda: [may_end.wait(30), image(3)()][1]])
        await asyncio.gather(*full)
        may_end.set()
        assert_right([3], [await late])

    assert sorted(check(work).batches[0]) == [1, 2]


def test_what_waits_while_the_network_runs_is_the_next_batch_without_those_who_left() -> None:
    async def work(network: Network, make: Callable[..., Batcher]) -> None:
        batcher = make()
        network.may_run.clear()
        first = batcher.submit([image(1)])
        await asyncio.to_thread(network.is_running.wait, 30)
        others = batcher.submit([image(value) for value in range(2, 8)])
        gathered = asyncio.gather(*others[:2])
        gathered.cancel()  # their client has left
        await asyncio.sleep(0.2)
        assert batcher.queue_length == 4
        network.may_run.set()
        assert_right([1, 4, 5, 6, 7], await asyncio.gather(*first, *others[2:]))

    network = check(work)
    assert [sorted(batch) for batch in network.batches] == [[1], [4, 5, 6, 7]]


def test_images_that_wait_leave_the_queue_with_their_client() -> None:
    async def work(network: Network, make: Callable[..., Batcher]) -> None:
        def no_image() -> np.ndarray:
            raise Refusal(400, "no image")

        network.may_run.clear()
        with ThreadPoolExecutor(1) as decoders:  # in the order given
            batcher = make(decoders=decoders)
            first = batcher.submit([image(1)])
            await asyncio.to_thread(network.is_running.wait, 30)
            left, stays, refused = batcher.submit([image(2), image(3), no_image])
            with pytest.raises(Refusal):
                await refused  # the others are decoded by then
            left.cancel()
            await asyncio.sleep(0)
            assert batcher.queue_length == 1
            network.may_run.set()
            assert_right([1, 3], await asyncio.gather(*first, stays))

    assert check(work).batches == [[1], [3]]


def test_who_leaves_while_the_network_runs_takes_no_answer_from_others() -> None:
    async def work(network: Network, make: Callable[..., Batcher]) -> None:
        network.may_run.clear()
        with ThreadPoolExecutor(1) as decoders:  # in the order given
            left, *stay = make(decoders=decoders, max_wait=LONG).submit([image(1), image(2), image(3)])
            await asyncio.to_thread(network.is_running.wait, 30)
        left.cancel()
        network.may_run.set()
        assert_right([2, 3], await asyncio.wait_for(asyncio.gather(*stay), 10))

    assert check(work).batches == [[1, 2, 3]]


def test_images_of_those_who_left_are_not_decoded() -> None:
    async def work(_: Network, make: Callable[..., Batcher]) -> None:
        may_end, decoded = threading.Event(), []

        def slow() -> np.ndarray:
            assert may_end.wait(30)
            return image(1)()

        def noted() -> np.ndarray:
            decoded.append(2)
            return image(2)()

        with ThreadPoolExecutor(1) as decoders:
            batcher = make(decoders=decoders)
            first, *others = batcher.submit([slow, noted, noted])
            asyncio.gather(*others).cancel()
            while batcher.queue_length > 1:
                await asyncio.sleep(0)
            may_end.set()
            assert_right([1], [await first])
        assert decoded == []

    check(work)


def test_files_of_those_who_left_are_not_kept() -> None:
    class File:
        def decode(self) -> np.ndarray:
            return image(1)()

    async def work(_: Network, make: Callable[..., Batcher]) -> None:
        may_end = threading.Event()
        with ThreadPoolExecutor(1) as decoders:
            batcher = make(decoders=decoders)
            (first,) = batcher.submit([lambda: [may_end.wait(30), image(1)()][1]])
            file = File()
            kept = weakref.ref(file)
            (second,) = batcher.submit([file.decode])
            second.cancel()
            del file
            while batcher.queue_length > 1:
                await asyncio.sleep(0)
            assert kept() is None  # although the only thread is still busy with the first
            may_end.set()
            await first

    check(work)


def test_a_full_queue_refuses_all_of_a_request() -> None:
    async def work(network: Network, make: Callable[..., Batcher]) -> None:
        batcher = make(max_queue=3)
        network.may_run.clear()
        answers = batcher.submit([image(1), image(2)])
        with pytest.raises(Refusal, match="Queue: got 2 more images, expected at most 3") as refused:
            batcher.submit([image(3), image(4)])
        assert (refused.value.status, refused.value.headers) == (503, {"retry-after": "1"})
        answers += batcher.submit([image(3)])
        network.may_run.set()
        assert_right([1, 2, 3], await asyncio.gather(*answers))
        assert_right([4], await asyncio.gather(*batcher.submit([image(4)])))

    check(work)


def test_a_failure_hits_only_its_own() -> None:
    async def work(network: Network, make: Callable[..., Batcher]) -> None:
        batcher = make(max_batch_size=1)

        def no_image() -> np.ndarray:
            raise Refusal(400, "no image")

        jobs = [image(1), no_image, image(99), image(2)]
        good, bad, failed, other = await asyncio.gather(*batcher.submit(jobs), return_exceptions=True)
        assert isinstance(bad, Refusal)
        assert isinstance(failed, RuntimeError)
        assert isinstance(good, np.ndarray)
        assert isinstance(other, np.ndarray)
        assert_right([1, 2], [good, other])

    check(work)
