"""With XLA for CUDA: the real ResNet-50 compiles for GPUs that this machine lacks. Run by `make check-gpu`."""

import dataclasses
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from resnet_tpu.models.architecture import ARCHITECTURES
from resnet_tpu.options.config import Config
from resnet_tpu.parallel.meshes import mesh_of
from resnet_tpu.performance.plan import compiler
from resnet_tpu.performance.plan.compiler import OutOfMemory, compile_step, compiler_of, devices_of
from resnet_tpu.performance.plan.hlo import COLLECTIVES
from resnet_tpu.performance.plan.lowering import lower_eval_step, lower_train_step
from resnet_tpu.performance.plan.operations import bytes_of
from resnet_tpu.performance.plan.plan import plan, resolve_counts
from resnet_tpu.performance.plan.topology import find_topology
from resnet_tpu.training.compiler_options import uncached


def is_installed() -> bool:
    """Whether XLA for CUDA is installed."""
    return any(map(compiler.installed_version, compiler.CUDA_PLUGINS))


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not is_installed(), reason="JAX's plugin for CUDA is not installed"),
]

ROOT = Path(__file__).resolve().parents[3]
BATCH = 256
"""Images per GPU."""

TINY = resolve_counts(
    Config().replace(
        resnet_depth=50, resnet_width=8, image_size=32, stem="imagenet", num_label_classes=10, train_batch_size=64,
        eval_batch_size=64,
    )
)  # fmt: skip


@pytest.mark.parametrize(
    ("topology", "kernels", "gigabytes", "operations", "temporary"),
    [("h200:1", "plain", 107, 1200, 11.5), ("h200:1", "gpu", 76, 1300, 8.0), ("h200:8", "gpu", 90, 1700, 9.0)],
)
def test_the_real_step_compiles_and_stays_within_its_bounds(
    topology: str, kernels: str, gigabytes: float, operations: int, temporary: float
) -> None:
    """The bounds are slightly above the figures for jax 0.10.2 (benchmarks/gpu_step.md)."""
    target = find_topology(topology)
    batch = BATCH * target.devices
    mode = "train_and_eval" if kernels == "gpu" else "train"  # evaluation has no kernels
    found = plan(Config().replace(kernels=kernels, train_batch_size=batch, eval_batch_size=batch, mode=mode), target)
    assert found.fits
    assert found.train and found.train.memory and found.train.time and found.train.utilisation
    assert 20 < bytes_of(found.train.operations) / 1e9 < gigabytes
    assert sum(one.count for one in found.train.operations) < operations
    assert found.train.memory.activations / 1e9 < temporary
    assert found.train.time.total >= found.train.time.memory > found.train.time.peak > 0
    assert found.train.memory.parameters == 4 * 25_557_032
    for step in filter(None, (found.train, found.eval)):
        assert "convolution" in {one.kind for one in step.operations}
        between = {one.kind for one in step.operations} & {*COLLECTIVES}
        assert between == ({"all-reduce"} if target.devices > 1 else set())


@pytest.mark.parametrize(
    ("name", "kernels"), [("h100", "plain"), ("h100", "fused"), ("h100", "gpu"), ("a100", "plain")]
)
def test_gpus_send_each_other_sums_alone(name: str, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHITECTURES, 50, dataclasses.replace(ARCHITECTURES[50], blocks_per_group=(2, 1, 1, 1)))
    mesh = mesh_of(devices_of(find_topology(f"{name}:8")))
    lowered = [lower_train_step(TINY.replace(kernels=kernels), mesh)]
    lowered += [lower_eval_step(TINY, mesh)] if kernels == "plain" else []
    for each in lowered:
        with uncached():
            text = each.compile().as_text() or ""
        kinds = r"all-reduce|all-gather|all-to-all|ragged-all-to-all|reduce-scatter|collective-\w+|send|recv"
        assert set(re.findall(rf" ({kinds})(?:-start)?\(", text)) == {"all-reduce"}


def test_the_gpus_are_of_one_machine_and_the_memory_is_what_jax_takes() -> None:
    topology = find_topology("a100:4")
    found = devices_of(topology)
    assert len(found) == 4
    assert {device.process_index for device in found} == {0}
    assert "A100" in found[0].device_kind
    assert compiler_of(topology).startswith("jax-cuda")
    large = TINY.replace(image_size=1024, eval_batch_size=16384)
    with pytest.raises(OutOfMemory) as caught:
        compile_step(lower_eval_step(large, mesh_of(found)), topology)
    assert caught.value.needed is not None
    assert caught.value.needed > topology.device_memory


def test_a_look_for_the_memory_leaves_a_later_plan_its_operations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    topology = find_topology("h200:1")
    lowered = lower_eval_step(TINY, mesh_of(devices_of(topology)))
    compile_step(lowered, topology, memory_only=True)
    assert compile_step(lowered, topology).operations


def test_commands_of_the_page_run_as_they_are(tmp_path: Path) -> None:
    """Commands in ```bash blocks of docs/gpu.md; the others are parsed by tests/test_docs.py."""
    blocks = (ROOT / "docs" / "gpu.md").read_text().split("```bash\n")[1:]
    lines = [line for block in blocks for line in block.partition("```")[0].replace("\\\n", " ").splitlines()]
    assert lines
    for line in lines:
        command = [sys.executable, "-m", "resnet_tpu", *shlex.split(line, comments=True)[1:]]
        done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        assert "no step is faster" in done.stdout
