"""Loss and gradients of one training step on the device at hand, held against the CPU's in float32.

    python -m benchmarks.check_device 50:224:16

Of the plain layers, and of the kernels that a training would take where none were timed; `resnet-tpu tune` holds all
others against the plain ones. Prints JSON: in each precision the loss's difference, and the largest and the median one
of the gradients, each in fractions of its norm. In float32 every product is computed in full, and has to agree as
closely as rounding lets it, which is seen from weights changed in their last bits. In bfloat16 it is merely told. Take
some dozen images of 32 px or more: where rounding turns a ReLU, gradients jump, and in a small batch that is chance.
"""

import json
import statistics
import sys
from typing import Any

import jax

from benchmarks import script
from resnet_tpu.errors import UserError
from resnet_tpu.kernels.choose import choose_kernels
from resnet_tpu.options.network import network_of
from resnet_tpu.parallel import distributed
from resnet_tpu.performance.bench.step import PRECISIONS
from resnet_tpu.performance.bench.step_programs import Case
from resnet_tpu.training.kernel_setting import KernelSetting, step_of
from resnet_tpu.training.reference import Reference


def check(case: Case) -> dict[str, Any]:
    """The figures of every form."""
    jax.config.update("jax_default_matmul_precision", "highest")  # a GPU would round float32 to TF32
    distributed.start(use_tpu=True)
    here, cpu = (distributed.mesh_of(devices[:1]) for devices in (jax.devices(), jax.devices("cpu")))
    reference = Reference(case.config("float32"), cpu)
    forms = []
    for precision in PRECISIONS:
        config = case.config(precision)
        for kernels in sorted({"plain", choose_kernels(config.model, here).name}):
            step = step_of(KernelSetting(kernels), network_of(config, here), config, here)
            distances = reference.distances(step, here)
            wrong = reference.why_not(distances) if precision == "float32" else ""
            forms.append({"kernels": kernels, "precision": precision, **_figures(distances), "wrong": wrong})
    return {"device": here.devices.flat[0].device_kind, "case": case.title, "noise": reference.noise, "forms": forms}


def _figures(distances: list[float]) -> dict[str, float]:
    loss, *gradients = distances
    return {"loss": loss, "largest": max(gradients), "median": statistics.median(gradients)}


def program() -> None:
    """Reads the case, checks and prints. Raises UserError when a form computes something else."""
    found = check(Case.parse(sys.argv[1]))
    print(json.dumps(found), flush=True)
    for form in found["forms"]:
        if form["wrong"]:
            what = f"{found['case']}, kernels {form['kernels']} on {found['device']}"
            raise UserError(what, form["wrong"], "what the CPU computes", "Do not train on it, and report this.")


if __name__ == "__main__":
    script.main(program)
