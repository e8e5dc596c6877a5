"""With every TPU compiler that users may have: devices exchange only sums. Run by `make check-tpu`.

A partitioner that cannot split an operation gathers its whole input on every device first. That compiles, and gives the
right numbers, until a large slice lacks the memory for it.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from resnet_tpu.performance.plan.compiler import libtpu_of_training, libtpu_version

pytestmark = [
    pytest.mark.tpu,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed"),
]

LIBTPUS = [Path(path).resolve() for path in os.environ.get("LIBTPUS", "").split()]
"""Folders with one libtpu each; if empty, the installed libtpu is used."""

PROGRAM = """
import dataclasses, json, re, sys
from resnet_tpu.options.config import Config
from resnet_tpu.parallel.meshes import mesh_of
from resnet_tpu.models.architecture import ARCHITECTURES
from resnet_tpu.performance.plan.compiler import devices_of, libtpu_version
from resnet_tpu.performance.plan.lowering import lower_eval_step, lower_train_step
from resnet_tpu.performance.plan.plan import resolve_counts
from resnet_tpu.performance.plan.topology import find_topology
from resnet_tpu.training.compiler_options import uncached
from resnet_tpu.training.kernel_choice.setting import KernelSetting

ARCHITECTURES[50] = dataclasses.replace(ARCHITECTURES[50], blocks_per_group=(2, 1, 1, 1))
KINDS = r"all-reduce|all-gather|all-to-all|ragged-all-to-all|reduce-scatter|collective-\\w+|send|recv"
found = {"libtpu": libtpu_version()}
for name in ("v3:2x2", "v5e:2x2"):
    mesh = mesh_of(devices_of(find_topology(name)))
    batch_size = 128 * mesh.devices.size
    config = resolve_counts(
        Config().replace(
            resnet_depth=50, resnet_width=8, image_size=32, stem="imagenet", num_label_classes=10,
            train_batch_size=batch_size, eval_batch_size=batch_size,
        )
    )
    tuned = KernelSetting("fused", tuned_compiler=True)
    steps = {
        "training": lower_train_step(config, mesh),
        "tuned training": lower_train_step(config, mesh, tuned),
        "evaluation": lower_eval_step(config, mesh),
    }
    for title, step in steps.items():
        with uncached():
            text = step.compile().as_text()
        between = re.findall(rf" ({KINDS})(?:-start)?\\(", text)
        found[f"{name} {title}"] = sorted(set(between))
print(json.dumps(found))
"""


def test_what_training_would_get_is_among_those_compiled_with() -> None:
    of_training = libtpu_of_training()
    assert of_training
    versions = [path.name for path in LIBTPUS] or [libtpu_version()]
    assert any(of_training.contains(version, prereleases=True) for version in versions)


@pytest.mark.parametrize("libtpu", LIBTPUS or [None], ids=lambda path: path.name if path else "installed")
def test_devices_send_each_other_sums_alone(libtpu: Path | None) -> None:
    paths = [str(libtpu)] if libtpu else []
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found.pop("libtpu") == (libtpu.name if libtpu else libtpu_version())
    assert len(found) == 6
    assert all(kinds == ["all-reduce"] for kinds in found.values()), found
