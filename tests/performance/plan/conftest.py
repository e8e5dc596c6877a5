"""A small compiled program, and plans made without a compiler."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from resnet_tpu.options.config import Config
from resnet_tpu.performance.plan import compiler
from resnet_tpu.performance.plan.memory import Memory
from resnet_tpu.performance.plan.operations import Operation
from resnet_tpu.performance.plan.plan import Plan, Step
from resnet_tpu.performance.plan.timing import time_step
from resnet_tpu.performance.plan.topology import find_topology


@pytest.fixture(scope="session", autouse=True)
def kept_by_this_version() -> Iterator[None]:
    """What an earlier version of these modules kept of a compiled program is read again from a new compilation."""
    sources = sorted(Path(compiler.__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "FORMAT", digest)
        yield


@pytest.fixture
def program() -> str:
    """The text of a made-up compiled program in libtpu's style.

    It has a convolution, a pooling and an all-reduce without cycles, a loop that runs four times, and an update.
    """
    return Path(__file__).with_name("step.hlo").read_text()


MEMORY = Memory(
    parameters=100 << 20, optimizer=100 << 20, statistics=1 << 20, batch=20 << 20, activations=4 << 30,
    program=50 << 20, other=0,
)  # fmt: skip
OPERATIONS = (
    Operation("fusion.1", "convolution", "group1/block1/conv1", "backward", 2, 70_000_000, 10**9),
    Operation("fusion.2", "batch norm", "group1/block1/norm", "forward", 1, 35_000_000, 10**9),
    Operation("select-and-scatter", "pooling", "", "backward", 1, None, 350_000_000),
    Operation("all-reduce", "all-reduce", "", "backward", 1, None, 50_000_000),
)


def make_plan(slice_name: str = "v2:2x2", *, fits: bool = True, batch_per_device: int = 128, **changes: object) -> Plan:
    """A plan of 1000 steps and ten evaluations, as the compiler might give it."""
    topology = find_topology(slice_name)
    time = time_step(OPERATIONS, topology)
    batch = batch_per_device * topology.devices
    if fits:
        train = Step(batch, batch_per_device, True, MEMORY.total, MEMORY, time, OPERATIONS, 0.5)
    else:
        train = Step(batch, batch_per_device, False, int(3 * topology.device_memory), None, None, (), None)
    evaluation = Step(batch, batch_per_device, True, MEMORY.total, MEMORY, time, OPERATIONS, 0.2)
    fields: dict[str, object] = {
        "topology": topology, "devices": topology.devices, "train": train, "eval": evaluation,
        "train_images": Config().train.train_batch_size * 100, "eval_images": 10 * batch, "train_steps": 1000,
        "evaluations": 10, "price_per_chip_hour": 2.0, "host": None, "largest_batch": None,
        "compiled_for": topology.name, "compiler": "libtpu 0.0.42.1",
    }  # fmt: skip
    return Plan(**(fields | changes))  # pyright: ignore[reportArgumentType]  # a dict of mixed values
