"""Loss and gradients of one training step on the device at hand, compared with the CPU's in float32.

    python -m benchmarks.check_device 50:224:16

Checks the plain layers, and the kernels that training would use if none had been timed; `resnet-tpu tune` compares
all others with the plain ones. Prints JSON: for each precision, the difference of the loss, and the largest and median
difference of the gradients, relative to their norms. In float32 products are computed in full precision, and results
must agree as closely as rounding allows, which is estimated by changing the last bits of the weights. In bfloat16
differences are only reported. Use a dozen images or more, of 32 px or more: where rounding switches a ReLU on or off,
gradients jump, and in a small batch that is a matter of chance.
"""

import json
import statistics
import sys
from typing import Any

import jax

from benchmarks import script
from resnet_tpu.errors import UserError
from resnet_tpu.kernels.choose import choose_kernels
from resnet_tpu.parallel import meshes, startup
from resnet_tpu.performance.bench.step import PRECISIONS
from resnet_tpu.performance.bench.step_programs import Case
from resnet_tpu.training.kernel_choice.reference import Reference
from resnet_tpu.training.kernel_choice.setting import KernelSetting
from resnet_tpu.training.maths.network import network_on


def check(case: Case) -> dict[str, Any]:
    """The figures for every precision and kernel."""
    jax.config.update("jax_default_matmul_precision", "highest")  # a GPU would round float32 to TF32
    startup.start_jax(use_tpu=True)
    here, cpu = (meshes.mesh_of(devices[:1]) for devices in (jax.devices(), jax.devices("cpu")))
    reference = Reference(case.config("float32"), cpu)
    forms = []
    for precision in PRECISIONS:
        config = case.config(precision)
        for kernels in sorted({"plain", choose_kernels(config.model, here).name}):
            step = KernelSetting(kernels).train_step(network_on(config, here), config, here)
            distances = reference.distances(step, here)
            wrong = reference.why_not(distances) if precision == "float32" else ""
            forms.append({"kernels": kernels, "precision": precision, **_figures(distances), "wrong": wrong})
    return {"device": here.devices.flat[0].device_kind, "case": case.title, "noise": reference.noise, "forms": forms}


def _figures(distances: list[float]) -> dict[str, float]:
    loss, *gradients = distances
    return {"loss": loss, "largest": max(gradients), "median": statistics.median(gradients)}


def program() -> None:
    """Reads the case, checks it and prints the figures. Raises UserError if a float32 result is wrong."""
    found = check(Case.parse(sys.argv[1]))
    print(json.dumps(found), flush=True)
    for form in found["forms"]:
        if form["wrong"]:
            what = f"{found['case']}, kernels {form['kernels']} on {found['device']}"
            raise UserError(what, form["wrong"], "what the CPU computes", "Do not train on it, and report this.")


if __name__ == "__main__":
    script.main(program)
