"""The task of the programs that `bench input` compares, and the measurement of a program."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from resnet_tpu.options.config import Config, DataConfig
from resnet_tpu.system.cpu_time import cpu_secs_of_family


@dataclass(frozen=True, kw_only=True)
class Task:
    """Endless batches of random crops of all records, shuffled; timed after a warm-up."""

    records: str  # folder of train-*
    num_images: int  # in the records; this many are read to fill the caches
    image_size: int
    resize_method: Literal["bicubic", "bilinear"]
    num_parallel_calls: int
    batch_size: int
    seconds: float
    options: dict[str, Any]  # of our pipeline, by name

    def data(self) -> DataConfig:
        """The options of our pipeline."""
        return (
            Config()
            .replace(
                data_dir=self.records,
                image_size=self.image_size,
                resize_method=self.resize_method,
                num_parallel_calls=self.num_parallel_calls,
                **self.options,
            )
            .data
        )

    @property
    def warmup_batches(self) -> int:
        """The number of batches before the timed ones."""
        return self.num_images // self.batch_size + 2


def measure(batches: Iterator[Any], task: Task) -> dict[str, float]:
    """Images per second, and CPU time of all processes per image. Batches are discarded as they arrive.

    The first epoch does not count: after it, files come from memory and caches are full.
    """
    for _ in range(task.warmup_batches):
        next(batches)
    cpu_begin, begin, num_images = cpu_secs_of_family(), time.perf_counter(), 0
    while (seconds := time.perf_counter() - begin) < task.seconds or not num_images:
        next(batches)
        num_images += task.batch_size
    cpu_ms = 1e3 * (cpu_secs_of_family() - cpu_begin) / num_images
    return {"images_per_sec": num_images / seconds, "cpu_ms_per_image": cpu_ms}
