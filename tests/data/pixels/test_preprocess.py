"""What the network sees of an image: the centre in evaluation, a random window in training, as in the original."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from resnet_tpu.data.pixels.crop import Window, eval_window, sample_crop_window
from resnet_tpu.data.pixels.decode import decode
from resnet_tpu.data.pixels.preprocess import eval_image, train_image
from resnet_tpu.data.pixels.resize import resize, resize_to_uint8


def photo(kind: str, height: int = 90, width: int = 120, **options: object) -> bytes:
    """A file of this format, with a smooth coloured picture without any symmetry."""
    coarse = np.random.default_rng(3).integers(0, 256, (5, 7, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(file, kind, **options)
    return file.getvalue()


def test_evaluation_sees_the_centre() -> None:
    for encoded in (photo("JPEG"), photo("JPEG", progressive=True), photo("PNG")):
        out, expected = np.empty((2, 64, 64, 3), np.uint8)
        eval_image(encoded, 64, out)
        resize_to_uint8(eval_window(90, 120, 64).cut(decode(encoded)), expected)
        np.testing.assert_array_equal(out, expected)


def test_training_sees_the_sampled_window_mirrored_half_of_the_time() -> None:
    encoded = photo("JPEG")
    mirrored = 0
    for seed in range(200):
        out, expected = np.empty((2, 32, 32, 3), np.uint8)
        train_image(encoded, 32, np.random.default_rng(seed), out)
        rng = np.random.default_rng(seed)
        flip = rng.random() < 0.5
        resize_to_uint8(sample_crop_window(rng, 90, 120).cut(decode(encoded)), expected)
        np.testing.assert_array_equal(out, expected[:, ::-1] if flip else expected)
        mirrored += flip
        unmirrored = np.empty_like(out)
        train_image(encoded, 32, np.random.default_rng(seed), unmirrored, random_flip=False)
        np.testing.assert_array_equal(unmirrored, expected)
    assert 72 <= mirrored <= 128  # 4 standard deviations


# ---------------------------------------------------------------------------------------------- against the original


@pytest.fixture(scope="module")
def reference(golden: Callable[[str], Path]) -> dict[int, tuple[dict, bytes]]:
    """Facts and bytes of the photos that the original was run on, by the number at the start of the file name."""
    folder = golden("preprocess")
    facts = json.loads((folder / "images.json").read_text())["images"]
    return {
        int(fact["file"].partition("_")[0]): (fact, (folder / "jpeg" / fact["file"]).read_bytes()) for fact in facts
    }


def assert_rounded_like(found: np.ndarray, exact: np.ndarray, expected: np.ndarray) -> None:
    """Checks for equality, except where the exact value is within float32 noise (5e-4) of a rounding tie."""
    differs = found != expected
    assert np.abs(found[differs].astype(int) - expected[differs]).max(initial=0) <= 1
    assert np.abs(exact[differs] % 1 - 0.5).max(initial=0) < 5e-4
    assert differs.mean() < 1e-3


@pytest.mark.parametrize("image_size", [224, 160])
def test_evaluation_is_the_originals(
    golden: Callable[[str], Path], reference: dict[int, tuple[dict, bytes]], image_size: int
) -> None:
    arrays = np.load(golden("preprocess/eval.npz"))
    expected, expected_windows = arrays[f"eval_{image_size}_u8"], arrays[f"window_{image_size}"]
    for (fact, encoded), image, window in zip(reference.values(), expected, expected_windows, strict=False):
        assert eval_window(fact["height"], fact["width"], image_size) == tuple(window)
        out = np.empty_like(image)
        eval_image(encoded, image_size, out)
        part = Window(*window).cut(decode(encoded))
        # The original decodes only the window, so some of its last columns differ in colour by so many levels. They
        # reach the output through the four taps around them, whose absolute weights sum to at most 1.375.
        facts = fact[f"eval_{image_size}"]
        other = facts["columns_of_crop_that_differ"]
        clean = resize(part, image_size)
        marked = part.copy()
        marked[:, other] ^= 255
        same = ~(resize(marked, image_size) != clean).any((0, 2))
        assert other or same.all()
        assert_rounded_like(out[:, same], clean[:, same], image[:, same])
        limit = 1.375**2 * facts["crop_of_full_decode_max_abs_diff"] + 1
        assert np.abs(out.astype(int) - image).max() <= limit


def test_decoded_pixels_are_the_originals(
    golden: Callable[[str], Path], reference: dict[int, tuple[dict, bytes]]
) -> None:
    arrays = np.load(golden("preprocess/eval.npz"))
    names = [name for name in arrays.files if name.startswith("decoded_crop_")]
    for name in names:
        fact, encoded = reference[int(name.removeprefix("decoded_crop_"))]
        found = eval_window(fact["height"], fact["width"], 224).cut(decode(encoded))
        found, expected = (
            np.delete(a, fact["eval_224"]["columns_of_crop_that_differ"], 1) for a in (found, arrays[name])
        )
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_allclose(
            resize(arrays[name], 224).mean((0, 1), np.float64), fact["eval_224"]["mean"], rtol=0, atol=1e-4
        )
    for index, expected in zip(arrays["precise_index"], arrays["precise_224_q64"], strict=True):
        fact, encoded = reference[index]
        if not fact["eval_224"]["columns_of_crop_that_differ"]:
            part = eval_window(fact["height"], fact["width"], 224).cut(decode(encoded))
            # Stored as a multiple of 1/64.
            np.testing.assert_allclose(resize(part, len(expected)), expected / 64, rtol=0, atol=1 / 128 + 5e-4)


def test_training_crops_are_the_originals(
    golden: Callable[[str], Path], reference: dict[int, tuple[dict, bytes]]
) -> None:
    arrays = np.load(golden("preprocess/train.npz"))
    sets = json.loads(golden("preprocess/train_windows.json").read_text())
    for entry, expected in zip(sets["small"]["windows"], arrays["train_small_u8"], strict=True):
        fact, encoded = reference[entry["index"]]
        window = Window(*entry["window_yxhw"])
        if window == (0, 0, fact["height"], fact["width"]) and fact["mode"] != "L":
            window = eval_window(fact["height"], fact["width"], len(expected))
        part = window.cut(decode(encoded))
        out = np.empty_like(expected)
        resize_to_uint8(part, out)
        assert_rounded_like(out, resize(part, len(expected)), expected)
    for entry, expected in zip(sets["large"]["windows"], arrays["train_large_q64"], strict=True):
        part = Window(*entry["window_yxhw"]).cut(decode(reference[entry["index"]][1]))
        np.testing.assert_allclose(resize(part, len(expected)), expected / 64, rtol=0, atol=1 / 128 + 5e-4)


@pytest.mark.parametrize("size", [32, 48])
@pytest.mark.parametrize("is_decoded", [False, True])
def test_padded_crops_are_windows_of_the_image_in_black(size: int, is_decoded: bool) -> None:
    file = photo("PNG", 32, 32)
    encoded = decode(file) if is_decoded else file
    whole, out = np.empty((size, size, 3), np.uint8), np.empty((size, size, 3), np.uint8)
    eval_image(encoded, size, whole, crop_pct=1)
    if size == 32:
        np.testing.assert_array_equal(whole, decode(file))
    windows = {}
    for flipped, image in enumerate((whole, whole[:, ::-1])):
        black = np.pad(image, [(2, 2), (2, 2), (0, 0)])
        windows |= {black[y : y + size, x : x + size].tobytes(): (flipped, y, x) for y in range(5) for x in range(5)}
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(600):
        train_image(encoded, size, rng, out, crop_padding=2)
        seen.add(windows[out.tobytes()])
    assert len(seen) == 2 * 5 * 5
