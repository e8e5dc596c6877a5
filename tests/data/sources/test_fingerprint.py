"""The hash equals TensorFlow's, for texts of all lengths that it treats differently."""

import random

import pytest

from resnet_tpu.data.sources.fingerprint import fingerprint


@pytest.mark.parametrize(
    ("text", "expected"),  # values of tf.strings.to_hash_bucket_fast
    [
        (b"", 11160318154034397263),
        (b"a", 12917804110809363939),
        (b"n01440764_10026.JPEG", 10039506620223816361),
        (b"ILSVRC2012_val_00000001.JPEG", 5943321549862734611),
        (b"x" * 50, 4607997358663321893),
        (bytes(range(100)), 4395248839964844437),
        (bytes(range(128)), 2037963038260878803),
        (bytes(range(200)), 525935771297148851),
    ],
)
def test_known_values(text: bytes, expected: int) -> None:
    assert fingerprint(text) == expected


@pytest.mark.peer("tensorflow-cpu")
def test_every_length_beside_tensorflow() -> None:
    strings = pytest.importorskip("tensorflow").strings
    rng, buckets = random.Random(0), 2**62 + 57
    texts = [rng.randbytes(length) for length in range(300)]
    theirs = strings.to_hash_bucket_fast(texts, buckets).numpy().tolist()
    assert [fingerprint(text) % buckets for text in texts] == theirs
