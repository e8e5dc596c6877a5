"""`bench step`: what it trains, and the command."""

import json
import re
from pathlib import Path

import pytest

from resnet_tpu import cli
from resnet_tpu.cli.bench import bench_step
from resnet_tpu.errors import UserError
from resnet_tpu.performance.bench import step
from resnet_tpu.performance.bench.step import CASES, check_devices, measure, run_alone
from resnet_tpu.performance.bench.step_programs import KEEP_HEAP, OURS, PROGRAMS, Case


def test_cases_are_read_and_written() -> None:
    assert bench_step.command.arguments[0].help.endswith(f" Default: {CASES}.")
    for text in (*CASES.split(","), "18:64:4:plain"):
        assert str(Case.parse(text)) == text
    case = Case.parse("18:64:4")
    assert (case.depth, case.image_size, case.batch_size) == (18, 64, 4)
    assert case.batch()["image"].shape == (4, 64, 64, 3)
    assert case.config("bfloat16").model.resnet_depth == 18
    assert [Case.parse(text).config("float32").model.kernels for text in ("18:64:4", "18:64:4:gpu")] == ["auto", "gpu"]


@pytest.mark.parametrize("text", ["50", "50:224", "51:224:16", "50:32:16", "20:16:8", "50:224:1", "a:b:c"])
def test_what_is_no_case_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="Case"):
        Case.parse(text)
    with pytest.raises(UserError, match=r"kernels: got 'gpus', expected .* Did you mean gpu"):
        Case.parse("18:64:4:gpus")


def test_only_a_peer_that_asks_for_it_gets_settings_of_the_heap() -> None:
    case, lengths = Case.parse("18:64:4"), ["1", "1", "0"]
    (name,) = (name for name, program in PROGRAMS.items() if program.keeps_memory)
    assert run_alone(name, case, "float32", lengths)[:2] == ["env", KEEP_HEAP]
    assert "env" not in run_alone(OURS, case, "float32", lengths)


def test_every_step_is_counted_and_as_many_as_the_time_asks_for() -> None:
    calls = []
    figures = measure(lambda: calls.append(0) or 0.0, 8, warmup=3, steps=5, seconds=0)
    assert len(calls) == 8
    assert figures["best_images_per_sec"] >= figures["images_per_sec"] > 0
    assert figures["cpu_secs"] >= 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--peers=pytorch"], "peers"),
        (["--precisions=float16"], "precisions"),
        (["50:224:16,18"], "Case"),
    ],
)
def test_wrong_choices_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "step", "--peers=none", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("option", ["output", "picture"])
def test_files_that_cannot_be_written_are_refused_before_anything_is_measured(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(step.compare, "alternate", None)
    for path, got in ((tmp_path, "a folder"), (tmp_path / "file" / "figures", "a file")):
        assert cli.main(["bench", "step", "--peers=none", f"--{option}={path}"]) == 2
        assert f"got {got}, expected" in capsys.readouterr().err


def test_a_gpu_is_not_compared_with_a_cpu() -> None:
    check_devices({"resnet-tpu": "gpu", "PyTorch": "gpu"})
    with pytest.raises(UserError, match="got resnet-tpu on a gpu, PyTorch on a cpu, expected all on the same"):
        check_devices({"resnet-tpu": "gpu", "PyTorch": "cpu"})


def test_a_gpu_peer_is_refused_on_a_cpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for here, other in ((False, "torch_compiled"), (True, "torch_kept")):
        monkeypatch.setattr(step, "has_gpu", lambda here=here: here)
        assert cli.main(["bench", "step", f"--peers={other}"]) == 2
        assert f"got {other}, expected some of torch, " in capsys.readouterr().err


def test_a_check_takes_no_options_of_measurements(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "step", "--check", "--precisions=bfloat16", "--output=step.json"]) == 2
    assert "--check: got precisions, output, expected CASES alone." in capsys.readouterr().err


@pytest.mark.long
def test_alone_as_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "step.json"
    options = ["--quick", "--peers=none", "--precisions=float32", "--format=csv", f"--output={output}"]
    assert cli.main(["bench", "step", *options]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.startswith("step,program,images/s")
    assert "ResNet-18, 64 px, batch 8, float32" in row
    assert re.search(r",resnet-tpu \((cpu|plain)\),", row)  # names the kernels used
    (case,) = json.loads(output.read_text())["figures"]["cases"]
    assert case["runs"]["resnet-tpu"][0]["images_per_sec"] > 0


@pytest.mark.slow
def test_ours_and_pytorch_have_the_same_losses(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert cli.main(["bench", "step", "18:64:8", "--check"]) == 0
    assert capsys.readouterr().out.count("| ") > 10
