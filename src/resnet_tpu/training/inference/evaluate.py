"""Computes the loss and the accuracies of a network over a split. Padding has weight 0: each example counts once."""

import functools
import logging
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from resnet_tpu.data.sources.source import Source
from resnet_tpu.data.sources.subset import evenly_spaced
from resnet_tpu.models.arrays import Arrays
from resnet_tpu.options.config import Config
from resnet_tpu.reports.finite import check_finite
from resnet_tpu.reports.metrics import mean_metrics
from resnet_tpu.training.compiler_options import required_options_for
from resnet_tpu.training.inference.one_pass import one_pass
from resnet_tpu.training.inference.trained import advice_on
from resnet_tpu.training.maths.loss import l2
from resnet_tpu.training.maths.step import EvalStep

log = logging.getLogger(__name__)


@functools.cache
def l2_on(device: Any) -> Callable[..., jax.Array]:
    """`l2` of parameters, jitted for `device`."""
    return jax.jit(l2, static_argnames="norms", compiler_options=required_options_for(device))


def evaluate(
    eval_step: EvalStep,
    params: Arrays,
    batch_stats: Arrays,
    source: Source,
    config: Config,
    mesh: Mesh,
    *,
    step: int,
) -> dict[str, float]:
    """Returns `loss` (with the L2 term, as in training), `top_1_accuracy` and `top_5_accuracy` over `source`.

    Raises NonFiniteError, naming the step of these weights and the batch, when a loss is not finite: the accuracies
    mean nothing then, because no logit compares as larger than NaN.
    """
    source = evenly_spaced(source, config.data.num_eval_images or len(source))
    sum_up = functools.partial(eval_step, params, batch_stats)
    sums = one_pass(sum_up, source, config.data, mesh, batch_size=config.eval.eval_batch_size, title="evaluate")
    squares = float(l2_on(mesh.devices.flat[0])(params, norms=config.optimizer.decay_batch_norm))
    advise = functools.partial(advice_on, {"params": params, "batch_stats": batch_stats}, config.model.precision)
    for number, found in enumerate(sums, 1):
        what = f"Loss at step {step}, batch {number} of {len(sums)} of the evaluation"
        check_finite(what, found["cross_entropy"], advise)
    check_finite(f"Sum of the squared weights at step {step}", squares, advise)
    return mean_metrics(sums, l2_loss=config.optimizer.weight_decay_in_loss * squares)


def log_metrics(step: int, metrics: dict[str, float], seconds: float) -> None:
    """Logs the result of an evaluation on one line."""
    log.info(
        "Evaluation at step %d: top-1 %.2f %%, top-5 %.2f %%, loss %.4f (%.1f s)",
        step, 100 * metrics["top_1_accuracy"], 100 * metrics["top_5_accuracy"], metrics["loss"], seconds,
    )  # fmt: skip
