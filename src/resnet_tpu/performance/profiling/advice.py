"""Advice on an input pipeline, from its figures: what limits it, and the option that helps."""

from collections.abc import Iterator
from dataclasses import dataclass

from resnet_tpu import storage
from resnet_tpu.options.config import DataConfig

_ENOUGH = 0.9
"""From this share of their capacity on, workers count as busy."""
_NOTABLE = 0.3
"""From this share of the time or of the pixels on, a remedy is worthwhile."""
_CACHE_SHARE = 0.5
"""Share of the free memory that a cache may take: the default of cache_memory."""


@dataclass(frozen=True)
class Stage:
    """A stage of the pipeline: CPU time per image on one core, in microseconds."""

    name: str
    cpu_us: float


@dataclass(frozen=True)
class Photos:
    """Properties of the photos, from a sample."""

    num_images: int
    short_side: float  # median, px
    excess: float  # share of the pixels that would be removed if the short side were at most `needed_side`
    needed_side: int  # px
    decoded_bytes: float  # memory that cache=decoded would take


@dataclass(frozen=True)
class InputFigures:
    """Measurements of an input pipeline. Speeds are in images/s, of this host."""

    speed: float
    decoder_speed: float | None
    """Speed of crop, decoding and resizing alone, with images in memory; None if nothing is decoded."""
    needed_speed: float | None
    """Speed of the training step when its data are ready; None if unknown."""
    cores: int
    workers: int
    busy_share: float
    """Share of all cores that the loader used."""
    others_share: float
    """Share of all cores that other programs used at the same time."""
    storage_share: float
    """Share of its time that a worker waits for storage."""
    step_shares_cores: bool
    """Whether the step runs on this machine's CPU."""
    free_bytes: float
    stages: tuple[Stage, ...]
    photos: Photos | None
    data: DataConfig

    def share(self, part: str) -> float:
        """Share of the CPU time spent in the stages whose names begin with `part`."""
        total = sum(stage.cpu_us for stage in self.stages)
        found = sum(stage.cpu_us for stage in self.stages if stage.name.startswith(part))
        return found / total if total else 0.0


@dataclass(frozen=True)
class Advice:
    """A sentence or two, and the option to give, if there is one."""

    text: str
    option: str = ""


def advise(figures: InputFigures) -> list[Advice]:
    """The verdict and, if the input is the limit, the remedies, the most worthwhile first."""
    speed, needed = figures.speed, figures.needed_speed
    if needed is not None and speed >= needed:
        text = f"The device is the limit: the input gives {speed / needed:.1f} times what the step takes."
        if figures.step_shares_cores:
            text += " Both run on the same cores, so that each image costs the time of both."
        return [Advice(text)]
    verdict = f"The input gives {speed:,.0f} images/s; what the step takes is not known."
    if needed is not None:
        verdict = (
            f"The input is the limit: it gives {speed:,.0f} of the {needed:,.0f} images/s that the step takes, so that "
            f"the device waits {1 - speed / needed:.0%} of the time."
        )
    return [Advice(verdict), *(list(_remedies(figures)) or [_nothing_left(figures)])]


def _remedies(figures: InputFigures) -> Iterator[Advice]:
    data = figures.data
    if data.input_pipeline == "basic":
        text = "The basic pipeline works on one image at a time, and only while the device waits."
        yield Advice(text, "--input_pipeline=optimized")
        return  # the other figures hardly apply to the optimized pipeline
    if figures.workers < figures.cores:
        text = f"{figures.workers} of {figures.cores} cores decode images."
        yield Advice(text, f"--num_parallel_calls={figures.cores}")
    if figures.storage_share > _NOTABLE:
        yield _for_storage(figures)
    elif _waits_for_lock(figures):
        text = f"{figures.workers} threads use {figures.busy_share:.0%} of the cores: Python's lock holds them up."
        yield Advice(text, "--input_workers=processes")
    if figures.others_share > _NOTABLE:
        yield Advice(f"Other programs take {figures.others_share:.0%} of the cores: measure again without them.")
    if figures.photos:
        yield from _for_photos(figures, figures.photos)
    if (share := figures.share("augment")) > _NOTABLE:
        has_layers = data.augment_name == "randaugment" and data.randaug_num_layers != 1
        cheaper = "--randaug_num_layers=1" if has_layers else "--augment_name=null"
        text = f"Augmentation is {share:.0%} of the CPU time: fewer or cheaper operations, if the accuracy allows it."
        yield Advice(text, cheaper if data.augment_name else "--random_erasing=0")


def _for_storage(figures: InputFigures) -> Advice:
    waiting = f"Workers wait {figures.storage_share:.0%} of their time"
    if storage.is_remote(figures.data.location):
        return Advice(f"{waiting} for the bucket.", "--cache=records")
    return Advice(
        f"{waiting} for the disk. Files that fit in memory are read from it only once; for more, use a faster disk."
    )


def _for_photos(figures: InputFigures, photos: Photos) -> Iterator[Advice]:
    decoding = figures.share("decode")
    if figures.data.cache == "decoded" or decoding < _NOTABLE:
        return
    if photos.decoded_bytes < _CACHE_SHARE * figures.free_bytes:
        size = f"about {photos.decoded_bytes / 1e9:.2g} GB of the {figures.free_bytes / 1e9:.2g} GB that are free"
        text = f"Decoding is {decoding:.0%} of the CPU time. The decoded photos fit in memory, {size}:"
        yield Advice(f"{text} from the second epoch on, none is decoded.", "--cache=decoded")
    if photos.excess > _NOTABLE:
        text = f"The photos are {photos.short_side:.0f} px on the short side where {photos.needed_side} are enough:"
        option = f"resnet-tpu prepare RAW OUT --short_side={photos.needed_side}"
        yield Advice(f"{text} {photos.excess:.0%} of the decoding is thrown away.", option)


def _waits_for_lock(figures: InputFigures) -> bool:
    """Whether cores are idle that the threads could use."""
    expected = min(figures.workers, figures.cores) / figures.cores
    in_use = figures.busy_share + figures.others_share
    return figures.data.input_workers != "processes" and in_use < _ENOUGH * expected


def _nothing_left(figures: InputFigures) -> Advice:
    return Advice(
        f"All {figures.cores} cores are busy with necessary work: more cores per device, or a smaller image_size, "
        "would help."
    )
