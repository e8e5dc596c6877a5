"""Which workers make the images of batches, and how many."""

from typing import Literal

from resnet_tpu.data.sources.image_files import FolderSource
from resnet_tpu.data.sources.source import Source, as_remote
from resnet_tpu.data.sources.tfrecords import RecordSource
from resnet_tpu.options.config import DataConfig
from resnet_tpu.system.machine import num_cores

WorkerKind = Literal["threads", "processes"]

MOST_IN_CHUNK: dict[WorkerKind, int] = {"threads": 16, "processes": 128}
"""The most images in a chunk, by kind of worker: handing a chunk to a thread costs a fraction of an image's time,
handing one to a process costs about 300 us of this process's time."""

MOST_THREADS = 8  # an image holds the GIL for about 45 of its 700 us: with more threads, it is held over half the time


def kind_of_workers(data: DataConfig, source: Source, *, trains: bool = True) -> WorkerKind:
    """Which workers make images: those asked for, else processes for training with many workers on local files.

    Evaluation is too short to start processes for, and remote data would have to pass from this process through pipes.
    """
    if data.input_pipeline == "basic":
        return "threads"
    reads_files = isinstance(source, RecordSource | FolderSource) and not as_remote(source)
    if data.input_workers and (trains or reads_files):
        return data.input_workers
    return "processes" if trains and reads_files and num_workers(data) > MOST_THREADS else "threads"


def num_workers(data: DataConfig) -> int:
    """How many threads or processes make images: one for the basic pipeline, which works in the calling thread."""
    return 1 if data.input_pipeline == "basic" else data.num_parallel_calls or num_cores()
