"""Files with a flipped byte, or truncated: the damage is noticed and the file named, or harmless; never a wrong result.

Small files of each kind are damaged at seeded places and read with the functions that the verbs use. Damage that is not
noticed must leave the result the same to the last bit.
"""

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.checkpoints import reading, store, tf1, torch_files
from resnet_tpu.checkpoints.meta import make_meta
from resnet_tpu.data.prepare.options import PrepareOptions
from resnet_tpu.data.prepare.prepare import prepare
from resnet_tpu.data.records.tfrecord import RecordFile
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.errors import UserError
from resnet_tpu.models.from_options import create_network
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import Config
from resnet_tpu.parallel import meshes
from resnet_tpu.serving.export.bundle import open_bundle, write_bundle
from resnet_tpu.serving.export.fold import fold
from resnet_tpu.serving.export.onnx import write_onnx
from resnet_tpu.serving.export.quantize import write_int8
from resnet_tpu.serving.export.stablehlo import write_stablehlo
from resnet_tpu.training.inference.trained import Trained

FLIPS, SHORT_FLIPS = 1000, 12
CLASSES = ["daisy", "rose", "tulip"]
CONFIG = Config().replace(
    resnet_depth=18, resnet_width=4, precision="float32", image_size=32, num_label_classes=3, data_dir="synthetic",
    num_train_images=8, stem="imagenet",
)  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """Files of one kind, and a function that reads their contents in a form that can be compared."""

    files: list[Path]
    read: Callable[[], Any]


def records(folder: Path) -> Subject:
    """Shards, indexes and manifest, as `prepare` writes them."""
    rng = np.random.default_rng(0)
    for name in CLASSES:
        (folder / "raw" / name).mkdir(parents=True)
        for number in range(4):
            photo = rng.integers(0, 256, (16, 16, 3), np.uint8)
            cv2.imwrite(str(folder / "raw" / name / f"{number}.jpg"), photo)
    out = folder / "data"
    prepare(str(folder / "raw"), str(out), PrepareOptions(train_shards=2, validation_shards=1, workers=1))

    def read() -> Any:
        source = open_source(Config().replace(data_dir=str(out)).data, "train")
        return [tuple(source[i]) for i in range(len(source))], source.class_names, source.num_classes

    return Subject([*out.glob("train-*"), *(out / "_index").glob("train-*"), out / "manifest.json"], read)


def checkpoint(folder: Path, *, masked: bool = False) -> Subject:
    """A checkpoint in our format, with masks on request."""
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(20, 30)).astype(np.float32) for name in ("params", "momentum")}
    mask = rng.random((20, 30)) < (0.3 if masked else 1)
    arrays = {name: {"dense": {"kernel": jnp.asarray(array * mask)}} for name, array in weights.items()}
    arrays |= {"masks": {"dense": {"kernel": jnp.asarray(mask)}}} if masked else {}
    with store.CheckpointStore(str(folder), keep=1) as checkpoints:
        checkpoints.save(5, {**arrays, "step": jnp.int32(5)}, make_meta(CONFIG, CLASSES, position=0))
    path = str(folder / "5")

    def read() -> Any:
        found = reading.load_all(path)
        arrays = [(name, array.tobytes()) for name, array in reading.leaves(found.arrays)]
        return arrays, found.meta, reading.read_meta(path), reading.written_at(path)

    return Subject([file for file in (folder / "5").rglob("*") if file.is_file()], read)


def drawn(config: Config = CONFIG) -> tuple[Network, dict[str, Any]]:
    """A network with random arrays."""
    network = create_network(config.model, num_classes=3, image_size=32)
    rng = np.random.default_rng(0)
    arrays = jax.tree.map(lambda leaf: rng.uniform(0.3, 1.2, leaf.shape).astype(np.float32), network.shape_trees())
    return network, arrays


def tensorflow(folder: Path) -> Subject:
    """A checkpoint in the original's format: index and data."""
    small, arrays = drawn()
    prefix = Path(tf1.write_checkpoint(str(folder), small, {"step": np.int32(7), **arrays}))

    def read() -> Any:
        found = tf1.from_tf1(small, tf1.read_checkpoint(str(prefix)))
        return [np.asarray(array).tobytes() for array in jax.tree.leaves(found)]

    return Subject(sorted(prefix.parent.glob(f"{prefix.name}.*")), read)


def weights(folder: Path) -> Subject:
    """A file as `convert --to=safetensors` writes it."""
    whole, arrays = drawn(CONFIG.replace(resnet_width=64, project_first_group=False))  # as in PyTorch's ResNet
    path = folder / "weights.safetensors"
    torch_files.write_safetensors(str(path), whole, arrays, class_names=CLASSES)

    def read() -> Any:
        found = torch_files.read_state_dict(str(path))
        return {name: array.tobytes() for name, array in found.items()}, torch_files.read_class_names(str(path))

    return Subject([path], read)


def bundle(folder: Path) -> Subject:
    """An export: description, labels, StableHLO, ONNX and int8."""
    small, arrays = drawn()
    trained = Trained("", 3, CONFIG, CLASSES, small, arrays["params"], arrays["batch_stats"], meshes.make_mesh(1))
    folded = fold(trained)
    card = {"name": "flowers", "class_names": CLASSES, "image_size": 32, "resize_method": "bicubic"}
    path = write_bundle(
        str(folder), card, CONFIG,
        [
            ("onnx", lambda: write_onnx(folded)),
            ("int8", lambda: write_int8(folded, CONFIG.data)),
            ("stablehlo", lambda: write_stablehlo(folded)),
        ],
    )  # fmt: skip

    def read() -> Any:
        found = open_bundle(path)
        return found, [found.read(name) for name in found.files]

    return Subject([file for file in Path(path).rglob("*") if file.is_file()], read)


KINDS: dict[str, Callable[[Path], Subject]] = {
    "records": records,
    "checkpoint": checkpoint,
    "pruned checkpoint": lambda folder: checkpoint(folder, masked=True),
    "tf1": tensorflow,
    "safetensors": weights,
    "bundle": bundle,
}
LONG_KINDS = ("checkpoint", "pruned checkpoint", "safetensors")


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Subject]:
    """Gives the files of a kind, created only once."""
    made: dict[str, Subject] = {}

    def subject(kind: str) -> Subject:
        if kind not in made:
            made[kind] = KINDS[kind](tmp_path_factory.mktemp(kind.replace(" ", "_")))
        return made[kind]

    return subject


def outcome(subject: Subject, expected: Any, file: Path, damaged: bytes) -> str:
    """'noticed' or 'harmless'; fails for anything else. Restores the file afterwards."""
    whole = file.read_bytes()
    file.write_bytes(damaged)
    try:
        assert subject.read() == expected, f"{file.name} has another content, and nobody noticed"
    except UserError as error:
        names = {file.name, *{"5"}.intersection(file.parts)}  # a checkpoint is named by its step
        assert names & {*str(error).replace("/", " ").replace(":", " ").split()}, error
        return "noticed"
    finally:
        file.write_bytes(whole)
    return "harmless"


def flipped(rng: random.Random, content: bytes) -> bytes:
    """The content with one byte changed, in one bit or in any bits."""
    at = rng.randrange(len(content))
    change = 1 << rng.randrange(8) if rng.random() < 0.5 else rng.randrange(1, 256)
    return content[:at] + bytes([content[at] ^ change]) + content[at + 1 :]


def check_flips(subject: Subject, count: int) -> Counter[str]:
    rng = random.Random(0)
    expected, files = subject.read(), [file for file in sorted(subject.files) if file.stat().st_size]
    found: Counter[str] = Counter()
    for number in range(count):
        file = files[number % len(files)]
        found[outcome(subject, expected, file, flipped(rng, file.read_bytes()))] += 1
    assert subject.read() == expected
    print(dict(found))
    return found


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Orbax leaves tasks behind
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.long] if kind in LONG_KINDS else []) for kind in KINDS]
)
def test_a_flipped_byte_is_noticed_or_harmless(kind: str, subject: Callable[[str], Subject]) -> None:
    assert check_flips(subject(kind), SHORT_FLIPS)["noticed"] >= 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_1000_flipped_bytes_are_noticed_or_harmless(kind: str, subject: Callable[[str], Subject]) -> None:
    assert check_flips(subject(kind), FLIPS)["noticed"] > FLIPS / 2


def cuts(file: Path) -> dict[str, bytes]:
    """The contents of the file truncated or extended, in each way that matters to its format."""
    content = file.read_bytes()
    sizes = {"nothing": 0, "a byte": 1, "in the header": 6, "a header": 12, "half": len(content) // 2}
    sizes |= {"before the last checksum": -4, "in the last checksum": -2, "the last byte": -1}
    found = {name: content[:size] for name, size in sizes.items()} | {"more": content + b"\x00garbage"}
    if "train-" in file.name and not file.name.endswith(".npy"):
        found["between two records"] = content[: RecordFile(str(file)).offset(1)]
    return {name: damaged for name, damaged in found.items() if damaged != content}


def check_cuts(subject: Subject, files: list[Path]) -> None:
    expected = subject.read()
    found = Counter(outcome(subject, expected, file, cut) for file in files for cut in cuts(file).values())
    print(dict(found))
    assert found["noticed"] >= found["harmless"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_every_truncation_is_noticed_or_harmless(kind: str, subject: Callable[[str], Subject]) -> None:
    check_cuts(subject(kind), subject(kind).files)


def test_a_shard_that_ends_between_two_records_is_noticed(subject: Callable[[str], Subject]) -> None:
    data = subject("records")
    check_cuts(data, [file for file in data.files if file.suffix == ""][:1])


def run(*words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "resnet_tpu", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["records", "checkpoint", "tf1", "safetensors", "bundle"])
def test_commands_name_the_damaged_file(kind: str, subject: Callable[[str], Subject], tmp_path: Path) -> None:
    files = sorted(subject(kind).files, key=lambda file: file.stat().st_size)
    file = files[-1]
    photo = tmp_path / "photo.png"
    cv2.imwrite(str(photo), np.zeros((32, 32, 3), np.uint8))
    options = "image_size=16,resnet_depth=18,resnet_width=4,train_steps=1,train_batch_size=4,num_cores=1,mode=train"
    words = {
        "records": ["train", f"--data_dir={file.parent}", f"--model_dir={tmp_path}", f"--params_override={options}"],
        "checkpoint": ["predict", next((path for path in file.parents if path.name == "5"), ""), photo],
        "tf1": ["convert", file.parent, tmp_path / "new"],
        "safetensors": ["convert", file, tmp_path / "new"],
        "bundle": ["predict", file.parent, photo, f"--form={'onnx' if 'onnx' in file.name else 'stablehlo'}"],
    }
    whole = file.read_bytes()
    try:
        at = len(whole) // 3
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        done = run(*words[kind])
    finally:
        file.write_bytes(whole)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert file.name in done.stderr or "/5: got" in done.stderr
