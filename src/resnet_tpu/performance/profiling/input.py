"""Profiles the input pipeline of a run: how fast it is, where its time goes, and what would help."""

import dataclasses
import logging
import statistics
from dataclasses import dataclass

from resnet_tpu.data.loader.cache import is_cached
from resnet_tpu.data.loader.worker_choice import kind_of_workers, num_workers
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.data.sources.source import Source
from resnet_tpu.models.option_checks import check_options
from resnet_tpu.options.config import Config, DataConfig
from resnet_tpu.parallel import division, meshes, startup
from resnet_tpu.performance.profiling.advice import Advice, InputFigures, Photos, Stage, advise
from resnet_tpu.performance.profiling.rates import measure_decoder, measure_loader, measure_step, speed_of_run
from resnet_tpu.performance.profiling.stages import REST, Sampled, sample_stages, time_hand_over
from resnet_tpu.system.machine import free_memory, num_cores
from resnet_tpu.training.run import fill_in_counts

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class InputProfile:
    """The figures, the origin of the needed speed, and the resulting advice."""

    figures: InputFigures
    needed_by: str
    speed_of_run: float | None
    """The speed of the step of the run in model_dir, on all its hosts."""
    advice: tuple[Advice, ...]


def profile_input(
    config: Config, *, needed_speed: float | None, measures_step: bool, num_images: int, seconds: float
) -> InputProfile:
    """Measures the loader of a run, its stages on a sample of `num_images`, and the step that it has to feed.

    needed_speed: images/s that the input has to supply; None: measured, or read from the run in model_dir.
    seconds: approximate time to measure each speed. Raises the errors of `train` for options and data that do not fit.
    """
    check_options(config)
    startup.start_jax(use_tpu=config.run.use_tpu)
    source = open_source(config.data, "train")
    config = fill_in_counts(config, source)
    mesh = meshes.make_mesh(config.run.num_cores)
    division.check_batch_divides(config, mesh.devices.size)
    log.info("The stages of the input, on %d images ...", num_images)  # first, while files are not yet cached
    batch_size, seed = config.train.train_batch_size, config.train.seed
    sampled = sample_stages(source, config.data, batch_size=batch_size, seed=seed, num_images=num_images)
    log.info("The loader, for %g s%s ...", seconds, ", once the cache is full" if is_cached(config.data) else "")
    loader = measure_loader(config, source, seconds=seconds)
    hand_over = time_hand_over(config, mesh)
    of_run = speed_of_run(config.run.model_dir) if config.run.model_dir else None
    needed_by = "as given"
    if needed_speed is None and measures_step:
        log.info("The training step, with data already on the device ...")
        needed_by, needed_speed = "measured here", measure_step(config, mesh, seconds=seconds)
    elif needed_speed is None:
        needed_by = f"of the run in {config.run.model_dir}, on all its hosts" if of_run else "not known"
        needed_speed = of_run
    workers = num_workers(config.data)
    figures = InputFigures(
        speed=loader.images_per_sec,
        decoder_speed=_decoder_speed(sampled, source, config.data, workers, seconds),
        needed_speed=needed_speed,
        cores=num_cores(),
        workers=workers,
        busy_share=loader.busy_share,
        others_share=loader.others_share,
        storage_share=sampled.storage_share,
        step_shares_cores=mesh.devices.flat[0].platform == "cpu",
        free_bytes=free_memory(),
        stages=(*sampled.stages, _rest(loader.cpu_us, sampled.stages), hand_over),
        photos=_photos(sampled, config.data, len(source)),
        data=dataclasses.replace(config.data, input_workers=kind_of_workers(config.data, source)),
    )
    return InputProfile(figures, needed_by, of_run, tuple(advise(figures)))


def _decoder_speed(sampled: Sampled, source: Source, data: DataConfig, workers: int, seconds: float) -> float | None:
    if not sampled.encoded:
        return None
    return measure_decoder(sampled.encoded, data, honour_exif=source.honour_exif, threads=workers, seconds=seconds)


def _rest(loader_us: float, stages: tuple[Stage, ...]) -> Stage:
    """The CPU time of the loader outside the stages: queues, threads that wait for each other, finished batches."""
    return Stage(REST, max(0.0, loader_us - sum(stage.cpu_us for stage in stages)))


def _photos(sampled: Sampled, data: DataConfig, num_images: int) -> Photos | None:
    """The properties of the sampled photos."""
    if not sampled.sides:
        return None
    needed = data.cached_short_side
    pixels = [height * width for height, width in sampled.sides]
    kept = [size * min(1.0, needed / min(sides)) ** 2 for size, sides in zip(pixels, sampled.sides, strict=True)]
    return Photos(
        num_images=num_images,
        short_side=statistics.median(min(sides) for sides in sampled.sides),
        excess=1 - sum(kept) / sum(pixels),
        needed_side=needed,
        decoded_bytes=3 * num_images * sum(kept) / len(kept),
    )
