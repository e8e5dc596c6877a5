"""The 16 operations: the original's pixels, values worked out by hand, and properties that hold for any image."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnet_tpu.data.pixels import native
from resnet_tpu.data.pixels.operations import OPERATIONS, Flavor
from resnet_tpu.data.pixels.policies import AUTOAUGMENT, RANDAUGMENT, draw_arguments

TF = OPERATIONS["tf"]
CORRECTED = OPERATIONS["corrected"]
FLAVORS: list[Flavor] = ["tf", "corrected"]


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def row(*levels: int) -> np.ndarray:
    """A grey image of a single row."""
    return np.repeat(np.array(levels, np.uint8)[None, :, None], 3, axis=2)


def levels_of(image: np.ndarray) -> list[int]:
    """The grey levels of such an image."""
    assert (image == image[:1, :, :1]).all()
    return image[0, :, 0].tolist()


# --------------------------------------------------------------------------------------------------------- the original


@pytest.mark.parametrize("is_native", [True, False], ids=["native", "plain"])
def test_every_run_of_the_original_is_met_bit_for_bit(
    golden: Callable[[str], Path], is_native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_native:
        monkeypatch.setattr(native, "load", lambda: None)
    elif not native.load():
        pytest.skip("the library in C is not there")
    arrays = np.load(golden("augment/ops.npz"))
    runs = json.loads(golden("augment/ops.json").read_text())["runs"]
    different = []
    for run in runs:
        for i, image in enumerate(arrays["images"]):
            centre = run["center_yx"][i] if run["op"] == "Cutout" else []
            found = TF[run["op"]](image, *run["args"], *centre)
            if not np.array_equal(found, arrays[run["key"]][i]):
                different.append(f"{run['key']}, image {i}")
    assert not different
    assert {run["op"] for run in runs} == set(TF)


def test_arguments_of_levels_are_the_originals(golden: Callable[[str], Path]) -> None:
    reach = {"randaugment": RANDAUGMENT, "autoaugment": AUTOAUGMENT}
    shape = np.load(golden("augment/ops.npz"))["images"].shape[1:]
    rng = np.random.default_rng(0)
    for run in json.loads(golden("augment/ops.json").read_text())["runs"]:
        arguments = draw_arguments(run["op"], int(run["level"]), reach[run["hparams"]], shape, rng)
        own = arguments[:1] if run["op"] == "Cutout" else arguments
        assert [abs(value) for value in own] == pytest.approx([abs(value) for value in run["args"]], rel=1e-7), run


@pytest.mark.peer("tensorflow-cpu")
def test_grey_is_tensorflows_for_every_colour() -> None:
    tf = pytest.importorskip("tensorflow")
    to_grey: Any = tf.function(tf.image.rgb_to_grayscale)
    green, blue = np.meshgrid(np.arange(256), np.arange(256))
    for red in range(256):
        colours = np.stack([np.full_like(green, red), green, blue], axis=-1).astype(np.uint8)
        np.testing.assert_array_equal(TF["Color"](colours, 0.0)[..., :1], to_grey(colours))


# --------------------------------------------------------------------------------------------------- worked out by hand


@pytest.mark.parametrize(
    ("name", "arguments", "levels", "expected"),
    [
        ("Invert", (), (0, 100, 255), (255, 155, 0)),
        ("Posterize", (3,), (31, 32, 255), (0, 32, 224)),
        ("Posterize", (1,), (127, 128, 255), (0, 128, 128)),
        ("Posterize", (0,), (127, 128, 255), (0, 128, 128)),
        ("Posterize", (8,), (1, 127, 255), (1, 127, 255)),
        ("Solarize", (230,), (0, 229, 230, 255), (0, 229, 25, 0)),
        ("Solarize", (0,), (0, 100, 255), (255, 155, 0)),
        ("SolarizeAdd", (99,), (0, 127, 128, 255), (99, 226, 128, 255)),
        ("SolarizeAdd", (165,), (100, 127, 200), (255, 255, 200)),
        ("Brightness", (0.5,), (0, 101, 255), (0, 50, 127)),
        ("Brightness", (1.5,), (0, 101, 255), (0, 151, 255)),
        ("AutoContrast", (), (10, 60, 110), (0, 127, 255)),
        ("AutoContrast", (), (7, 7, 7), (7, 7, 7)),
        ("TranslateX", (1,), (1, 2, 3), (2, 3, 128)),
        ("TranslateX", (-2,), (1, 2, 3), (128, 128, 1)),
        ("TranslateX", (3,), (1, 2, 3), (128, 128, 128)),
        ("TranslateX", (-4,), (1, 2, 3), (128, 128, 128)),
        ("Cutout", (1, 0, 2), (1, 2, 3, 4), (1, 128, 128, 4)),
        ("Cutout", (2, 0, 0), (1, 2, 3, 4), (128, 128, 3, 4)),
        ("Cutout", (0, 0, 1), (1, 2, 3, 4), (1, 2, 3, 4)),
        ("Equalize", (), (10,) * 255 + (20,) * 255, (0,) * 255 + (255,) * 255),
        ("Equalize", (), (10,) * 255 + (20,) * 255 + (30,) * 255, (0,) * 255 + (128,) * 255 + (255,) * 255),
        ("Equalize", (), (10,) * 200 + (20,) * 255, (10,) * 200 + (20,) * 255),  # fewer than 255 below the brightest
    ],
)
def test_levels(name: str, arguments: tuple[float, ...], levels: tuple[int, ...], expected: tuple[int, ...]) -> None:
    for flavor in FLAVORS:
        assert levels_of(OPERATIONS[flavor][name](row(*levels), *arguments)) == list(expected)


def test_threshold_of_solarize_wraps_in_the_original_only() -> None:
    image = row(0, 127, 128, 255)
    assert levels_of(TF["Solarize"](image, 256)) == [255, 128, 127, 0]
    assert levels_of(TF["Solarize"](image, 384)) == [0, 127, 127, 0]
    for threshold in (256, 384):
        assert levels_of(CORRECTED["Solarize"](image, threshold)) == [0, 127, 128, 255]


@pytest.mark.parametrize(("side", "level"), [(32, 4), (160, 100), (192, 144), (224, 196), (256, 255), (320, 255)])
def test_contrast_of_the_original_blends_with_a_level_by_size(side: int, level: int) -> None:
    image = np.full((side, side, 3), 51, np.uint8)
    assert (TF["Contrast"](image, 0.0) == level).all()
    assert (CORRECTED["Contrast"](image, 0.0) == 51).all()


def test_contrast_blends_with_the_mean_grey() -> None:
    image = row(0, 0, 101, 103)
    assert levels_of(CORRECTED["Contrast"](image, 0.0)) == [51] * 4
    assert levels_of(CORRECTED["Contrast"](image, 0.5)) == [25, 25, 76, 77]
    assert levels_of(CORRECTED["Contrast"](image, 2.0)) == [0, 0, 151, 155]


def test_color_blends_with_grey() -> None:
    colours = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]]], np.uint8)
    assert levels_of(TF["Color"](colours, 0.0)) == [76, 149, 29, 255]
    assert TF["Color"](colours, 0.5)[0].tolist() == [[165, 38, 38], [74, 202, 74], [14, 14, 142], [255, 255, 255]]
    assert TF["Color"](colours, 1.5)[0].tolist() == [[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]]


def test_sharpness_blends_with_the_smoothed_image_but_at_the_border() -> None:
    image = np.zeros((5, 6, 3), np.uint8)
    image[2, 2] = image[0, 5] = 131
    smoothed = np.zeros((5, 6), int)
    smoothed[1:4, 1:4] = smoothed[1, 4] = 10
    smoothed[2, 2], smoothed[0, 5] = 50, 131
    assert (TF["Sharpness"](image, 0.0) == smoothed[..., None]).all()
    assert TF["Sharpness"](image, 2.0)[2, :, 0].tolist() == [0, 0, 212, 0, 0, 0]


@pytest.mark.parametrize("degrees", [90, 180, 270, -90])
def test_quarter_turns(degrees: int) -> None:
    image = noise(9, 9)
    np.testing.assert_array_equal(TF["Rotate"](image, degrees), np.rot90(image, degrees // 90))


def test_rotation_is_counter_clockwise_and_fills() -> None:
    turned = TF["Rotate"](np.full((21, 41, 3), 7, np.uint8), 30)
    assert (turned[[0, 0, -1, -1], [0, -1, 0, -1]] == 128).all()
    assert (turned[10, 20] == 7).all()
    dot = np.zeros((41, 41, 3), np.uint8)
    dot[19:22, 29:32] = 255  # to the right of the centre by 10
    assert TF["Rotate"](dot, 30)[15, 29].all()  # up by 5, to the right by 8.7


def test_shears_move_by_row_or_column_and_round_halves_away_from_zero() -> None:
    image = np.broadcast_to(np.arange(100, 200, dtype=np.uint8)[None, :, None], (60, 100, 3))
    sheared = TF["ShearX"](image, 0.03)[..., 0]
    assert sheared[:, 0].tolist() == [100 + int(0.03 * y + 0.5) for y in range(60)]
    assert sheared[50, 97:].tolist() == [199, 128, 128]
    back = TF["ShearX"](image, -0.03)[..., 0]
    assert back[50, :3].tolist() == [128, 128, 101]  # from -1.5, -0.5 and 0.5
    np.testing.assert_array_equal(
        TF["ShearY"](image.transpose(1, 0, 2), -0.03), TF["ShearX"](image, -0.03).transpose(1, 0, 2)
    )


@pytest.mark.parametrize("level", [1e3, -1e3, 1e9, -1e9])
def test_shears_beyond_every_bound_leave_one_row(level: float) -> None:
    image = noise(20, 30)
    sheared = TF["ShearX"](image, level)
    np.testing.assert_array_equal(sheared[0], image[0])
    assert (sheared[1:] == 128).all()


def test_translation_moves_to_the_left_and_up() -> None:
    image = noise(6, 5)
    np.testing.assert_array_equal(TF["TranslateX"](image, 2)[:, :3], image[:, 2:])
    np.testing.assert_array_equal(TF["TranslateY"](image, -2)[2:], image[:4])
    assert (TF["TranslateY"](image, -2)[:2] == 128).all()
    assert (TF["TranslateY"](image, 225) == 128).all()


# ------------------------------------------------------------------------------------------------------------ any image


@given(
    name=st.sampled_from(sorted(TF)),
    flavor=st.sampled_from(FLAVORS),
    level=st.integers(0, 30),
    shape=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    seed=st.integers(0, 1000),
)
def test_shape_and_input_are_kept(name: str, flavor: Flavor, level: int, shape: tuple[int, int], seed: int) -> None:
    image = noise(*shape, seed)
    kept = image.copy()
    arguments = draw_arguments(name, level, RANDAUGMENT, image.shape, np.random.default_rng(seed))
    operation = OPERATIONS[flavor][name]
    found = operation(image, *arguments)
    assert (found.shape, found.dtype) == (image.shape, np.uint8)
    np.testing.assert_array_equal(image, kept)
    lying = image.transpose(1, 0, 2).copy().transpose(1, 0, 2)  # the same pixels in another memory layout
    np.testing.assert_array_equal(operation(lying, *arguments), found)


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *((name, (1.0,)) for name in ("Color", "Contrast", "Brightness", "Sharpness")),
        *((name, (0.0,)) for name in ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")),
        ("SolarizeAdd", (0,)), ("Solarize", (255,)), ("Posterize", (8,)), ("Cutout", (0, 3, 3)),
    ],
)  # fmt: skip
def test_neutral_arguments_change_nothing(name: str, arguments: tuple[float, ...], flavor: Flavor) -> None:
    image = np.minimum(noise(70, 65), 254)
    np.testing.assert_array_equal(OPERATIONS[flavor][name](image, *arguments), image)


def test_operations_on_large_images_are_those_on_their_parts() -> None:
    """Large images are processed in parts, which must leave no seams."""
    image = noise(300, 200)
    for name in ("Color", "Sharpness", "ShearX"):
        whole = TF[name](image, 0.2)
        np.testing.assert_array_equal(whole[100:150], TF[name](image[:152], 0.2)[100:150])
