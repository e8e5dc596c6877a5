"""Resizing compared with TensorFlow 1's definition and the original's results."""

import numpy as np
import pytest

from resnet_tpu.data.pixels.resize import Method, resize, resize_to_uint8


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height * 10_000 + width).integers(0, 256, (height, width, 3), np.uint8)


METHODS: tuple[Method, ...] = ("bicubic", "bilinear")


def weights(length: int, size: int, method: Method) -> np.ndarray:
    """Resizing along one axis as a dense matrix, float64 [size, length], written from the kernel's definition."""

    def near(x: float) -> float:
        return (1.25 * x - 2.25) * x * x + 1

    def far(x: float) -> float:
        return ((-0.75 * x + 3.75) * x - 6) * x + 3

    matrix = np.zeros((size, length))
    scale = np.float32(length) / np.float32(size)
    for i in range(size):
        position = np.float32(i) * scale
        first = int(position)
        t = float(position - np.float32(first))
        taps = {first: 1 - t, first + 1: t}
        if method == "bicubic":
            t = round(t * 1024) / 1024
            taps = {first - 1: far(1 + t), first: near(t), first + 1: near(1 - t), first + 2: far(2 - t)}
        for tap, weight in taps.items():
            matrix[i, min(max(tap, 0), length - 1)] += weight
    return matrix


def test_known_values() -> None:
    row = np.array([0, 0, 255, 255], np.uint8)
    image = np.broadcast_to(row[None, :, None], (8, 4, 3))
    expected = [0, -23.90625, 0, 127.5, 255, 278.90625, 255, 255]
    np.testing.assert_array_equal(resize(image, 8), np.broadcast_to(np.array(expected)[None, :, None], (8, 8, 3)))
    ramp = np.broadcast_to(np.arange(16, dtype=np.uint8).reshape(4, 4, 1), (4, 4, 3))
    np.testing.assert_allclose(resize(ramp, 3)[0, :, 0], [0, 1.3700992, 2.741012], rtol=1e-6)


def test_known_bilinear_values() -> None:
    row = np.array([0, 10, 250, 30], np.uint8)
    image = np.broadcast_to(row[None, :, None], (5, 4, 3))
    larger = [0, 5, 10, 130, 250, 140, 30, 30]  # positions 0, 0.5, 1 ...; beyond the last pixel, its value is repeated
    found = resize(image, 8, method="bilinear")
    np.testing.assert_array_equal(found, np.broadcast_to(np.array(larger)[None, :, None], (8, 8, 3)))
    smaller = [0, 10 + 240 / 3, 250 - 220 * 2 / 3]  # positions 0, 4/3, 8/3, without antialiasing
    np.testing.assert_allclose(resize(image, 3, method="bilinear")[1, :, 2], smaller, rtol=1e-6)
    np.testing.assert_allclose(resize(image.transpose(1, 0, 2), 3, method="bilinear")[:, 1, 2], smaller, rtol=1e-6)


@pytest.mark.peer("tensorflow-cpu")
@pytest.mark.parametrize("shape", [(375, 500), (90, 70), (1000, 301)])
def test_is_tensorflows(shape: tuple[int, int]) -> None:
    tensorflow = pytest.importorskip("tensorflow")
    image = noise(*shape)
    for method in METHODS:
        kernel = {"bicubic": tensorflow.raw_ops.ResizeBicubic, "bilinear": tensorflow.raw_ops.ResizeBilinear}[method]
        expected = kernel(images=image[None], size=[224, 224])[0].numpy()
        np.testing.assert_allclose(resize(image, 224, method=method), expected, rtol=0, atol=5e-4)  # float32 sums too


# All kinds of sides: enlarged, shrunk, shrunk so much that pixels are skipped, and degenerate.
@pytest.mark.parametrize(
    ("height", "width", "size"), [(13, 40, 32), (200, 77, 32), (131, 400, 32), (1, 7, 16), (5, 1, 8)]
)
@pytest.mark.parametrize("method", METHODS)
def test_is_two_matrix_products(height: int, width: int, size: int, method: Method) -> None:
    image = noise(height, width)
    expected = np.einsum("yh,hwc,xw->yxc", weights(height, size, method), image, weights(width, size, method))
    found = resize(image, size, method=method)
    np.testing.assert_allclose(found, expected, atol=5e-4)  # float32 sums of values below 400
    np.testing.assert_array_equal(resize(image, size, mirrored=True, method=method), found[:, ::-1])


def test_same_size_is_the_same_image() -> None:
    image = noise(32, 32)
    np.testing.assert_array_equal(resize(image, 32), image)


def test_uint8_is_rounded_and_clipped() -> None:
    image = np.where(noise(40, 50) > 127, 255, 0).astype(np.uint8)[2:, 3:]  # makes the kernel overshoot; not contiguous
    exact = resize(image, 64)
    out = np.empty((64, 64, 3), np.uint8)
    resize_to_uint8(image, out)
    assert exact.min() < -10
    assert exact.max() > 265
    np.testing.assert_array_equal(out, np.clip(np.rint(exact), 0, 255))
