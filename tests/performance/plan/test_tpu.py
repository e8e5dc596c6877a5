"""With the TPU compiler: the training steps of recipes fit their slices. Run by `make check-tpu`."""

import dataclasses
import importlib.util
import json
import math
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from resnet_tpu.models.architecture import ARCHITECTURES
from resnet_tpu.models.flops import parameter_shapes
from resnet_tpu.models.from_options import network_of
from resnet_tpu.options.config import Config
from resnet_tpu.parallel.meshes import mesh_of
from resnet_tpu.performance.plan.compiler import OutOfMemory, compile_step, devices_of
from resnet_tpu.performance.plan.lowering import lower_eval_step, lower_train_step
from resnet_tpu.performance.plan.plan import plan, resolve_counts
from resnet_tpu.performance.plan.topology import find_topology
from resnet_tpu.recipes import find_recipe
from resnet_tpu.recipes.imagenet import CLOUD, MODERN
from resnet_tpu.training import compiler_options
from resnet_tpu.training.compiler_options import compiler_options_for, uncached
from resnet_tpu.training.kernel_choice.setting import KernelSetting

pytestmark = [
    pytest.mark.tpu,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed"),
]

ROOT = Path(__file__).resolve().parents[3]
TINY = resolve_counts(
    Config().replace(
        resnet_depth=18, resnet_width=8, image_size=32, stem="imagenet", num_label_classes=10, train_batch_size=64,
        eval_batch_size=64,
    )
)  # fmt: skip


@pytest.mark.parametrize(
    ("recipe", "blocks"),
    [
        ("v5e-8", (2, 1, 1, 1)),
        *(pytest.param(name, None, marks=pytest.mark.slow) for name in ("v2-8", "v5e-8", "v3-512")),
    ],
)
def test_the_recipe_compiles_and_fits_its_slice(
    recipe: str, blocks: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole network, which takes minutes on a core, or one with only a few blocks, each kind included."""
    if blocks:
        monkeypatch.setitem(ARCHITECTURES, 50, dataclasses.replace(ARCHITECTURES[50], blocks_per_group=blocks))
    config = find_recipe(recipe)
    found = plan(config, find_topology(recipe))
    assert found.fits
    for step in (found.train, found.eval):
        assert step and step.memory and step.time and step.utilisation
        assert 0 < step.memory.total <= found.topology.device_memory
        assert 0.05 < step.utilisation < 1
        assert "convolution" in {operation.kind for operation in step.operations}
        uncounted = {each.kind for each in step.operations if each.cycles is None and each.bytes > 2**20}
        assert uncounted <= {"pooling", "all-reduce"}  # nothing else is missing in the sum of cycles
    assert found.train and found.train.memory
    parameters = 4 * sum(map(math.prod, parameter_shapes(network_of(config)).values()))  # float32
    padding = 1.4 if blocks else 1.2  # to whole tiles; narrow layers have the most
    assert parameters < found.train.memory.parameters < padding * parameters
    assert found.train.memory.optimizer == pytest.approx(found.train.memory.parameters, rel=0.01)
    assert any(operation.kind == "all-reduce" for operation in found.train.operations)


def test_the_compiler_knows_every_slice() -> None:
    for name in CLOUD | MODERN:
        topology = find_topology(name)
        assert len(devices_of(topology)) == topology.devices


def test_what_was_compiled_once_is_read_from_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    topology = find_topology("v5e:2x2")
    lowered = lower_eval_step(TINY, mesh_of(devices_of(topology)))
    first = compile_step(lowered, topology)
    (file,) = (tmp_path / "resnet_tpu" / "plan").iterdir()
    with monkeypatch.context() as patch:
        patch.delattr("resnet_tpu.performance.plan.compiler._compile")
        assert compile_step(lowered, topology) == first
    file.write_text("{")
    assert compile_step(lowered, topology) == first


def test_a_run_of_another_length_and_of_more_chips_compiles_nothing_new(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = TINY.replace(mode="train")
    first = plan(config, find_topology("v5e:2x2"))
    more = config.replace(train_steps="7epochs", num_train_images=4096, train_batch_size=256)
    second = plan(more, find_topology("v5e:4x4"), fast=True)
    assert (first.train_steps, second.train_steps) == (112590, 112)
    assert first.train and second.train and second.train.batch_per_device == first.train.batch_per_device
    assert len(list((tmp_path / "resnet_tpu" / "plan").iterdir())) == 1


def test_gradient_accumulation_counts_every_part() -> None:
    topology = find_topology("v3:2x2")
    mesh = mesh_of(devices_of(topology))
    lowered = lower_train_step(TINY.replace(gradient_accumulation_steps=4), mesh)
    assert 4 in {operation.count for operation in compile_step(lowered, topology).operations}


@pytest.mark.parametrize("slice_", ["v2:2x2", "v3:2x2", "v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2"])
def test_when_only_the_memory_is_asked_for_it_is_the_same_but_for_the_program(slice_: str) -> None:
    topology = find_topology(slice_)
    lowered = lower_train_step(TINY, mesh_of(devices_of(topology)))
    memory, alone = (compile_step(lowered, topology, memory_only=only).memory for only in (False, True))
    assert dataclasses.replace(alone, program=memory.program) == memory


@pytest.mark.parametrize(
    ("slice_", "more"),
    [
        ("v2:2x2", {}),
        ("v4:2x2x1", {"xla_tpu_sliced_prefetch_max_slices": "0"}),
        ("v5e:2x2", {"xla_tpu_scoped_vmem_limit_kib": "49152"}),
        ("v5p:2x2x1", {"xla_tpu_scoped_vmem_limit_kib": "49152"}),
        ("v6e:2x2", {"xla_tpu_scoped_vmem_limit_kib": "65536"}),
    ],
)
def test_compiler_options_fit_the_generation(slice_: str, more: dict[str, str]) -> None:
    every = {"xla_tpu_enable_multi_level_output_dot_dot_fusion": "true"}
    assert compiler_options_for(devices_of(find_topology(slice_))[0]) == every | more


def test_an_option_that_the_compiler_does_not_know_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another compiler version may lack an option; the step must still compile, in training and for a plan."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    topology = find_topology("v4:2x2x1")
    mesh = mesh_of(devices_of(topology))
    monkeypatch.setitem(compiler_options._BY_GENERATION, "v4", {"xla_tpu_no_such_option": "1"})
    with uncached():
        assert lower_train_step(TINY, mesh, KernelSetting("plain", tuned_compiler=True)).compile().as_text()
    assert compile_step(lower_eval_step(TINY, mesh), topology, options={"xla_tpu_nor_this_one": "1"}).operations
    assert caplog.text.count("xla_tpu_no_such_option=1") == 1
    assert caplog.text.count("xla_tpu_nor_this_one=1") == 1


def test_too_much_for_the_memory_is_an_answer() -> None:
    topology = find_topology("v5e:1x1")
    large = TINY.replace(image_size=512, eval_batch_size=65536)
    with pytest.raises(OutOfMemory) as caught:
        compile_step(lower_eval_step(large, mesh_of(devices_of(topology))), topology)
    assert caught.value.needed is not None
    assert caught.value.needed > topology.device_memory


@pytest.mark.slow
def test_commands_of_the_page_run_as_they_are(tmp_path: Path) -> None:
    """Commands in ```bash blocks of docs/plan.md; the others are parsed by tests/test_docs.py."""
    blocks = (ROOT / "docs" / "plan.md").read_text().split("```bash\n")[1:]
    lines = [line for block in blocks for line in block.partition("```")[0].replace("\\\n", " ").splitlines()]
    assert lines
    for line in lines:
        command = shlex.split(line, comments=True)
        done = subprocess.run(
            [sys.executable, "-m", "resnet_tpu", *command[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        if "--format=json" in line:
            assert json.loads(done.stdout)[0]["fits"]
        else:
            assert "compiler estimate" in done.stdout
