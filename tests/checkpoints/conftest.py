"""The same weights in a file of each kind; and a writer of tensor bundles, written from the descriptions of the formats
and independently of the reader that it tests."""

import functools
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from resnet_tpu.checkpoints import folders, tf1
from resnet_tpu.checkpoints.meta import make_meta
from resnet_tpu.checkpoints.store import CheckpointStore
from resnet_tpu.checkpoints.torch_names import to_torch, torch_names
from resnet_tpu.checkpoints.weights import Kind, Weights, open_weights
from resnet_tpu.models.arrays import Arrays, leaf_at
from resnet_tpu.models.from_options import create_network
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import Config

WriteBundle = Callable[..., str]
_TYPES = {"float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int64": 9, "bool": 10, "bfloat16": 14, "float16": 19}


@dataclass(frozen=True)
class ThreeKinds:
    """The same weights, `arrays`, in a folder per kind: a `model_dir`, a TF1 checkpoint, a Hugging Face repository."""

    folders: dict[Kind, Path]
    network: Network
    arrays: Arrays
    class_names: list[str]

    def open(self, kind: Kind) -> Weights:
        """The weights of this kind, read once for all tests, which leave them as they are."""
        return _open(str(self.folders[kind]))


_open = functools.cache(open_weights)


@pytest.fixture(scope="session")
def three_kinds(tmp_path_factory: pytest.TempPathFactory) -> ThreeKinds:
    """A ResNet-18 of width 4 for 3 classes with random arrays, after 7 steps; torch's has no moving averages.

    Its colours are normalised by a mean of 0.5, which only our own checkpoint records.
    """
    config = Config().replace(
        resnet_depth=18, resnet_width=4, num_label_classes=3, image_size=64, stem="imagenet", mean_rgb="0.5,0.5,0.5"
    )
    network = create_network(config.model, num_classes=3, image_size=64)
    rng = np.random.default_rng(0)
    weights = network.shape_trees()
    shapes = {**weights, "momentum": weights["params"], "ema": weights}
    drawn = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), shapes)
    arrays = {"step": jnp.int32(7), **drawn}
    names = ["daisy", "rose", "tulip"]
    kinds: tuple[Kind, ...] = ("ours", "tf1", "torch")
    paths: dict[Kind, Path] = {kind: tmp_path_factory.mktemp(kind) for kind in kinds}
    with CheckpointStore(str(paths["ours"] / folders.CHECKPOINTS), keep=1) as checkpoints:
        checkpoints.save(7, arrays, make_meta(config, names, position=0))
    tf1.write_checkpoint(str(paths["tf1"]), network, arrays)
    named = {
        name: np.ascontiguousarray(to_torch(np.asarray(leaf_at(arrays, place))))
        for name, place in torch_names(network).items()
    }
    named["bn1.num_batches_tracked"] = np.array(7)
    safetensors.numpy.save_file(named, paths["torch"] / "model.safetensors")
    return ThreeKinds(paths, network, arrays, names)


@pytest.fixture
def write_bundle(tmp_path: Path) -> WriteBundle:
    """write_bundle(arrays, name="model.ckpt-7", num_shards=1, dtypes=None) -> the bundle's prefix.

    Array i of `arrays` goes to shard i modulo `num_shards`. `dtypes` maps names to false type numbers to record.
    """

    def write(
        arrays: Mapping[str, np.ndarray],
        *,
        name: str = "model.ckpt-7",
        num_shards: int = 1,
        dtypes: Mapping[str, int] | None = None,
    ) -> str:
        prefix = tmp_path / name
        shards = [b""] * num_shards
        entries = {b"": _field(1, num_shards) + _field(3, b"\x08\x01")}
        for i, (key, array) in enumerate(arrays.items()):
            shard, data = i % num_shards, array.tobytes()
            shape = b"".join(_field(2, _field(1, size)) for size in array.shape)
            dtype = (dtypes or {}).get(key) or _TYPES[jnp.dtype(array.dtype).name]
            place = _field(3, shard) + _field(4, len(shards[shard])) + _field(5, len(data))
            entries[key.encode()] = _field(1, dtype) + _field(2, shape) + place + b"\x35" + _masked_crc(data)
            shards[shard] += data
        for shard, data in enumerate(shards):
            Path(f"{prefix}.data-{shard:05d}-of-{num_shards:05d}").write_bytes(data)
        Path(f"{prefix}.index").write_bytes(_table(dict(sorted(entries.items()))))
        return str(prefix)

    return write


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


def _field(number: int, value: int | bytes) -> bytes:
    """A protobuf field; zeros are left out, as proto3 does."""
    if isinstance(value, bytes):
        return _varint(number << 3 | 2) + _varint(len(value)) + value
    return _varint(number << 3) + _varint(value) if value else b""


def _masked_crc(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32)


def _table(pairs: Mapping[bytes, bytes], entries_per_block: int = 5) -> bytes:
    out, handles = b"", {}

    def add(entries: Mapping[bytes, bytes]) -> bytes:
        nonlocal out
        data = _block(entries) + b"\0"
        handle = _varint(len(out)) + _varint(len(data) - 1)
        out += data + _masked_crc(data)
        return handle

    keys = list(pairs)
    for start in range(0, len(keys), entries_per_block):
        block = {key: pairs[key] for key in keys[start : start + entries_per_block]}
        handles[max(block)] = add(block)
    footer = add({}) + add(handles)
    return out + footer.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")


def _block(entries: Mapping[bytes, bytes], restart_interval: int = 3) -> bytes:
    out, restarts, last = b"", [], b""
    for i, (key, value) in enumerate(entries.items()):
        shared = 0
        if i % restart_interval == 0:
            restarts.append(len(out))
        else:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        out += _varint(shared) + _varint(len(key) - shared) + _varint(len(value)) + key[shared:] + value
        last = key
    restarts = restarts or [0]
    return out + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
