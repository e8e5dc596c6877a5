"""A first day on a GPU in ten minutes, without internet access: is it correct and fast, and where does the time go?

    python -m benchmarks.gpu_day day --photos=PHOTOS --cifar=CIFAR10

Writes `gpu_day.json`, pictures, and the output of each part's commands to the folder. A part is a few of our commands
with a time limit; failures are reported, and the remaining parts run. Finished parts are not repeated: start the script
again after ten minutes, or when a failure is fixed. It compares with the peers that are installed. CIFAR-10 may be a
folder of images per class or TFRecords; without it, learnable noise is used, and without PHOTOS, generated photos.
"""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import resnet_tpu as rt
from benchmarks import script
from resnet_tpu import storage
from resnet_tpu.errors import UserError
from resnet_tpu.performance.bench import child, record
from resnet_tpu.performance.bench.figures import Bar, Grid, show, write_bars

TOP = 10  # operations of the profile
ON_CPU = ("env", "JAX_PLATFORMS=cpu")
EXACTLY = ("env", "JAX_DEFAULT_MATMUL_PRECISION=highest")  # a GPU would round float32 to TF32
SHARING = ("env", "XLA_PYTHON_CLIENT_PREALLOCATE=false")  # for several processes on one GPU


@dataclass(frozen=True)
class Sizes:
    """The sizes of the parts."""

    step: str
    check: str
    batches: tuple[int, ...]
    batch: int
    lengths: tuple[float, float]  # of training, in epochs: on the device, and then a little further on the CPU
    cifar: tuple[str, ...]


FULL = Sizes("50:224", "50:224:16", (64, 128, 256, 512), 256, (3, 3.005), ())
TINY = ("--resnet_depth=8", "--train_batch_size=16", "--num_train_images=64", "--num_eval_images=16")
QUICK = Sizes("20:32", "20:32:64", (4, 8), 8, (1, 1.5), TINY)


@dataclass(frozen=True)
class Part:
    """Commands, their time limit in seconds, and a function from their outputs to figures for JSON."""

    name: str
    seconds: float
    commands: Sequence[Sequence[str]]
    figures: Callable[[list[str]], Any]


def parts(options: argparse.Namespace, done: Mapping[str, Any]) -> Iterator[Part]:
    """The parts in order; each may depend on the figures of parts that are `done` when it is created."""
    sizes = QUICK if options.quick else FULL
    quick = ["--quick"] if options.quick else ["--rounds=1", "--seconds=3"]
    step = [*ours("bench", "step"), *quick, "--precisions=bfloat16"]
    depth, side = sizes.step.split(":")
    network = [f"--resnet_depth={depth}", f"--image_size={side}", "--num_label_classes=1000", "--data_dir=null"]

    def measured(name: str, *command: str) -> tuple[list[list[str]], Callable[[list[str]], Any]]:
        path = options.folder / f"{name}.json"
        found = [*command, f"--output={path}", f"--picture={path.with_suffix('.png')}"]
        return [found], lambda _: json.loads(path.read_text())["figures"]

    yield Part("doctor", 60, [ours("doctor", "--format=json")], read_last)
    yield Part("check", 120, [script.worker("check_device", sizes.check)], read_last)
    tune = [*ours("tune", "--format=json"), *network, f"--train_batch_size={sizes.batch}"]
    yield Part("tune", 240, [tune], read_last)
    kernels = done["tune"]["figures"]["best"]["kernels"] if is_done(done, "tune") else "auto"
    yield Part("peers", 240, *measured("peers", *step, f"{sizes.step}:{sizes.batch}:{kernels}"))
    for batch in sizes.batches:
        case = f"{sizes.step}:{batch}:{kernels}"
        yield Part(f"batch {batch}", 120, *measured(f"batch_{batch}", *step, case, "--peers=none"))
    profile = [*ours("profile", "train", "--format=json", f"--model_dir={options.folder / 'profile'}"), *network]
    profile += [f"--train_batch_size={sizes.batch}", f"--kernels={kernels}", f"--steps={5 if options.quick else 20}"]
    yield Part("profile", 180, [profile], top_operations)
    photos = [options.photos] if options.photos else []
    bench_input = [*ours("bench", "input", *photos), *quick, "--peers=none", "--variants"]
    yield Part("input", 120, *measured("input", *bench_input))
    yield Part("checkpoint", 240, move_commands(options, sizes), lambda said: moved(said, options.folder / "cifar"))
    yield Part(
        "serve", 180, *measured("serve", *SHARING, *ours("bench", "serve"), *quick, "--peers=none", "--clients=1,16")
    )


def ours(*arguments: str) -> list[str]:
    """A command of this package."""
    return [sys.executable, "-m", "resnet_tpu", *arguments]


def move_commands(options: argparse.Namespace, sizes: Sizes) -> list[list[str]]:
    """ResNet-20 trains here, predicts here and on the CPU, trains further on the CPU, and predicts on both again."""
    model_dir = str(options.folder / "cifar")
    data = [f"--data_dir={options.cifar}"]
    if options.cifar == "synthetic":
        data += ["--num_label_classes=10", "--num_train_images=50000", "--num_eval_images=1000"]
    train = [*ours("train", "--recipe=cifar", f"--model_dir={model_dir}"), *data, *sizes.cifar]
    first, more = ([*train, f"--train_steps={epochs}epochs"] for epochs in sizes.lengths)
    predict = ours("predict", model_dir, "--split=validation", "--format=json", "--top_k=10")
    both = [[*EXACTLY, *predict], [*ON_CPU, *predict]]
    return [first, *both, [*ON_CPU, *more], *both]


def read_last(said: list[str]) -> Any:
    """The output of the last command, which is JSON."""
    return json.loads(said[-1])


def top_operations(said: list[str]) -> Any:
    """The profile, reduced to its longest operations."""
    found = read_last(said)
    found["steps"]["operations"] = found["steps"]["operations"][:TOP]
    return found


def moved(said: list[str], model_dir: Path) -> dict[str, Any]:
    """The results of training, and how far predictions from one checkpoint differ between two devices."""
    _, here, cpu, _, cpu_again, here_again = said
    evaluated = rt.history(str(model_dir), "eval")
    speeds = rt.history(str(model_dir), "train")["images_per_sec"]
    return {
        "steps": evaluated["step"].tolist(),
        "top_1_accuracy": evaluated["top_1_accuracy"].tolist(),
        "images_per_sec": speeds[~np.isnan(speeds)][:-1].tolist(),  # the last is the CPU's
        "written here, read on a CPU": difference(here, cpu),
        "written on a CPU, read here": difference(here_again, cpu_again),
    }


def difference(one: str, other: str) -> dict[str, float]:
    """For two outputs of `predict`: the share of images in the same class, and the largest probability difference."""
    pairs = list(zip(probabilities(one), probabilities(other), strict=True))
    same = sum(max(a, key=a.__getitem__) == max(b, key=b.__getitem__) for a, b in pairs)
    return {
        "same_class": same / len(pairs),
        "largest_difference": max(abs(a[name] - b[name]) for a, b in pairs for name in a),
    }


def probabilities(text: str) -> list[dict[str, float]]:
    """For each image, the probability of each class, from the output of `predict`."""
    images = json.loads(text)["images"]
    return [{answer["class"]: answer["probability"] for answer in image["predictions"]} for image in images]


def is_done(done: Mapping[str, Any], name: str) -> bool:
    """Whether a part is finished, which means that it has figures."""
    return done.get(name, {}).get("state") == "done"


def run(part: Part, folder: Path, seconds: float) -> dict[str, Any]:
    """Runs a part within a time limit in seconds. Returns its state, its figures or the failure, and the commands."""
    start, said = time.monotonic(), []
    record: dict[str, Any] = {"state": "done", "commands": [shlex.join(command) for command in part.commands]}
    log = folder / f"{part.name.replace(' ', '_')}.log"
    log.unlink(missing_ok=True)
    for command in part.commands:
        left = max(0.0, seconds - (time.monotonic() - start))
        ended = child.run_to_end(command, script.within_reach(), left)
        said.append("\n".join(ended.output))
        with log.open("a") as file:
            file.write("\n".join([f"$ {shlex.join(command)}", *ended.errors, said[-1], ""]))
        if ended.code != 0:
            state = "out of time" if ended.code is None else f"exit code {ended.code}"
            record |= {"state": state, "failed": shlex.join(command), "errors": ended.errors[-30:]}
            break
    else:
        try:
            record["figures"] = part.figures(said)
        except (OSError, ValueError, LookupError) as error:
            record |= {"state": "no figures", "errors": [repr(error)]}
    return record | {"seconds": round(time.monotonic() - start, 1)}


def draw(done: Mapping[str, Any], folder: Path) -> None:
    """Draws the charts that no command draws: speed by batch size, and the longest operations."""
    bars = []
    for name in done:
        if name.startswith("batch ") and is_done(done, name):
            ((run,),) = done[name]["figures"]["cases"][0]["runs"].values()
            bars.append(Bar(name, run["images_per_sec"], f"{run['images_per_sec']:.0f}", True))
    if bars:
        write_bars(str(folder / "batches.png"), "A training step by its batch", bars, "images per second")
    if is_done(done, "profile"):
        longest = done["profile"]["figures"]["steps"]["operations"]
        names = [", ".join(filter(None, map(one["label"].get, ("layer", "direction", "kind")))) for one in longest]
        bars = [Bar(name, one["ms"], f"{one['share']:.1%}", False) for name, one in zip(names, longest, strict=True)]
        write_bars(str(folder / "operations.png"), "The longest operations of a step", bars, "ms")


def program() -> None:
    """Reads the command line and runs the remaining parts. Raises UserError if parts failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_day", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="For all results. One of an earlier start is gone on with.")
    parser.add_argument("--photos", default="", help="Folder of JPEGs for the input. Default: drawn ones.")
    parser.add_argument("--cifar", default="synthetic", help="CIFAR-10. Default: noise that can be learned.")
    parser.add_argument("--minutes", type=float, default=10, help="For all of it. Default: %(default)s.")
    parser.add_argument("--quick", action="store_true", help="All parts, tiny: shows that they work.")
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    end = time.monotonic() + 60 * options.minutes
    path = options.folder / "gpu_day.json"
    begun = json.loads(path.read_text())["figures"] if path.exists() else {"quick": options.quick, "parts": {}}
    if begun["quick"] != options.quick:
        do = "Name another folder for the other."
        raise UserError(str(options.folder), f"a day with quick={begun['quick']}", f"quick={options.quick}", do)
    options.folder.mkdir(parents=True, exist_ok=True)
    done, rows = begun["parts"], []
    for part in parts(options, done):
        if not is_done(done, part.name):
            print(f"{part.name} ...", flush=True)
            done[part.name] = run(part, options.folder, min(part.seconds, end - time.monotonic()))
            storage.write_text(str(path), record.to_json(sys.argv, begun))
        rows.append((part.name, done[part.name]["state"], f"{done[part.name]['seconds']:.0f}"))
    draw(done, options.folder)
    show(Grid("A first day on a GPU", ("part", "state", "seconds"), rows, [f"Figures: {path}"]), "table")
    if names := [name for name, state, _ in rows if state != "done"]:
        do = f"Read their logs in {options.folder}; started again, it goes on with what is not done."
        raise UserError("A first day on a GPU", f"not done: {', '.join(names)}", "all parts", do)


if __name__ == "__main__":
    script.main(program)
