"""Killed before each file operation in turn, which random moments may miss."""

import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

PROGRAM = """
import itertools, json, os, shutil, signal, sys
from pathlib import Path

from rich.console import Console

from resnet_tpu.options.config import Config
from resnet_tpu.data.prepare.prepare import prepare
from resnet_tpu.data.prepare.options import PrepareOptions
from resnet_tpu.serving.export.bundle import newest_bundle, open_bundle, write_bundle

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate", "shutil.rmtree"}
photos, place = sys.argv[2], Path(sys.argv[3])

def prepare_photos(folder):
    prepare(photos, str(folder), PrepareOptions(workers=1, split="0.5,0.5"), console=Console(quiet=True))

def contents(folder):
    found = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {path: content for path, content in found.items() if path.parent.name != "_index"}

def write(folder):
    card = {"name": "tiny", "class_names": ["a", "b"], "image_size": 8, "resize_method": "bicubic"}
    files = {"model.onnx": b"graph", "deep/er": b"weights"}
    write_bundle(str(folder), card, Config(), [("onnx", lambda: files)])

def bundles(folder):
    assert all(path.name.isdigit() for path in folder.iterdir()), list(folder.iterdir())
    found = [open_bundle(str(path)) for path in folder.iterdir()]
    assert found[0].path in [str(path) for path in folder.iterdir()]
    return {name: bundle.read(name) for bundle in found for name in bundle.files}

def in_child(work, folder, last=None):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    numbers = itertools.count()
    def before(event, arguments):
        writes = event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if (event in CHANGES or writes) and next(numbers) == last:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(before)
    work(folder)
    sys.stdout.flush()
    os._exit(0)

work, look = {"prepare": (prepare_photos, contents), "bundle": (write, bundles)}[sys.argv[1]]
assert in_child(work, place / "whole") == 0
whole = look(place / "whole")
for number in itertools.count():
    folder = place / str(number)
    code = in_child(work, folder, number)
    if code == 0:
        break
    assert code == -signal.SIGKILL, code
    assert in_child(work, folder) == 0
    assert look(folder) == whole, number
    shutil.rmtree(folder)
print(number)
"""


@pytest.mark.long
@pytest.mark.parametrize(("what", "at_least"), [("prepare", 25), ("bundle", 12)])
def test_killed_before_each_operation_on_a_file(what: str, at_least: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("dark", "light"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(4):
            photo = rng.integers(0, 256, (8, 8, 3), np.uint8)
            cv2.imwrite(str(tmp_path / "photos" / name / f"{number}.jpg"), photo)
    command = [sys.executable, "-c", PROGRAM, what, str(tmp_path / "photos"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    print(f"\n{what}: killed before each of {done.stdout.strip()} operations")
    assert int(done.stdout) >= at_least
