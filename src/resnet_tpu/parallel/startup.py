"""JAX's start: the platform that it uses, and the cache of compiled programs."""

import contextlib
import importlib.util
from typing import Any

import jax

from resnet_tpu import storage
from resnet_tpu.errors import UserError
from resnet_tpu.storage.paths import filesystem
from resnet_tpu.system.allocator import keep_memory
from resnet_tpu.system.machine import has_accelerator, has_gpu, has_tpu


def start_jax(*, use_tpu: bool) -> None:
    """Chooses the platform and turns the compilation cache on; call before anything touches a device.

    If the platform can only be the CPU, the process keeps freed memory from now on (see `keep_memory`): otherwise XLA's
    threads, which start with the devices, would each have a heap of their own. On a machine without a TPU, `use_tpu`
    has no effect: JAX uses the GPU or CPU, and does not load libtpu, which `plan` needs but which would print long
    complaints. Raises UserError when JAX_COMPILATION_CACHE_DIR names a bucket for which no client is installed.
    """
    settings: Any = jax.config
    without_tpu = not (use_tpu and has_tpu())
    if without_tpu and importlib.util.find_spec("libtpu") is not None and not settings.jax_platforms:
        plugins = map(importlib.util.find_spec, ("jax_cuda13_plugin", "jax_cuda12_plugin"))
        jax.config.update("jax_platforms", "cuda,cpu" if has_gpu() and any(plugins) else "cpu")
    if settings.jax_platforms == "cpu" or not has_accelerator():
        keep_memory()
    if settings.jax_compilation_cache_dir is None:
        with contextlib.suppress(UserError):  # not writable: JAX would warn about each program that it cannot cache
            cache = storage.join(storage.cache_dir(), "xla")
            storage.check_writable(cache)
            jax.config.update("jax_compilation_cache_dir", cache)
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    elif storage.is_remote(settings.jax_compilation_cache_dir):
        filesystem(settings.jax_compilation_cache_dir)  # JAX reads and writes through the same client, set up here
