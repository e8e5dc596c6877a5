"""`profile train`: a real training is traced, and the trace read back and summarised."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resnet_tpu import cli
from resnet_tpu.options.config import Config
from resnet_tpu.performance.profiling import training
from resnet_tpu.performance.profiling.trace import find_trace, read_trace
from resnet_tpu.system.machine import has_tpu
from resnet_tpu.training.kernel_choice import setting as kernel_setting
from resnet_tpu.training.kernel_choice.setting import KernelSetting

STEPS = 5
SMALL = (
    "--image_size=32", "--num_label_classes=4", "--resnet_depth=8", "--resnet_width=4", "--train_batch_size=8",
    "--num_cores=1", "--precision=float32", f"--steps={STEPS}",
)  # fmt: skip


@pytest.fixture(scope="module")
def traced(records: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model_dir of a run that never trained, with a trace."""
    model_dir = tmp_path_factory.mktemp("runs") / "traced"
    assert cli.main(["profile", "train", *SMALL, f"--data_dir={records}", f"--model_dir={model_dir}"]) == 0
    return model_dir


@pytest.fixture
def profile(traced: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The summary of the trace, made again from its file."""
    assert cli.main(["profile", "train", f"--trace={traced}", "--format=json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_trace_that_is_read_takes_no_options_of_a_training(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile", "train", "--trace=runs/flowers", "--steps=50"]) == 2
    assert "--trace: got steps, expected --format alone." in capsys.readouterr().err


def test_the_trace_holds_the_steps_asked_for_and_nothing_else_is_left(traced: Path) -> None:
    trace = read_trace(find_trace(str(traced)))
    assert {len(trace.steps), len(trace.input_waits), len(trace.device_waits)} == {STEPS}
    assert [path.name for path in traced.iterdir()] == ["plugins"]


def test_the_parts_of_a_step_add_up(profile: dict[str, Any]) -> None:
    steps = profile["steps"]
    assert steps["num_steps"] == STEPS - 1
    parts = [steps[name] for name in ("compute_ms", "input_wait_ms", "other_idle_ms")]
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(steps["mean_ms"])
    assert steps["compute_ms"] > 0
    assert steps["fastest_ms"] <= steps["median_ms"] <= steps["slowest_ms"]
    assert steps["host_wait_ms"] + steps["host_work_ms"] <= steps["mean_ms"]
    assert 0 <= steps["input_wait_share"] <= 1


def test_the_operations_are_named_by_what_they_do(profile: dict[str, Any]) -> None:
    operations, kinds = profile["steps"]["operations"], profile["steps"]["kinds"]
    assert sum(item["share"] for item in operations) == pytest.approx(1)
    assert sum(kinds.values()) == pytest.approx(1)
    assert "convolution" in kinds
    times = [item["ms"] for item in operations]
    assert times == sorted(times, reverse=True)
    known = [item for item in operations if item["label"]["kind"] != "other"]
    assert sum(item["share"] for item in known) > 0.9  # the program's labels were found beside the trace


@pytest.mark.parametrize("tuned", [False, True])
def test_the_labels_are_of_the_program_that_was_traced(tuned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class LoweredError(Exception):
        pass

    def train_step_of(*_: Any, kernels: Any, tuned_compiler: bool) -> None:
        raise LoweredError(tuned_compiler)

    for name in ("train", "publish", "find_trace", "read_trace"):
        monkeypatch.setattr(training, name, lambda *_: "")
    monkeypatch.setattr(training, "resolve_kernels", lambda *_: KernelSetting("plain", tuned_compiler=tuned))
    monkeypatch.setattr(kernel_setting, "train_step_of", train_step_of)
    config = Config().replace(data_dir="null", num_label_classes=4, resnet_depth=20, image_size=32, num_cores=1)
    with pytest.raises(LoweredError, match=str(tuned)):
        training.profile_training(config, steps=STEPS)


@pytest.mark.long
def test_a_run_that_is_there_gives_its_options_and_is_not_touched(
    records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [option for option in SMALL if not option.startswith("--steps")]
    run = [f"--data_dir={records}", f"--model_dir={tmp_path}", "--mode=train", "--train_steps=2"]
    assert cli.main(["train", *options, *run]) == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert cli.main(["profile", "train", f"--model_dir={tmp_path}", "--steps=5", "--format=json"]) == 0
    throughput = json.loads(capsys.readouterr().out)["throughput"]
    assert throughput["images_per_sec"] > 0
    assert throughput["device"] == "1 x cpu"
    assert (throughput["peak_flops"], throughput["utilisation"]) == (None, None)
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {path: after[path] for path in before} == before
    assert {path.relative_to(tmp_path).parts[0] for path in after.keys() - before.keys()} == {"plugins"}


@pytest.mark.peer("xprof")
def test_tensorboards_profile_plugin_shows_the_same(traced: Path, tmp_path: Path) -> None:
    convert = importlib.import_module("xprof.convert.raw_to_tool_data")
    trace = read_trace(path := str(shutil.copy(find_trace(str(traced)), tmp_path)))  # it writes next to its input

    def page(tool: str, **parameters: Any) -> Any:
        return convert.xspace_to_tool_data([path], tool, parameters)[0]

    shown = [event for event in json.loads(page("trace_viewer"))["traceEvents"] if event.get("ph") == "X"]
    for name, spans in (("train", trace.steps), ("input_wait", trace.input_waits), ("device_wait", trace.device_waits)):
        bars = sorted((event["ts"], event["dur"]) for event in shown if event["name"].partition(" ")[0] == name)
        expected = [(1e6 * span.start, 1e6 * (span.end - span.start)) for span in spans]
        np.testing.assert_allclose(bars, expected, rtol=0, atol=0.01)  # in µs
    operations = sorted(event["name"] for event in shown if "hlo_op" in event.get("args", {}))
    assert operations == sorted(event.name for lanes in trace.devices.values() for lane in lanes for event in lane)

    shown = [row["c"][-1]["v"] for row in json.loads(page("overview_page"))[1]["rows"]]
    times = [1e3 * (span.end - span.start) for span in trace.steps]
    assert len(shown) >= STEPS - 2  # it leaves out the first and last, which may be cut off
    assert np.abs(np.subtract.outer(shown, times)).min(1) == pytest.approx(0, abs=1e-5)  # in ms

    assert {"overview_page", "trace_viewer@", "op_profile"} <= {*convert.xspace_to_tool_names([path])}
    # with the steps that this process keeps of trainings before
    modules = [found.name.removesuffix(".hlo_proto.pb") for found in tmp_path.glob("jit_train_step*")]
    assert modules
    for module in modules:
        graph = page("graph_viewer", graph_viewer_options={"module_name": module, "type": "short_txt"})
        assert b"HloModule jit_train_step" in graph
        assert json.loads(page("memory_viewer", module_name=module))["totalBufferAllocationMib"] > 0
    assert read_trace(find_trace(str(tmp_path))) == trace


@pytest.mark.tpu
def test_libtpu_without_a_tpu_is_left_alone(tmp_path: Path) -> None:
    if has_tpu():
        pytest.skip("there may be a TPU here")
    done = profile_with_libtpu("import sys; from resnet_tpu import cli; sys.exit(cli.main(sys.argv[1:]))", tmp_path)
    assert done.returncode == 0
    assert "libtpu" not in done.stderr


@pytest.mark.tpu
def test_libtpu_without_a_tpu_is_an_error_and_no_crash(tmp_path: Path) -> None:
    loaded = "from resnet_tpu.parallel import startup; startup.has_tpu = lambda: True; "  # as if one had it
    done = profile_with_libtpu(
        f"{loaded}import sys; from resnet_tpu import cli; sys.exit(cli.main(sys.argv[1:]))", tmp_path
    )
    assert done.returncode == 2
    assert "Pass --use_tpu=False." in done.stderr


def profile_with_libtpu(program: str, model_dir: Path) -> "subprocess.CompletedProcess[str]":
    """Runs `profile train` in a process that may load libtpu."""
    pytest.importorskip("libtpu")
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    environment |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    command = [sys.executable, "-c", program, "profile", "train", *SMALL, "--data_dir=null", f"--model_dir={model_dir}"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
