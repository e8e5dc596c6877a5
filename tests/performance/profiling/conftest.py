"""Photos that all kinds of profiles can use."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from resnet_tpu.data.records.example import encode_example
from resnet_tpu.data.records.tfrecord import RecordWriter

SIDES = (300, 400)
NUM_IMAGES = 24


@pytest.fixture(scope="session")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TFRecords with 24 JPEG photos of 300 x 400 px from four classes, in two shards."""
    folder = tmp_path_factory.mktemp("records")
    rng = np.random.default_rng(0)
    for shard in range(2):
        with RecordWriter(f"{folder}/train-{shard:05}-of-00002") as writer:
            for number in range(NUM_IMAGES // 2):
                photo = cv2.resize(rng.integers(0, 256, (10, 10, 3), np.uint8), SIDES[::-1])
                encoded = cv2.imencode(".jpg", photo)[1].tobytes()
                features = {"image/encoded": encoded, "image/class/label": number % 4 + 1, "image/filename": "a.jpg"}
                writer.write(encode_example(features))
    return folder
