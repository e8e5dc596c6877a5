"""Checks what this machine offers the package, what it lacks, and how to get it."""

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from resnet_tpu import storage
from resnet_tpu.data.pixels import native
from resnet_tpu.errors import UserError, first_line
from resnet_tpu.parallel import startup
from resnet_tpu.system import c_libraries, machine

GIB = 2**30

EXTRAS = {
    "demo": "the scanned digits of `demo`",
    "onnx": "export to ONNX, int8",
    "serve": "the server",
    "tf": "export to TensorFlow's SavedModel",
    "hub": "weights by name from Hugging Face's hub",
    "gcp": "gs:// paths, Bigtable, TPU VMs",
    "beam": "`prepare` with Apache Beam",
    "plan": "the TPU compiler, for `plan`",
    "tpu": "TPUs of this machine",
    "cuda": "GPUs of this machine",
    "cuda12": "GPUs of this machine, with a driver before 580",
}
"""The purpose of each extra of the package."""

_BASE = ("resnet-tpu", "jax", "jaxlib", "optax", "orbax-checkpoint", "numpy", "opencv-python-headless")
_PLUGINS = {"plan": "libtpu", "tpu": "libtpu", "cuda": "jax-cuda13-plugin", "cuda12": "jax-cuda12-plugin"}
"""The packages that JAX's own extras add; JAX itself is installed without them."""

State = Literal["ok", "missing", "broken"]


@dataclass(frozen=True)
class Check:
    """The result of one check. do: how to solve a problem, or empty."""

    topic: str
    name: str
    state: State
    found: str
    do: str = ""


def examine(*, use_tpu: bool) -> list[Check]:
    """Checks devices, versions, decoders, extras, disks and credentials, without network access."""
    devices = [*_devices(use_tpu=use_tpu)]
    layers = [] if any(one.state == "broken" for one in devices) else [*_layers()]  # these need JAX to start
    return [
        *_machine(), *devices, *_versions(), *_decoders(), *layers, *_kernels(), *_extras(), *_places(), _credentials(),
    ]  # fmt: skip


def _machine() -> Iterator[Check]:
    yield Check("machine", "system", "ok", f"{platform.system()} {platform.release()}, {platform.machine()}")
    yield Check("machine", "Python", "ok", platform.python_version())
    yield Check("machine", "CPU cores for this process", "ok", str(machine.num_cores()))


def _devices(*, use_tpu: bool) -> Iterator[Check]:
    """The devices that JAX finds; a device that fails is reported with JAX's message."""
    import jax

    try:
        startup.start_jax(use_tpu=use_tpu)
        devices = jax.local_devices()
    except UserError as error:  # about the folder of the compilation cache
        yield Check("devices", "JAX", "broken", f"{error.what}: got {error.got}", error.do)
        return
    except (RuntimeError, AssertionError) as error:  # a TPU in use, a driver that is too old, no GPU for "cuda"
        do = "Stop the program that holds the device, or try --use_tpu=false or the variable JAX_PLATFORMS=cpu."
        yield Check("devices", "JAX", "broken", first_line(error) if str(error) else "no device to use", do)
        return
    for kind in sorted({device.device_kind for device in devices}):
        same = [device for device in devices if device.device_kind == kind]
        limit = (same[0].memory_stats() or {}).get("bytes_limit")
        memory = f", {limit / GIB:.1f} GiB each" if limit else ""
        yield Check("devices", f"{kind} devices", "ok", f"{len(same)} x {same[0].platform}{memory}")


def _versions() -> Iterator[Check]:
    for name in _BASE:
        version = machine.installed_version(name)
        do = "" if version else "Reinstall the package: pip install ."
        yield Check("versions", name, "ok" if version else "missing", version or "", do)


def _layers() -> Iterator[Check]:
    from resnet_tpu.kernels.native import LIBRARY, load, locate_onednn

    able = ", ".join(sorted(load()))
    if able:
        yield Check("training on a CPU", "layers in C with oneDNN", "ok", able)
        return
    found = do = ""
    if c_libraries.are_off():
        found = f"turned off by {c_libraries.SWITCH}=0"
    elif not machine.is_linux_x86_64():
        found = "oneDNN comes with the package only on Linux on x86-64; XLA does the training here"
    elif LIBRARY.exists():
        is_here = Path(os.fsdecode(locate_onednn())).exists()
        do = "Install what oneDNN needs: on Debian libgomp1." if is_here else "pip install onednn-cpu-gomp"
    else:
        do = "Install a C compiler, then reinstall the package."
    yield Check("training on a CPU", "layers in C with oneDNN", "missing", found, do)


def _kernels() -> Iterator[Check]:
    from resnet_tpu.training.kernel_choice.memory import remembered_settings

    for step, setting in remembered_settings().items():
        yield Check("kernels timed here", step, "ok", str(setting))


def _decoders() -> Iterator[Check]:
    try:
        native.Library(str(native.LIBRARY))
    except (OSError, AttributeError):
        do = "apt-get install gcc libjpeg-dev, then reinstall the package: photos load twice as fast."
        yield Check("decoders", "window decoder in C", "missing", "", do)
    else:
        off = c_libraries.are_off()
        found = f"built, but turned off by {c_libraries.SWITCH}=0" if off else "built"
        yield Check("decoders", "window decoder in C", "ok", found)
    for name in ("simplejpeg", "pillow"):
        version = machine.installed_version(name)
        yield Check("decoders", name, "ok" if version else "missing", version or "")


def _extras() -> Iterator[Check]:
    """The extras: their packages with versions, or the missing ones. Some packages exist for some systems only."""
    from packaging.requirements import Requirement

    try:
        requirements = [Requirement(each) for each in importlib.metadata.requires("resnet-tpu") or ()]
    except importlib.metadata.PackageNotFoundError:  # `_versions` reports it
        return
    marked = [(each.name, each.marker) for each in requirements if each.marker and "extra ==" in str(each.marker)]
    for extra in EXTRAS:
        names = [name for name, marker in marked if marker.evaluate({"extra": extra})]
        wanted = [_PLUGINS[extra] if name == "jax" else name for name in names]
        missing = [name for name in wanted if not machine.installed_version(name)]
        if not names:
            yield Check("extras", extra, "missing", f"{EXTRAS[extra]}: there is none for this system")
        elif missing:
            do = f"pip install 'resnet-tpu[{extra}]', for {EXTRAS[extra]}"
            yield Check("extras", extra, "missing", f"no {', '.join(missing)}", do)
        else:
            found = ", ".join(f"{name} {machine.installed_version(name)}" for name in wanted)
            yield Check("extras", extra, "ok", f"{EXTRAS[extra]}: {found}")


def _places() -> Iterator[Check]:
    """The cache folder, the cache folder of JAX's compiler, and shared memory, with their free space."""
    import jax

    compiled = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield _folder("cache", storage.cache_dir(), "XDG_CACHE_HOME")
    except UserError as error:
        yield Check("places", "cache", "broken", str(error.got), error.do)
    if compiled and storage.is_remote(compiled):
        yield Check("places", "compiled programs", "ok", compiled)
    elif compiled:
        yield _folder("compiled programs", compiled, "JAX_COMPILATION_CACHE_DIR")
    else:
        yield Check("places", "compiled programs", "missing", "not kept, so each start compiles them again")
    if (shared := Path("/dev/shm")).is_dir():  # noqa: S108 - not a temporary file of ours
        yield Check("places", "shared memory", "ok", f"{shared}, {_free(shared)}")


def _folder(name: str, folder: str, variable: str) -> Check:
    """Whether a folder can be written to or created. variable: the environment variable that selects one."""
    path = Path(folder)
    # os.path, because pathlib raises if a parent folder may not be entered
    there = next(path for path in (path, *path.parents) if os.path.exists(path))  # noqa: PTH110
    if os.path.isdir(there) and os.access(there, os.W_OK):  # noqa: PTH112
        return Check("places", name, "ok", f"{folder}, {_free(there)}")
    do = f"Set {variable} to a folder that can be written to."
    return Check("places", name, "broken", f"{folder} cannot be written to", do)


def _credentials() -> Check:
    """The place where Google's libraries would find credentials, checked without network access."""
    named = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    path = Path(named) if named else _own_credentials()
    if os.path.isfile(path):  # noqa: PTH113 - as above
        return Check("credentials", "Google Cloud", "ok", str(path))
    if named:
        do = "Correct or unset GOOGLE_APPLICATION_CREDENTIALS."
        return Check("credentials", "Google Cloud", "broken", f"{path} is not a file", do)
    do = "gcloud auth application-default login, or GOOGLE_APPLICATION_CREDENTIALS; on Google's machines none is needed"
    return Check("credentials", "Google Cloud", "missing", "", do)


def _own_credentials() -> Path:
    """The file in which `gcloud auth application-default login` stores credentials."""
    folder = os.environ.get("CLOUDSDK_CONFIG") or os.path.expanduser("~/.config/gcloud")  # noqa: PTH111 (~ may be unknown)
    return Path(folder) / "application_default_credentials.json"


def _free(path: Path) -> str:
    return f"{shutil.disk_usage(path).free / GIB:.1f} GiB free"
