"""Kernels chosen by measurement: which are left out and why, and how a run keeps the choice."""

import dataclasses
import itertools
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu import cli
from resnet_tpu.checkpoints import reading
from resnet_tpu.errors import UserError
from resnet_tpu.kernels import choose, native
from resnet_tpu.kernels.fused import FUSED
from resnet_tpu.models import layers
from resnet_tpu.models.kernel_table import PLAIN, Kernels
from resnet_tpu.options.config import Config
from resnet_tpu.parallel import meshes
from resnet_tpu.training.inference.trained import load_trained
from resnet_tpu.training.kernel_choice import resolve, tune
from resnet_tpu.training.kernel_choice import setting as kernel_setting
from resnet_tpu.training.kernel_choice.memory import remember, remembered_settings
from resnet_tpu.training.kernel_choice.reference import Reference
from resnet_tpu.training.kernel_choice.resolve import resolve_kernels
from resnet_tpu.training.kernel_choice.setting import KernelSetting, setting_from
from resnet_tpu.training.kernel_choice.tune import Trial, fastest
from resnet_tpu.training.loop import train

CPU = meshes.mesh_of(jax.devices("cpu")[:1])
OPTIONS = {
    "data_dir": "null", "resnet_depth": 8, "resnet_width": 4, "image_size": 32, "train_batch_size": 8,
    "num_label_classes": 4, "num_train_images": 32, "precision": "float32", "num_cores": 1,
}  # fmt: skip
CONFIG = Config().replace(**OPTIONS)


def normalized(bias_of: Callable[[Any], jax.Array]) -> Any:
    """A convolution and a batch norm, with a bias other than the layer's."""

    def compute(x: jax.Array, layer: Any, *, stride: int, num_groups: int, relu: bool, pool: Any) -> Any:
        if pool:
            return None
        y = layers.conv(x, layer.kernel, stride)
        statistics = layers.batch_statistics(y, num_groups)
        y = layers.batch_norm(y, layer.scale, bias_of(layer), statistics.mean, statistics.var)
        return (layers.relu(y) if relu else y), statistics

    return compute


wrong = normalized(lambda layer: jnp.zeros_like(layer.bias))
wrong_backwards = normalized(lambda layer: jax.lax.stop_gradient(layer.bias))


def slow(branch: jax.Array, shortcut: jax.Array) -> jax.Array:
    def wait(x: np.ndarray) -> np.ndarray:
        time.sleep(0.05)
        return x

    waited = jax.pure_callback(
        wait, jax.ShapeDtypeStruct(shortcut.shape, shortcut.dtype), jax.lax.stop_gradient(branch)
    )
    return layers.relu(branch + shortcut) + 0 * waited


def broken(branch: jax.Array, shortcut: jax.Array) -> jax.Array:
    return branch @ shortcut


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Makes these the only kernels, and forgets all remembered choices."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def only(**found: Kernels) -> None:
        for module in (choose, kernel_setting):
            monkeypatch.setattr(module, "KERNELS", found)
        monkeypatch.setattr(choose, "_for_devices", lambda *_: "plain")
        monkeypatch.setattr(native, "load", lambda: frozenset({"float32"}))

    only(plain=PLAIN, fused=FUSED)
    return only


@pytest.fixture
def fused_wins(kernels: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuning chooses `fused` without compiling or timing anything."""
    monkeypatch.setattr(tune, "Reference", lambda *_: None)
    monkeypatch.setattr(tune, "candidates", lambda *_: [])
    monkeypatch.setattr(tune, "fastest", lambda _: KernelSetting("fused"))


@pytest.mark.long
def test_tune_rejects_wrong_slow_and_uncompilable_kernels(kernels: Callable[..., None]) -> None:
    kernels(
        plain=PLAIN,
        fused=FUSED,
        wrong=Kernels("wrong", wrong),
        slow=Kernels("slow", add_relu=slow),
        broken=Kernels("broken", add_relu=broken),
    )
    best, trials = tune.tune(CONFIG, CPU)
    found = {trial.setting.kernels: trial for trial in trials}
    assert best.kernels in ("plain", "fused")
    assert "differs from plain by" in found["wrong"].left_out
    assert "dot_general requires" in found["broken"].left_out
    for name in ("wrong", "broken"):
        assert found[name].milliseconds is None
    assert (found["slow"].milliseconds or 0) > (found["plain"].milliseconds or 0) > 0


@pytest.mark.parametrize("enable_lars", [True, pytest.param(False, marks=pytest.mark.long)])
def test_wrong_gradients_are_noticed_with_each_optimizer(
    enable_lars: bool, kernels: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels(plain=PLAIN, wrong=Kernels("wrong", wrong_backwards))
    monkeypatch.setattr(tune, "_time", lambda steps, *_: [Trial(setting, 1.0) for setting in steps])
    _, trials = tune.tune(CONFIG.replace(enable_lars=enable_lars), CPU)
    found = {trial.setting.kernels: trial.left_out for trial in trials}
    assert "differs from plain by" in found["wrong"]
    assert found["plain"] == ""


def test_noise_that_only_some_draws_have_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rare = itertools.chain([[0.0] * 3, [1e-6] * 3, [1e-6] * 3], [[1e-3] * 3], itertools.repeat([1e-6] * 3))
    monkeypatch.setattr(Reference, "_gradients", lambda *_: [np.float32(1 + far) for far in next(rare)])
    reference = Reference(CONFIG, CPU)
    assert reference.why_not([2e-3] * 3) == ""
    assert "differs from plain by 0.004, where rounding alone gives 0.001" in reference.why_not([4e-3] * 3)


def test_the_choice_is_remembered_for_the_same_step_alone(
    kernels: Callable[..., None], fused_wins: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tune.tune(CONFIG, CPU)
    monkeypatch.setattr(resolve, "tune", pytest.fail)
    with caplog.at_level(logging.INFO):
        assert resolve_kernels(CONFIG, CPU, None) == KernelSetting("fused")
        assert resolve_kernels(CONFIG.replace(train_batch_size=16), CPU, None) == KernelSetting("plain")
        assert resolve_kernels(CONFIG.replace(kernels="plain"), CPU, None) == KernelSetting("plain")
    assert [record.getMessage() for record in caplog.records] == [
        "Kernels: fused (the fastest when they were timed here)", "Kernels: plain", "Kernels: plain",
    ]  # fmt: skip
    assert list(remembered_settings().values()) == [KernelSetting("fused")]
    (words,) = remembered_settings()
    assert words.startswith("ResNet-8, 32 px, float32, batch 8 on 1 x cpu, jax ")
    remember(CONFIG, CPU, KernelSetting("fused", tuned_compiler=True))  # as stored before 30 November 2026
    assert resolve_kernels(CONFIG, CPU, None) == KernelSetting("fused")
    kernels(plain=PLAIN)  # the remembered kernel no longer exists
    assert resolve_kernels(CONFIG, CPU, None) == KernelSetting("plain")


@pytest.mark.long
def test_the_step_of_a_training_from_weights_is_timed_with_what_comes_with_them(
    fused_wins: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dense = CONFIG.replace(model_dir=str(tmp_path / "dense"), train_steps=1, steps_per_eval=1, mean_rgb=(0.5, 0.5, 0.5))
    train(dense)
    options = {name: value for name, value in OPTIONS.items() if not name.startswith("resnet_")}
    arguments = [f"--{name}={value}" for name, value in options.items()] + [f"--init_from={dense.run.model_dir}"]
    assert cli.main(["tune", *arguments]) == 0
    own = [f"--model_dir={tmp_path / 'own'}", "--train_steps=1", "--steps_per_eval=1", "--mode=train"]
    assert cli.main(["train", *arguments, *own]) == 0
    assert "Kernels: fused (the fastest when they were timed here)" in capsys.readouterr().err


def test_a_cpu_says_why_it_goes_without_its_own_kernels(
    kernels: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert resolve_kernels(CONFIG.replace(precision="bfloat16"), CPU, None) == KernelSetting("plain")
    why = "the library in C lacks bfloat16 on this processor; --precision=float32 is faster here"
    assert [record.getMessage() for record in caplog.records] == [f"Kernels: plain ({why})"]


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"a": {"of": 1}}', "\0"])
def test_a_damaged_memory_is_nothing_remembered(kernels: Callable[..., None], tmp_path: Path, text: str) -> None:
    path = tmp_path / "cache" / "resnet_tpu" / "kernels.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert resolve_kernels(CONFIG, CPU, None) == KernelSetting("plain")
    assert remembered_settings() == {}


@pytest.mark.parametrize("place", ["a file", "no home"])
def test_without_a_place_for_it_nothing_is_remembered(
    kernels: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    if place == "a file":
        (tmp_path / "cache").write_text("")
    else:
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert resolve_kernels(CONFIG, CPU, None) == KernelSetting("plain")
    remember(CONFIG, CPU, KernelSetting("fused"))
    assert remembered_settings() == {}


def test_a_long_training_on_an_accelerator_times_them_first(
    kernels: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(resolve, "tune", lambda config, mesh: (asked.append(config), (KernelSetting("fused"), []))[1])
    monkeypatch.setattr(resolve, "is_on_accelerator", lambda mesh: True)
    assert resolve_kernels(CONFIG.replace(train_steps=100), CPU, None) == KernelSetting("plain")
    assert not asked
    assert resolve_kernels(CONFIG.replace(train_steps=100_000), CPU, None) == KernelSetting("fused")
    assert len(asked) == 1


@pytest.mark.long
def test_a_training_goes_on_with_the_kernels_of_its_checkpoint(
    kernels: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    steps = {"mode": "train", "iterations_per_loop": 2, "save_checkpoints_steps": 2, "steps_per_eval": 2}
    config = CONFIG.replace(**steps, train_steps=2, model_dir=str(tmp_path / "run"), kernels="fused")
    train(config)
    path = reading.find(config.run.model_dir)
    before = reading.read_meta(path)["kernels"]
    assert before == {"kernels": "fused", "tuned_compiler": False, "device": "cpu"}
    assert resolve_kernels(CONFIG, CPU, before | {"tuned_compiler": True}) == KernelSetting(
        "fused"
    )  # as stored before 30 November 2026
    with caplog.at_level(logging.INFO):
        train(config.replace(kernels="auto", train_steps=4))
        assert "Kernels: fused (as before)" in caplog.text
        assert "Previously, the kernels were" not in caplog.text
        # on other devices it says that the setting changes
        assert resolve_kernels(CONFIG, CPU, before | {"device": "TPU v5 lite"}) == KernelSetting("plain")
    assert "Previously, the kernels were fused on TPU v5 lite: results will agree except for rounding." in caplog.text
    whole = config.replace(train_steps=4, model_dir=str(tmp_path / "whole"))
    train(whole)
    parts, at_once = (load_trained(one.run.model_dir, CPU) for one in (config, whole))
    assert parts.step == at_once.step == 4
    jax.tree.map(np.testing.assert_array_equal, parts.params, at_once.params)


def test_plain_is_taken_unless_another_gains() -> None:
    plain, fused, other = KernelSetting("plain"), KernelSetting("fused"), KernelSetting("fused", tuned_compiler=True)
    assert fastest([Trial(plain, 10.1), Trial(fused, 10.0), Trial(other, left_out="no")]) == plain
    assert fastest([Trial(plain, 10.5), Trial(fused, 10.0), Trial(other, 9.0)]) == other
    with pytest.raises(UserError, match=r"^Kernels: got plain: no memory; fused, with compiler options: no, exp"):
        fastest([Trial(plain, left_out="no memory"), Trial(other, left_out="no")])


@pytest.mark.long
def test_tune_prints_what_it_found_and_doctor_what_is_remembered(
    kernels: Callable[..., None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kernels(plain=PLAIN, fused=PLAIN)  # the same functions, so neither is left out for its rounding
    arguments = [f"--{name}={value}" for name, value in OPTIONS.items() if name != "data_dir"]
    assert cli.main(["tune", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("plain" in line or "fused" in line for line in lines) == 2
    assert sum("chosen" in line for line in lines) == 1
    assert cli.main(["tune", *arguments, "--format=json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {trial["setting"]["kernels"] for trial in found["trials"]} == {"plain", "fused"}  # both were timed
    assert found["best"] in [trial["setting"] for trial in found["trials"]]
    assert all(trial["milliseconds"] > 0 for trial in found["trials"])
    assert cli.main(["doctor"]) in (0, 2)
    assert "ResNet-8, 32 px, float32, batch 8 on 1 x cpu" in capsys.readouterr().out
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({**OPTIONS, "train_batch_size": 4, "data_dir": None}))
    assert cli.main(["tune", f"--model_dir={run}", "--format=json"]) == 0
    assert json.loads(capsys.readouterr().out)["train_batch_size"] == 4
    assert cli.main(["tune", "--resnet_depth=19"]) == 2
    assert "resnet_depth: got 19" in capsys.readouterr().err


def test_prints_why_a_setting_is_left_out(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    plain, other = KernelSetting("plain"), KernelSetting("gpu")
    trials = [Trial(plain, 1.0), Trial(other, left_out="operand[0] of [/jit/dot] is f32[8]")]
    monkeypatch.setattr(tune, "tune_run", lambda _: (plain, trials))
    assert cli.main(["tune", "--resnet_depth=8"]) == 0
    assert "operand[0] of [/jit/dot] is f32[8]" in capsys.readouterr().out


@pytest.mark.long
def test_a_setting_survives_the_journey_through_a_checkpoint() -> None:
    for setting in (KernelSetting("fused"), KernelSetting("gpu", tuned_compiler=True)):
        assert setting_from(json.loads(json.dumps(dataclasses.asdict(setting)))) == setting
