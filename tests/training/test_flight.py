"""Steps that the devices are still running."""

import jax
import jax.numpy as jnp

from resnet_tpu.training.flight import StepsInFlight


def test_steps_land_in_order_and_the_newest_stay_in_the_air() -> None:
    square = jax.jit(lambda x: {"loss": x * x})
    flight = StepsInFlight()
    for step in range(5):
        flight.add(step, square(jnp.float32(step)))
    assert len(flight) == 5
    assert list(flight.land(keep=2)) == [(step, {"loss": step**2}) for step in range(3)]
    assert len(flight) == 2
    assert list(flight.land(keep=2)) == []
    assert [step for step, _ in flight.land(keep=0)] == [3, 4]
    assert len(flight) == 0
