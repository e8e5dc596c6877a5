"""Steps that the devices are still running."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest

from resnet_tpu.training.steps_in_flight import StepsInFlight, paced


def test_steps_land_in_order_and_the_newest_stay_in_the_air() -> None:
    square = jax.jit(lambda x: {"loss": x * x})
    flight = StepsInFlight()
    for step in range(5):
        flight.add(step, square(jnp.float32(step)))
    assert list(flight.ended(keep=2)) == [(step, {"loss": step**2}) for step in range(3)]
    assert list(flight.ended(keep=2)) == []
    assert [step for step, _ in flight.ended(keep=0)] == [3, 4]
    assert list(flight.ended(keep=0)) == []


@pytest.mark.parametrize("keep", [0, 2])
def test_no_more_than_so_many_steps_are_unfinished_when_the_next_begins(keep: int) -> None:
    square = jax.jit(lambda x: {"loss": x * x})
    dispatched, unfinished, landed = 0, [], []

    def dispatch() -> Iterator[dict[str, jax.Array]]:
        nonlocal dispatched
        for step in range(5):
            unfinished.append(dispatched - len(landed))
            dispatched += 1
            yield square(jnp.float32(step))

    for outputs in paced(dispatch(), keep):
        landed.append(outputs)
    assert landed == [{"loss": step**2} for step in range(5)]
    assert max(unfinished) == keep
