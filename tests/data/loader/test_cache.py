"""Training images cached in memory: the same images, faster, within a memory limit."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resnet_tpu.data.cleaning import Limits, shrink
from resnet_tpu.data.loader.batches import Batch, eval_batches, train_batches
from resnet_tpu.data.loader.cache import CacheReport, ImageCache, is_cached, open_cache
from resnet_tpu.data.loader.order import random_at, record_at_position
from resnet_tpu.data.pixels.decode import decode
from resnet_tpu.data.pixels.preprocess import train_image
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.options.config import DataConfig
from tests.data.loader.test_batches import SIZE, assert_same, config

SHORT_SIDE = 20


def run(data: DataConfig, count: int = 6, start_position: int = 0) -> list[Batch]:
    source = open_source(data, "train")
    with train_batches(source, data, batch_size=20, seed=1, start_position=start_position) as batches:
        return [next(batches) for _ in range(count)]


def test_returns_what_was_put() -> None:
    cache = ImageCache(5, 1000)
    pixels = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
    cache.put(3, pixels, 11)
    cache.put(0, b"encoded", -1)
    for seen in (cache, as_others_see_it(cache)):
        found = seen.get(3)
        assert found
        np.testing.assert_array_equal(found.image, pixels)
        assert found.label == 11
        assert seen.get(0) == (b"encoded", -1)
        assert [seen.get(i) for i in (1, 2, 4)] == [None] * 3
        assert (seen.count, seen.is_full) == (2, False)
    cache.put(3, pixels + 1, 12)  # is there already
    found = cache.get(3)
    assert found
    assert found.label == 11


def as_others_see_it(cache: ImageCache) -> ImageCache:
    """The cache as another process sees it."""
    make, arguments = cache.__reduce__()
    return make(*arguments)


def test_no_more_than_the_budget() -> None:
    cache = ImageCache(10, 1000)
    for i in range(10):
        cache.put(i, bytes([i]) * 300, i)
    assert (cache.count, cache.is_full) == (3, True)
    assert [cache.get(i) == (bytes([i]) * 300, i) for i in range(10)] == [True] * 3 + [False] * 7
    cache.put(9, b"little", 9)  # would fit, but the reported number must not change
    assert cache.get(9) is None
    empty = ImageCache(10, 0)
    empty.put(0, b"x", 0)
    assert (empty.count, empty.is_full, empty.get(0)) == (0, True, None)


def test_many_threads_at_once() -> None:
    images = [np.full((3, i % 7 + 1, 3), i, np.uint8) for i in range(200)]
    cache = ImageCache(200, 10**6)

    def work(first: int) -> None:
        for i in (*range(first, 200), *range(first)):
            cache.put(i, images[i], i)
            assert (found := cache.get(i)) is None or np.array_equal(found.image, images[i])

    threads = [threading.Thread(target=work, args=(25 * k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.count == 200
    for i, image in enumerate(images):
        found = cache.get(i)
        assert found
        np.testing.assert_array_equal(found.image, image)
    assert cache.num_bytes == 64 * 200


# --------------------------------------------------------------------------------------------------------- in training


def test_decoded_images_are_shrunk_then_cut(records: Path, encoded: list[bytes]) -> None:
    found = run(config(records, cache="decoded", cache_short_side=SHORT_SIDE))
    out = np.empty((SIZE, SIZE, 3), np.uint8)
    for position in range(120):
        record = record_at_position(position, num_records=37, seed=1)
        pixels = shrink(decode(encoded[record]), Limits(short_side=SHORT_SIDE))
        assert min(pixels.shape[:2]) == min(SHORT_SIDE, *decode(encoded[record]).shape[:2])
        train_image(pixels, SIZE, random_at(position, seed=1), out)
        np.testing.assert_array_equal(found[position // 20]["image"][position % 20], out)


def test_nothing_about_the_cache_changes_a_batch(records: Path) -> None:
    """Neither how much fits matters, nor who fills it, nor where training begins."""
    expected = run(config(records, cache="decoded"))
    for memory in (0, 20e-6, 60e-6):
        assert_same(run(config(records, cache="decoded", cache_memory=memory)), expected)
    for options in ({"input_workers": "processes"}, {"input_pipeline": "basic"}, {"num_parallel_calls": 8}):
        assert_same(run(config(records, cache="decoded", **options)), expected)
    assert_same(run(config(records, cache="decoded"), 3, 60), expected[3:])


def test_cached_records_are_the_records(encoded: list[bytes], write_shards: Callable[..., None]) -> None:
    folder = "memory://cached-records"
    write_shards(folder, encoded)
    expected = run(config(folder))
    assert_same(run(config(folder, cache="records")), expected)
    assert_same(run(config(folder, cache="records", input_pipeline="basic")), expected)
    assert_same(run(config(folder, cache="records", cache_memory=20e-6)), expected)


def test_the_default_short_side_leaves_room_for_the_crop(records: Path) -> None:
    assert_same(run(config(records, cache="decoded")), run(config(records, cache="decoded", cache_short_side=18)))


def test_pixels_that_are_small_enough_stay(encoded: list[bytes]) -> None:
    pixels = decode(encoded[0])
    assert shrink(pixels, Limits(short_side=min(pixels.shape[:2]))) is pixels
    half = shrink(np.full((40, 60, 3), 77, np.uint8), Limits(short_side=20))
    assert (half.shape, set(half.ravel().tolist())) == ((20, 30, 3), {77})


# ----------------------------------------------------------------------------------------------------- what is said


def test_the_outcome_of_caching_is_logged_once(records: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run(config(records, cache="decoded"))
    assert [record.getMessage() for record in caplog.records] == ["All 37 images are in the cache: 0.00 GB."]
    caplog.clear()
    run(config(records, cache="decoded", cache_memory=20e-6))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "of 37 images fit in 0.00 GB" in record.getMessage()
    assert "Raise cache_memory, lower cache_short_side, make the images smaller" in record.getMessage()


def test_where_there_is_nothing_to_gain(records: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert open_cache(config("synthetic", cache="decoded"), 10) is None
    assert open_cache(config(records), 10) is None
    assert not caplog.records
    assert open_cache(config(records, cache="records"), 10) is None
    assert "is on this machine, which caches files in memory anyway" in caplog.text
    assert open_cache(config("memory://somewhere", cache="records"), 10)


@pytest.mark.parametrize(
    ("place", "cached"),
    [("photos", {"decoded"}), ("gs://bucket/data", {"decoded", "records"}), ("synthetic", set()), ("null", set())],
)
def test_is_cached_by_place_and_kind(place: str, cached: set[str]) -> None:
    kinds: tuple[Any, ...] = ("none", "records", "decoded")
    assert {kind for kind in kinds if is_cached(DataConfig(data_dir=place, cache=kind))} == cached
    assert is_cached(DataConfig(bigtable_instance="i", cache="records"))


def test_a_cache_larger_than_memory_is_limited(records: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = open_cache(config(records, cache="decoded", cache_memory=1e6), 10)
    half = open_cache(config(records, cache="decoded"), 10)
    assert cache
    assert half
    assert 10**8 < half.budget < cache.budget < 10**14
    assert "cache_memory is 1000000.0 GB, but only" in caplog.text


def test_evaluation_is_not_cached(records: Path) -> None:
    data = config(records, cache="decoded", cache_short_side=8)
    plain = config(records)
    assert_same(
        list(eval_batches(open_source(data, "validation"), data, batch_size=20)),
        list(eval_batches(open_source(plain, "validation"), plain, batch_size=20)),
    )


def test_report_without_a_cache() -> None:
    CacheReport(None).update()
