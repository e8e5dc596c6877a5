import math
from collections.abc import Callable

import pytest

from resnet_tpu.performance.plan.search import MOST, find_largest

GIB = 2**30


@pytest.mark.parametrize("start", [1, 8, 128, 4096])
@pytest.mark.parametrize("available", [1, 7.48, 15.75, 95.73])
@pytest.mark.parametrize("fixed", [0.2, 0.9])
@pytest.mark.parametrize("names_bytes", [True, False])
def test_the_largest_batch_is_found_in_few_compilations(
    start: int, available: float, fixed: float, names_bytes: bool
) -> None:
    calls: list[int] = []

    def needed(batch: int) -> float:
        calls.append(batch)
        return size(batch) if names_bytes or size(batch) <= available else math.inf

    def size(batch: int) -> float:
        return fixed + 0.035 * batch

    found = find_largest(needed, available, start)
    assert found is not None
    truth = min(4096, math.floor((available - fixed) / 0.035 + 1e-9))
    assert found <= truth
    assert truth <= max(found + 8, found * 17 / 16 + 1) or size(found) >= 0.9 * available
    assert len(calls) == len(set(calls))  # nothing is compiled twice
    assert len(calls) <= (8 if names_bytes else 14)


def test_memory_need_not_grow_along_a_line() -> None:
    found = find_largest(lambda batch: 1 + (batch / 100) ** 2 + 0.3 * (batch % 32 > 0), 10, 64)
    assert found is not None
    assert 278 <= found <= 300  # 0.9 of the memory, or more


def test_memory_need_not_grow_at_all() -> None:
    """The compiler rematerialises when memory runs short: 1,032 images need 10.2, 1,088 need 10.19, and so on."""
    calls: list[int] = []

    def needed(batch: int) -> float:
        calls.append(batch)
        return 0.01 * batch if batch < 1024 else 10.24 - batch / 30_000

    found = find_largest(needed, 12, 1024)
    assert found is not None and found >= 4096 * 15 / 16
    assert len(calls) <= 8


@pytest.mark.parametrize("needed", [lambda batch: 100.0, lambda batch: math.inf])
def test_nothing_fits(needed: Callable[[int], float]) -> None:
    assert find_largest(needed, 10, 128) is None


def test_everything_fits() -> None:
    assert find_largest(lambda batch: 1.0, 10, 128) in range(MOST - MOST // 16, MOST + 1)
    assert find_largest(lambda batch: 1.0, 10, 2 * MOST) == 2 * MOST  # no less than what is known to fit
