"""Checks that training has not diverged: that its losses and weights are finite numbers."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from resnet_tpu.models.arrays import Arrays
from resnet_tpu.reports.finite import check_finite
from resnet_tpu.training.compiler_options import required_options_for
from resnet_tpu.training.maths.loss import l2
from resnet_tpu.training.run_state import RunState


def check_loss(loss: float, step: int, kept: Sequence[int]) -> None:
    """Raises NonFiniteError if the loss of `step` is not finite. kept: the steps of the checkpoints, ascending."""
    check_finite(f"Loss at step {step}", loss, lambda: advice(step, kept))


def check_weights(run: RunState, mesh: Mesh, kept: Sequence[int]) -> None:
    """Raises NonFiniteError if a weight or running statistic is not finite: the last loss need not show it."""
    squares = _sum_of_squares_on(mesh.devices.flat[0])(run.state.params, run.state.batch_stats)
    what = f"Sum of the squared weights at step {run.step}"
    check_finite(what, float(squares), lambda: advice(run.step, kept))


def advice(step: int, kept: Sequence[int]) -> str:
    """What to do about values of `step` that are not finite."""
    good = [one for one in kept if one < step]
    last = f"The last good checkpoint is step {good[-1]}." if good else "There is no good checkpoint yet."
    if len(good) < len(kept):
        last += " To continue from it, delete the later ones." if good else " Delete the ones that exist."
    return f"{last} Lower base_learning_rate, warm up for longer, or use precision=float32."


@functools.cache
def _sum_of_squares_on(device: Any) -> Callable[[Arrays, Arrays], jax.Array]:
    """(params, batch_stats) -> `l2` of all params, or NaN when a statistic is not finite: float32 [], jitted."""

    def sum_of_squares(params: Arrays, batch_stats: Arrays) -> jax.Array:
        are_finite = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(batch_stats)]
        return jnp.where(jnp.asarray(are_finite, bool).all(), l2(params, norms=True), jnp.nan)

    return jax.jit(sum_of_squares, compiler_options=required_options_for(device))
