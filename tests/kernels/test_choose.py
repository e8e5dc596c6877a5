"""Which kernels a training uses."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from resnet_tpu.errors import UserError
from resnet_tpu.kernels import native
from resnet_tpu.kernels.choose import KERNELS, choose_kernels, why_not
from resnet_tpu.models.kernel_table import PLAIN
from resnet_tpu.options.config import OPTIONS, ModelConfig
from resnet_tpu.parallel import meshes
from tests.models.nets import TRAINING, Part, architecture, random

CPU = meshes.mesh_of(jax.devices("cpu")[:1])
CPUS = meshes.mesh_of(jax.devices("cpu")[:2])
has_library = pytest.mark.skipif("float32" not in native.load(), reason="needs the library in C, and oneDNN")


def devices(platform: str, count: int = 1) -> Mesh:
    """Stand-ins for devices that this machine does not have."""
    found = np.array([SimpleNamespace(platform=platform)] * count)
    return cast("Mesh", SimpleNamespace(devices=found))


@pytest.mark.parametrize(
    ("mesh", "options", "name"),
    [
        (devices("tpu"), {}, "plain"),  # no TPU has run the others
        (devices("tpu", 8), {"kernels": "fused"}, "fused"),
        (devices("gpu"), {}, "plain"),
        (CPUS, {"precision": "float32"}, "plain"),
        (devices("gpu"), {"kernels": "fused"}, "fused"),
        (devices("gpu", 8), {"kernels": "gpu"}, "gpu"),
        (CPU, {"kernels": "plain"}, "plain"),
        pytest.param(CPU, {"precision": "float32"}, "cpu", marks=has_library),
        pytest.param(CPU, {"precision": "float32", "kernels": "cpu"}, "cpu", marks=has_library),
    ],
)
def test_the_devices_choose_and_a_name_is_an_order(mesh: Mesh, options: dict[str, Any], name: str) -> None:
    assert choose_kernels(ModelConfig(**options), mesh).name == name


@pytest.mark.parametrize(
    ("mesh", "name", "message"),
    [
        (
            devices("gpu"),
            "cpu",
            r"^kernels: got cpu, expected one of auto, plain, gpu, fused here\. Kernels cpu are for a CPU, ",
        ),
        (devices("tpu"), "gpu", r"Kernels gpu are for a GPU, but this is a tpu\."),
        (CPUS, "cpu", r"^kernels: got cpu, expected .* Kernels cpu are for one device, but there are 2\."),
    ],
)
def test_kernels_that_the_devices_cannot_run_are_refused(mesh: Mesh, name: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        choose_kernels(ModelConfig(kernels=name), mesh)


def test_without_the_library_a_cpu_is_plain_and_says_why_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "load", frozenset)
    assert choose_kernels(ModelConfig(), CPU).name == "plain"
    with pytest.raises(UserError, match="The library in C is not available; resnet-tpu doctor says"):
        choose_kernels(ModelConfig(kernels="cpu"), CPU)


def test_processor_without_bfloat16_advises_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "load", lambda: frozenset({"float32"}))
    assert choose_kernels(ModelConfig(precision="float32"), CPU).name == "cpu"
    assert choose_kernels(ModelConfig(precision="bfloat16"), CPU).name == "plain"
    assert "lacks bfloat16 on this processor; --precision=float32 is faster" in why_not("cpu", "bfloat16", CPU)


def test_every_kernel_is_a_choice_of_the_option() -> None:
    assert {"auto", *KERNELS} == set(OPTIONS["kernels"].choices)


def test_the_kernel_that_the_docs_add_gives_what_the_plain_one_gives() -> None:
    page = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(program, names)
    x = random(4, 6, 6, 8)
    part = Part(lambda net, x: net.conv_norm("a", net.conv_norm("b", x, 16, 1, relu=True), 8, 3), architecture(), x)
    (plain, moved), (other, moved_too) = (
        part.step(part.params, x, TRAINING, kernels) for kernels in (PLAIN, names["POINTWISE"])
    )
    np.testing.assert_allclose(other, plain, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), moved_too, moved)
