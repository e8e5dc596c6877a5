"""Prices of chips. The user gives them, because they depend on region and contract."""

from collections.abc import Mapping

from resnet_tpu.errors import UserError
from resnet_tpu.performance.plan.generations import GENERATIONS
from resnet_tpu.performance.plan.gpus import GPUS


def read_prices(text: str) -> dict[str, float]:
    """`1.20` or `v5e=1.20,v3=2.20` -> price of a chip-hour by generation, `""` for all others.

    Raises UserError for anything else.
    """
    prices: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        generation, _, number = part.strip().replace("v5litepod", "v5e").rpartition("=")
        try:
            price = float(number)
        except ValueError:
            price = -1.0
        is_known = generation in ("", *GENERATIONS, *GPUS)
        if not (0 <= price < float("inf") and is_known) or generation in prices:  # as in 1,20
            expected = f"a number, or one number for each generation ({', '.join([*GENERATIONS, *GPUS])})"
            raise UserError("--price_per_chip_hour", text, expected, "Write 1.20 or v5e=1.20,v3=2.20.")
        prices[generation] = price
    return prices


def price_of(prices: Mapping[str, float], generation: str) -> float | None:
    """The price for a generation, None if none was given."""
    return prices.get(generation, prices.get(""))
