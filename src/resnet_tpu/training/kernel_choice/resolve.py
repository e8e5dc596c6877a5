"""Chooses the kernels of a run: those that it had before, those that were the fastest here, or the defaults."""

import logging
from typing import Any

from jax.sharding import Mesh

from resnet_tpu.kernels.choose import choose_kernels, why_not
from resnet_tpu.options.config import Config
from resnet_tpu.parallel import hosts
from resnet_tpu.training.kernel_choice.memory import recall
from resnet_tpu.training.kernel_choice.setting import KernelSetting, is_on_accelerator, setting_before, setting_from
from resnet_tpu.training.kernel_choice.tune import tune
from resnet_tpu.training.maths.lengths import lengths_of

log = logging.getLogger(__name__)

_WORTH = 20_000  # a run of at least this many steps repays the minutes of compiling all candidates


def resolve_kernels(config: Config, mesh: Mesh, previous: dict[str, Any] | None) -> KernelSetting:
    """The setting of a run whose options are resolved; it is logged. With several hosts, all must call this.

    With `kernels=auto`, it is the first of these that exists: `previous`, the setting in the checkpoint that the run
    resumes from (see `stored_form`), if it was for devices of this kind; the setting that was the fastest when this
    step was timed here; on a TPU or GPU, if the run is long enough, the setting that is the fastest when timed now; the
    kernels of `choose_kernels`.
    """
    before = setting_before(previous or {}, config, mesh)
    setting, why = _choose(config, mesh, before)
    if hosts.is_first():
        log.info("Kernels: %s%s", setting, f" ({why})" if why else "")
        if previous is not None and setting != before:
            log.warning(
                "Previously, the kernels were %s on %s: results will agree except for rounding.",
                setting_from(previous), previous.get("device"),
            )  # fmt: skip
    return setting


def _choose(config: Config, mesh: Mesh, before: KernelSetting | None) -> tuple[KernelSetting, str]:
    """The setting, and why it is chosen if that is worth saying."""
    default = KernelSetting(choose_kernels(config.model, mesh).name)
    if config.model.kernels != "auto":
        return default, ""
    if before:
        return before, "as before"
    if remembered := recall(config, mesh):
        return remembered, "the fastest when they were timed here"
    if not is_on_accelerator(mesh):
        return default, why_not("cpu", config.model.precision, mesh)
    if lengths_of(config).total < _WORTH:
        return default, ""
    return tune(config, mesh)[0], "the fastest here"
