"""`resnet-tpu convert`: the same weights and training state in the other format, or an error message and no output."""

import atexit
import functools
import io
import json
import pickle
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import yaml

from resnet_tpu import cli
from resnet_tpu.checkpoints import folders, reading, tf1
from resnet_tpu.checkpoints.meta import make_meta
from resnet_tpu.checkpoints.store import CheckpointStore
from resnet_tpu.checkpoints.weights import Weights, open_weights
from resnet_tpu.checkpoints.writing import write_model_dir
from resnet_tpu.models.arrays import Arrays, leaves
from resnet_tpu.models.from_options import create_network
from resnet_tpu.options.config import PREPROCESSING, Config
from resnet_tpu.options.run_file import write_description
from resnet_tpu.parallel import meshes
from resnet_tpu.reports.metrics import MetricsWriter
from resnet_tpu.training.inference.trained import load_trained
from resnet_tpu.training.maths.step import normalize

CLASSES = ["daisy", "rose", "tulip"]
TINY = {"resnet_depth": 18, "resnet_width": 4, "stem": "imagenet", "precision": "float32", "image_size": 32}
SMALL = TINY | {"resnet_depth": 8, "stem": "auto"}  # with half as many arrays
TORCH_SHAPED = {"resnet_width": 64, "project_first_group": False, "pool_padding": "symmetric"}


def make_run(model_dir: str, *, average: bool = False, **options: Any) -> Arrays:
    """Writes a run of 7 steps with random arrays into `model_dir`, and returns them."""
    config = Config().replace(num_label_classes=3, **(TINY | options))
    folder, arrays = _made(config, average)
    shutil.copytree(folder, model_dir)
    return arrays


@functools.cache
def _made(config: Config, average: bool) -> tuple[Path, Arrays]:
    network = create_network(config.model, num_classes=3, image_size=config.data.image_size)
    weights = network.shape_trees()
    shapes = {**weights, "momentum": weights["params"]} | ({"ema": weights} if average else {})
    rng = np.random.default_rng(0)
    # positive, as variances are; small, so that probabilities are not all 0 or 1
    arrays = jax.tree.map(lambda leaf: jnp.asarray(0.01 + 0.09 * rng.random(leaf.shape, np.float32)), shapes)
    arrays["step"] = jnp.int32(7)
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    with CheckpointStore(str(folder / folders.CHECKPOINTS), keep=1) as checkpoints:
        checkpoints.save(7, arrays, make_meta(config, CLASSES, position=0))
    write_description(str(folder), config, CLASSES)
    return folder, arrays


def convert(*arguments: str) -> None:
    assert cli.main(["convert", *arguments]) == 0


def assert_same_arrays(actual: str, expected: Arrays) -> None:
    """Checks the arrays in the model_dir `actual`."""
    found = reading.load_named(reading.find(actual))
    named = dict(leaves(expected))
    assert found.keys() == named.keys()
    for name, array in named.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.long),
        {**SMALL, "average": True, "moving_average_decay": 0.9999, "bn_momentum": 0.0},
        pytest.param({"enable_lars": True}, marks=pytest.mark.long),
        pytest.param(
            {"resnet_depth": 50, "use_resnetd_stem": True, "resnetd_shortcut": True, "se_ratio": 0.25},
            marks=pytest.mark.long,
        ),
        pytest.param(
            {"resnet_depth": 50, "pre_activation": True, "norm_act_layer": "evonorm_b0"}, marks=pytest.mark.long
        ),
        pytest.param({"resnet_depth": 20, "stem": "auto"}, marks=pytest.mark.long),
    ],
    ids=["plain", "averages", "lars", "resnet-d-se", "pre-activation", "cifar"],
)
def test_to_tf1_and_back_all_bits_are_the_same(options: dict[str, Any]) -> None:
    arrays = make_run("run", **options)
    convert("run", "tf1", "--to=tf1")
    assert Path("tf1/model.ckpt-7.index").exists()
    convert("tf1", "back", "--image_size=32", "--params_override=precision=float32")
    assert_same_arrays("back", arrays)
    before, after = (json.loads(Path(f"{folder}/config.json").read_text()) for folder in ("run", "back"))
    told_by_none = {"model_dir", "stem", "num_train_images"}
    assert {name: value for name, value in after.items() if value != before[name] and name not in told_by_none} == {}
    assert Path("back/labels.txt").read_text() == "0\n1\n2\n"


@pytest.mark.long
@pytest.mark.parametrize("preprocessing", ["tf", "pil"])
def test_to_safetensors_and_back_weights_names_and_preprocessing_are_the_same(preprocessing: str) -> None:
    seen = {"crop_pct": 0.95, "resize_method": "bilinear", "eval_preprocessing": preprocessing}
    arrays = make_run("run", **TORCH_SHAPED, mean_rgb=(0.5, 0.4, 0.3), **seen)
    convert("run", "in/weights.safetensors", "--image_size=48")
    convert("in/weights.safetensors", "back")
    zeros = jax.tree.map(jnp.zeros_like, arrays["momentum"])
    assert_same_arrays("back", arrays | {"step": jnp.int32(0), "momentum": zeros})
    config = json.loads(Path("back/config.json").read_text())
    seen |= {"image_size": 48, "mean_rgb": [0.5, 0.4, 0.3]}
    expected = {"pool_padding": "symmetric", "project_first_group": False, **seen}
    assert {name: config[name] for name in expected} == expected
    assert Path("back/labels.txt").read_text().split() == CLASSES


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of width 4 are written like those of width 64, the only ones that torchvision and timm have."""
    monkeypatch.setattr("resnet_tpu.checkpoints.torch_files.WIDTH", 4)


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.usefixtures("narrow")
def test_safetensors_hold_the_averages_by_default(average: bool) -> None:
    options = {"moving_average_decay": 0.9999, "bn_momentum": 0.0}
    arrays = make_run("run", average=True, **TORCH_SHAPED | {"resnet_width": 4}, **options)
    convert("run", "w.safetensors", *([] if average else ["--params_override=export_moving_average=false"]))
    written = safetensors.numpy.load_file("w.safetensors")
    expected = (arrays["ema"] if average else arrays)["params"]["dense"]["kernel"]
    np.testing.assert_array_equal(written["fc.weight"].T, expected)


def test_a_converted_checkpoint_predicts_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    make_run("run", **SMALL)
    Path("photos").mkdir()
    rng = np.random.default_rng(0)
    for number in range(3):
        cv2.imwrite(f"photos/{number}.png", rng.integers(0, 255, (40, 50, 3), np.uint8))
    convert("run", "tf1", "--to=tf1")
    convert("tf1", "back", "--labels=run/labels.txt", "--image_size=32", "--params_override=precision=float32")
    capsys.readouterr()
    printed = []
    for model_dir in ("run", "back"):
        assert cli.main(["predict", model_dir, "photos", "--format=json", "--num_cores=1"]) == 0
        printed.append(json.loads(capsys.readouterr().out))
    assert printed[0] == printed[1]
    assert "daisy" in str(printed[0])


@pytest.mark.long
def test_training_goes_on_from_a_converted_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"resnet_depth": 20, "stem": "auto"}
    make_run("run", **options)
    convert("run", "tf1", "--to=tf1")
    convert("tf1", "back", "--image_size=32")
    shape = "--params_override=" + ",".join(f"{name}={value}" for name, value in (TINY | options).items())
    length = ["--train_batch_size=8", "--iterations_per_loop=1", "--num_cores=1", "--mode=train", "--train_steps=8"]
    data = ["--data_dir=synthetic", "--num_label_classes=3"]
    assert cli.main(["train", shape, *length, *data, "--model_dir=back"]) == 0
    assert "Resuming from step 7" in capsys.readouterr().err
    assert reading.find("back").endswith("/8")


@pytest.mark.parametrize("case", ["r18", pytest.param("r50_d_se", marks=pytest.mark.long)])
def test_checkpoints_of_the_original_give_its_logits(golden: Callable[[str], Path], case: str) -> None:
    settings = json.loads(golden(f"model/{case}/meta.json").read_text())["settings"]
    size = f"--image_size={settings['image_size']}"
    convert(str(golden(f"model/{case}/start")), "new", size, "--params_override=precision=float32")
    trained = load_trained("new", meshes.make_mesh(1))
    images = np.load(golden("model/inputs.npz"))["images"][: settings["batch"]]
    forward = jax.jit(lambda *arrays: trained.network.apply(*arrays, train=False)[0])
    logits = forward(trained.params, trained.batch_stats, normalize(jnp.asarray(images), trained.network.model))
    expected = np.load(golden(f"model/{case}/results.npz"))["eval_logits"]
    noise = json.loads(golden("model/noise.json").read_text())[case]["eval_logits"]["max_abs_diff"]
    np.testing.assert_allclose(logits, expected, rtol=0, atol=20 * noise)


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one message with which the command fails; it must leave no new files behind."""
    before = sorted(Path().rglob("*"))
    capsys.readouterr()
    assert cli.main(["convert", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert sorted(Path().rglob("*")) == before
    return shown.err


def write_tf1(**options: Any) -> Path:
    """Writes `tf1/model.ckpt-7` and returns its data file."""
    config = Config().replace(**(TINY | options))
    network = create_network(config.model, num_classes=3, image_size=32)
    ones = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), network.shape_trees())
    tf1.write_checkpoint("tf1", network, {"step": np.int32(7), **ones})
    return Path("tf1/model.ckpt-7.data-00000-of-00001")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data.write_bytes(data.read_bytes()[:-100]), "bytes, expected at least"),
        (lambda data: data.write_bytes(b"\1" + data.read_bytes()[1:]), "checksum"),
        (lambda data: data.unlink(), "no such file"),
        (lambda data: Path("tf1/model.ckpt-7.index").write_bytes(b"not an index"), "index"),
    ],
    ids=["truncated", "flipped byte", "missing shard", "no index"],
)
@pytest.mark.parametrize("target", [["new"], ["new", "--to=tf1"], ["new.safetensors"]])
def test_damaged_tf1_checkpoints(
    damage: Any, message: str, target: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    damage(write_tf1())
    assert message in fails(capsys, "tf1", *target)


@pytest.mark.parametrize("target", [["new"], ["--inspect"]])
def test_a_truncated_safetensors_file(target: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    whole = safetensors.numpy.save({"fc.weight": np.ones((3, 4), np.float32)})
    Path("cut.safetensors").write_bytes(whole[:-1])
    assert "Weights cut.safetensors: got " in fails(capsys, "cut.safetensors", *target)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("was_run"),))


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("target", [["new"], ["--inspect"]])
def test_a_pickle_that_would_run_code(zipped: bool, target: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    data = pickle.dumps({"fc.weight": Evil()}, protocol=2)
    if zipped:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("archive/data.pkl", data)
        data = stream.getvalue()
    Path("evil.pth").write_bytes(data)
    assert "evil.pth" in fails(capsys, "evil.pth", *target)
    assert not Path("was_run").exists()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of weights and labels, to which mistakes add nothing."""
    folder = tmp_path_factory.mktemp("sources")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_run("run")
        write_tf1()
        Path("labels.txt").write_text("daisy\nrose\n")
    return folder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "DST: got nothing, expected a folder or *.safetensors to write."),
        (["run", "new"], "Source: got run, a checkpoint of resnet_tpu, expected weights of another kind, or --to=tf1"),
        (["tf1", "run"], "Target: got run, which already exists, expected a new path."),
        (["tf1", "labels.txt"], "Target: got labels.txt, which already exists"),
        (["tf1", "new.pth"], "Target: got new.pth, expected a folder, or a file called *.safetensors. PyTorch reads *"),
        (["tf1", "new", "--to=safetensors"], "Target: got new, expected a file called *.safetensors. Write new.saf"),
        (["tf1", "new", "--labels=labels.txt"], "Labels: got 2 names in labels.txt, expected 3, one for each class."),
        (["tf1", "new", "--labels=nowhere"], "Labels: got nowhere, expected a text file"),
        (["tf1", "new", "--params_override=resnet_depth=34"], "got resnet_depth 18 there, 34 here"),
        (
            ["tf1", "new", "--params_override=num_label_classes=5"],
            "dense/kernel: [32, 3] there, [32, 5] here, expected",
        ),
        (["run", "new", "--to=tf1", "--params_override=num_label_classes=5"], "params/dense/bias: [3] there, [5] here"),
        (["run", "new", "--to=tf1", "--labels=labels.txt"], "labels: got labels.txt, expected no labels with --to=tf1"),
        (["run", "new", "--to=tf1", "--image_size=64"], "image_size: got 64, expected no image_size with --to=tf1"),
        (["tf1", "new", "--labels=tf1/model.ckpt-7.index"], "Names: got tf1/model.ckpt-7.index, which is not text"),
        (["--inspect", "tf1", "new"], "--inspect: got target, expected SRC alone."),
        (["tf1", "new", "--params_override=resnet_dept=34"], "Did you mean resnet_depth"),
        (["tf1", "new", "--to=keras"], "to: got 'keras', expected one of model_dir, tf1, safetensors, timm."),
        (["tf1", "new", "--image_size=3"], "image_size: got 3, expected at least 8."),
        (["tf1", "new", "--lables=x"], "Did you mean --labels"),
        (["nowhere", "new"], "Weights: got nowhere, which does not exist"),
        (["--inspect", "nowhere"], "Weights: got nowhere, which does not exist"),
        (["tf1", "new.safetensors"], "resnet_width: got 4, expected 64"),
    ],
)
def test_mistakes(
    arguments: list[str],
    message: str,
    sources: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(sources)
    assert message in fails(capsys, *arguments)


@pytest.mark.parametrize(
    ("options", "made"),
    [
        ([], "new/config.json"),
        ([], "new"),
        (["--to=tf1"], "new/config.json"),
        ([], "there/config.json"),
        ([], "new.safetensors"),
    ],
)
@pytest.mark.usefixtures("narrow")
def test_what_another_program_wrote_meanwhile_stays(
    options: list[str], made: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tf1(project_first_group=False)
    Path("there").mkdir()
    target = made.split("/")[0]

    def read_while_another_writes(source: str) -> Weights:
        Path(made).parent.mkdir(exist_ok=True)
        Path(made).write_text("another's")
        return open_weights(source)

    monkeypatch.setattr("resnet_tpu.checkpoints.convert.open_weights", read_while_another_writes)
    assert cli.main(["convert", "tf1", target, *options]) == 2
    assert f"Target: got {target}, which already exists" in capsys.readouterr().err
    assert Path(made).read_text() == "another's"
    assert {path.name for path in Path().iterdir()} == {"tf1", "there", target}
    assert Path(target).is_file() or [path.name for path in Path(target).iterdir()] == ["config.json"]


@pytest.mark.parametrize("target", ["there", "link", "."])
def test_an_empty_folder_is_filled_and_links_to_it_stay(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stays the same folder, it may be a volume, or the current folder of a shell."""
    write_tf1()
    root, there = Path.cwd(), Path("there").absolute()
    (there / ".there.0123.partial").mkdir(parents=True)  # of a program that was killed
    Path("link").symlink_to("there")
    number = there.stat().st_ino
    monkeypatch.chdir(there if target == "." else root)
    convert(str(root / "tf1"), target)
    assert {path.name for path in there.iterdir()} == {"checkpoints", "config.json", "labels.txt"}
    assert there.stat().st_ino == number
    assert Path(root, "link").is_symlink()
    assert {path.name for path in root.iterdir()} == {"tf1", "there", "link"}


def test_a_link_to_a_folder_to_be_made_stays() -> None:
    write_tf1()
    Path("link").symlink_to("there")
    convert("tf1", "link")
    assert Path("link").is_symlink()
    assert Path("there/config.json").exists()


def test_weights_without_a_classifier_are_for_training_only(
    three_kinds: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = safetensors.numpy.load_file(three_kinds.folders["torch"] / "model.safetensors")
    safetensors.numpy.save_file({name: arrays[name] for name in arrays if "fc" not in name}, "body.safetensors")
    assert "got no classifier, expected a whole network" in fails(capsys, "body.safetensors", "new")
    convert("--inspect", "body.safetensors")
    assert "no classifier" in capsys.readouterr().out
    yes_or_no = {name: arrays[name][:1] for name in ("fc.weight", "fc.bias")}
    safetensors.numpy.save_file(arrays | yes_or_no, "one.safetensors")
    message = "Weights one.safetensors: got a classifier with one output, expected an output for each class. Start"
    assert message in fails(capsys, "one.safetensors", "new")


def test_warns_of_options_that_the_original_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    make_run("run", **SMALL, pool_padding="symmetric", eval_preprocessing="pil")
    convert("run", "tf1", "--to=tf1")
    assert "The original has no pool_padding=symmetric, only same" in (said := capsys.readouterr().err)
    assert "The original has no eval_preprocessing=pil, only tf" in said
    assert "resnetd_shortcut" not in said
    assert "pruned" not in said
    make_run("pooled", **SMALL, resnetd_shortcut=True)
    convert("pooled", "pooled_tf1", "--to=tf1")
    assert "The original has no resnetd_shortcut=True, only False" in capsys.readouterr().err


def test_warns_that_masks_are_lost(capsys: pytest.CaptureFixture[str]) -> None:
    arrays = make_run("run", **SMALL)
    kernel = arrays["params"]["stem"]["conv"]["kernel"]
    masks = {"stem": {"conv": {"kernel": np.ones(kernel.shape, bool)}}}
    write_model_dir("pruned", Config().replace(num_label_classes=3, **SMALL), arrays | {"masks": masks}, CLASSES)
    convert("pruned", "pruned_tf1", "--to=tf1")
    assert "pruned_tf1 has no place for the masks of a pruned network" in capsys.readouterr().err


def test_inspect_shows_what_is_there_and_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    make_run("run")
    before = sorted(Path().rglob("*"))
    convert("--inspect", "run")
    shown = capsys.readouterr().out
    assert "params/stem/conv/kernel" in shown
    assert "ResNet-18 of width 4 of resnet_tpu, 3 classes (daisy, rose, tulip), " in shown
    assert sorted(Path().rglob("*")) == before


TIMM = {"resnet_width": 4, "project_first_group": False, "pool_padding": "symmetric", "crop_pct": 0.95}


@pytest.fixture(scope="module")
def timm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network in timm's format."""
    folder = tmp_path_factory.mktemp("timm")
    make_run(str(folder / "run"), **TIMM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("resnet_tpu.checkpoints.torch_files.WIDTH", 4)
        convert(str(folder / "run"), str(folder / "folder"), "--to=timm")
    return folder / "folder"


def test_unsupported_preprocessing_is_warned_of(timm_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(timm_folder, "folder")
    described = {"interpolation": "lanczos", "crop_mode": "squash"}
    (Path("folder") / "config.json").write_text(json.dumps({"pretrained_cfg": described}))
    convert("folder", "back")
    said = capsys.readouterr().err
    assert "interpolation lanczos is not supported: photos are evaluated with bicubic" in said
    assert "crop_mode squash is not supported: photos are evaluated with center" in said


@pytest.mark.parametrize("preprocessing", ["pil", pytest.param("tf", marks=pytest.mark.long)])
@pytest.mark.usefixtures("narrow")
def test_to_timm_and_back_weights_names_and_preprocessing_are_the_same(preprocessing: str) -> None:
    own = {"mean_rgb": (0.5, 0.4, 0.3), "resize_method": "bilinear", "weights_licence": "cc-by-4.0"}
    own["eval_preprocessing"] = preprocessing
    arrays = make_run("run", **TIMM, **own)
    convert("run", "folder", "--to=timm")
    assert {path.name for path in Path("folder").iterdir()} == {"model.safetensors", "config.json", "README.md"}
    convert("folder", "back")
    zeros = jax.tree.map(jnp.zeros_like, arrays["momentum"])
    assert_same_arrays("back", arrays | {"step": jnp.int32(0), "momentum": zeros})
    before, after = (json.loads(Path(f"{folder}/config.json").read_text()) for folder in ("run", "back"))
    for name in ("mean_rgb", "stddev_rgb", "pool_padding", *PREPROCESSING):
        assert after[name] == before[name], name
    assert Path("back/labels.txt").read_text().split() == CLASSES


@pytest.mark.usefixtures("narrow")
def test_writes_config_and_card_for_timm() -> None:
    make_run("run", **TIMM)
    with MetricsWriter("run") as writer:
        writer.write("eval", {6: {"top_1_accuracy": 0.5}, 7: {"top_1_accuracy": 0.875}})
    convert("run", "folder", "--to=timm", "--params_override=weights_licence=apache-2.0")
    described = json.loads(Path("folder/config.json").read_text())
    assert (described["architecture"], described["num_classes"]) == ("resnet18", 3)
    assert described["label_names"] == CLASSES
    expected = {"input_size": [3, 32, 32], "interpolation": "bicubic", "crop_pct": 0.95, "license": "apache-2.0"}
    assert expected.items() <= described["pretrained_cfg"].items()
    card = Path("folder/README.md").read_text()
    properties = yaml.safe_load(card.split("---\n")[1])
    assert (properties["library_name"], properties["license"]) == ("timm", "apache-2.0")
    assert "daisy, rose, tulip" in card
    assert "| right on its validation images | 87.5% |" in card
    convert("run", "larger", "--to=timm", "--image_size=160")  # at which nothing was measured
    assert json.loads(Path("larger/config.json").read_text())["pretrained_cfg"]["input_size"] == [3, 160, 160]
    assert "validation" not in Path("larger/README.md").read_text()


@pytest.mark.usefixtures("narrow")
def test_a_network_that_timm_has_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    make_run("run", **TIMM, resnetd_shortcut=True)
    message = fails(capsys, "run", "folder", "--to=timm")
    assert "Network: got a ResNet-18 with resnetd_shortcut True, expected one that timm has a name for" in message
    make_run("small", **SMALL)
    message = fails(capsys, "small", "folder", "--to=timm")
    assert "stem: got small, expected imagenet, the only value in torchvision's and timm's ResNets. Train" in message
    assert not Path("folder").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"input_size": [3, 0, 0]},
            "image_size in the description of folder/model.safetensors: got 0, expected at least",
        ),
        ({"input_size": ["wide"]}, "got 'wide', expected a whole number. Fix or remove the config.json."),
        ({"crop_pct": "all"}, "crop_pct in the description of folder/model.safetensors: got 'all', expected a number."),
        ({"crop_pct": 1.5}, "crop_pct in the description of folder/model.safetensors: got 1.5, expected at most 1."),
    ],
)
def test_an_invalid_description_is_refused(
    content: dict[str, Any], message: str, timm_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(timm_folder, "folder")
    (Path("folder") / "config.json").write_text(json.dumps({"pretrained_cfg": content}))
    assert message in fails(capsys, "folder", "back")
