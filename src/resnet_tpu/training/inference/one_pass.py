"""One pass over the images of a source, as evaluation and prediction make it."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from resnet_tpu.data.loader.batches import eval_batches
from resnet_tpu.data.sources.source import Source
from resnet_tpu.options.config import DataConfig
from resnet_tpu.parallel import division, placement
from resnet_tpu.parallel.placement import DeviceBatch
from resnet_tpu.reports.progress import track
from resnet_tpu.training.steps_in_flight import paced, steps_ahead


def one_pass(
    step: Callable[[DeviceBatch], Mapping[str, jax.Array]],
    source: Source,
    data: DataConfig,
    mesh: Mesh,
    *,
    batch_size: int,
    title: str,
) -> list[dict[str, Any]]:
    """The results of `step` for each batch of the images of `source`, in order, on the host.

    batch_size: over all devices; capped at the number of images, then rounded up so that all devices get equally many.
    Padding in the last batch has weight 0. title: of the progress bar.
    """
    batch_size = division.round_up(min(batch_size, len(source)), mesh.devices.size)
    loader = eval_batches(
        source,
        data,
        batch_size=batch_size,
        host_index=jax.process_index(),
        num_hosts=jax.process_count(),
    )
    batches = track(placement.prefetch(loader, mesh), title, total=-(-len(source) // batch_size))
    return list(paced(map(step, batches), steps_ahead(mesh)))
