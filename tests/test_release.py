"""What would be published (`make wheels`), installed and run in clean environments of several Python versions.

These environments have no compiler and none of our caches; packages come from pip's usual index. `make release-check`
runs this and says which Pythons worked.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import cv2
import numpy as np
import pytest

from resnet_tpu import __version__
from resnet_tpu.system.machine import is_linux_x86_64

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
COMMANDS = (
    "doctor --format=json",
    "prepare photos data",
    "train --config_file=small.yaml --data_dir=data --model_dir=model",
    "eval model",
    "predict model photos/rose/1.jpg --format=csv",
    "export model exported --export_forms=stablehlo",
    "predict exported photos/rose/1.jpg --format=csv",
)
SMALL = """
resnet_depth: 18
resnet_width: 4
image_size: 32
precision: float32
train_batch_size: 8
train_steps: 2
"""
PIXELS = """
import hashlib, pathlib
import numpy as np
from resnet_tpu.data.pixels import native
from resnet_tpu.data.pixels.preprocess import train_image
out = np.empty((16, 32, 32, 3), np.uint8)
for number, image in enumerate(out):
    train_image(pathlib.Path(f"photos/rose/{number}.jpg").read_bytes(), 32, np.random.default_rng(number), image)
print(native.load() is not None, hashlib.sha256(out).hexdigest())
"""

pytestmark = pytest.mark.slow


def run(folder: Path, *command: object, **environment: str) -> str:
    """The output of a command that runs in `folder` and cannot see this checkout."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "JAX_", "VIRTUAL_"))}
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=clean | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def find_python(version: str) -> str | None:
    """An interpreter of this version, on the PATH or from pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    on_path = shutil.which(f"python{version}")
    for found in (on_path, *sorted(pyenv.glob(f"{version}.*/bin/python"))):
        asked = [str(found), "-c", "import sys; print('{}.{}'.format(*sys.version_info))"]
        if found and subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() == version:
            return str(found)
    return None


def write_inputs(folder: Path) -> None:
    """Writes `photos/<class>/<n>.jpg`, two classes that differ in colour, and the options of a small training."""
    (folder / "small.yaml").write_text(SMALL)
    rng = np.random.default_rng(0)
    for name, colour in (("daisy", (200, 200, 200)), ("rose", (40, 40, 200))):
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(20):
            photo = np.clip(np.array(colour) + rng.normal(0, 30, (40, 50, 3)), 0, 255)
            cv2.imwrite(str(folder / "photos" / name / f"{number}.jpg"), photo.astype(np.uint8))


def build_wheel(sdist: Path, folder: Path, **environment: str) -> Path:
    """The wheel that pip builds from the sdist."""
    run(
        folder,
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        folder,
        sdist,
        **environment,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the files to publish."""
    folder = tmp_path_factory.mktemp("dist")
    run(ROOT, "make", "wheels", f"DIST={folder}")
    return folder


@pytest.fixture(scope="module")
def sdist(dist: Path) -> Path:
    (sdist,) = dist.glob("*.tar.gz")
    return sdist


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (wheel,) = dist.glob("*.whl")
    return wheel


def test_sdist_has_what_is_tracked_and_not_left_out(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    tracked = {name for name in run(ROOT, "git", "ls-files").splitlines() if (ROOT / name).exists()}
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]
    left_out = {name for name in tracked if any(fnmatch(name, f"{folder}/*") for folder in options["exclude"])}
    assert left_out
    assert tracked - left_out <= files
    assert not left_out & files
    assert not [name for name in files if name.endswith((".so", ".pyc"))]


def test_wheel_is_for_every_python_and_holds_the_libraries_and_the_licences(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = archive.namelist()
    assert wheel.name == f"resnet_tpu-{__version__}-py3-none-manylinux_2_27_{platform.machine()}.whl"
    libraries = [name for name in files if ".so" in name]
    assert [Path(name).name.partition("-")[0] for name in sorted(libraries)] == ["libjpeg", "crop.so", "layers.so"]
    about = f"resnet_tpu-{__version__}.dist-info"
    assert {"resnet_tpu/py.typed", f"{about}/licenses/licenses/libjpeg-turbo.txt"} <= set(files)
    assert {name.partition("/")[0] for name in files} == {"resnet_tpu", "resnet_tpu.libs", about}


@pytest.mark.parametrize("version", PYTHONS)
@pytest.mark.timeout(1800)
def test_installs_and_runs(version: str, wheel: Path, tmp_path: Path) -> None:
    if not (interpreter := find_python(version)):
        pytest.skip(f"no Python {version} here")
    run(tmp_path, interpreter, "-m", "venv", "env")
    run(tmp_path, "env/bin/python", "-m", "pip", "install", "--quiet", wheel)
    write_inputs(tmp_path)
    (tmp_path / "home").mkdir()
    bare = {"PATH": str(tmp_path / "env" / "bin"), "HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": ""}
    assert not any(shutil.which(compiler, path=bare["PATH"]) for compiler in ("cc", "gcc", "clang"))
    command = tmp_path / "env" / "bin" / "resnet-tpu"
    assert run(tmp_path, command, "--version", **bare) == f"resnet-tpu {__version__}\n"
    shown = [run(tmp_path, command, *line.split(), **bare) for line in COMMANDS]
    found = {each["name"]: each for each in json.loads(shown[0])}
    assert found["Python"]["found"].startswith(version)
    assert found["window decoder in C"]["state"] == "ok"
    assert found["layers in C with oneDNN"]["state"] == ("ok" if is_linux_x86_64() else "missing")
    assert shown[-3] == shown[-1].replace("exported", "model"), "the bundle says what the checkpoint says"
    pixels = [run(tmp_path, "env/bin/python", "-c", PIXELS, **bare, RESNET_TPU_NATIVE=on) for on in "10"]
    assert pixels[0].partition(" ")[2] == pixels[1].partition(" ")[2]
    assert [each.partition(" ")[0] for each in pixels] == ["True", "False"]


@pytest.mark.timeout(1800)
def test_made_without_a_compiler_it_is_for_any_system_and_runs(sdist: Path, tmp_path: Path) -> None:
    wheel = build_wheel(sdist, tmp_path, CC="false")
    assert wheel.name.endswith("-py3-none-any.whl")
    run(tmp_path, sys.executable, "-m", "venv", "env")
    run(tmp_path, "env/bin/python", "-m", "pip", "install", "--quiet", wheel)
    write_inputs(tmp_path)
    found = run(tmp_path, "env/bin/resnet-tpu", "doctor", "--format=json")
    assert '"name": "window decoder in C",\n    "state": "missing"' in found
    run(tmp_path, "env/bin/resnet-tpu", "prepare", "photos", "data")
    run(tmp_path, "env/bin/resnet-tpu", *COMMANDS[2].split())
