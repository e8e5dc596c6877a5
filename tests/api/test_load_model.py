"""A model is the same whether its weights are loaded from a file, by name, or from what `convert` makes of them."""

import dataclasses
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from PIL import Image

import resnet_tpu as rt
from resnet_tpu import cli
from resnet_tpu.checkpoints import pretrained, published
from resnet_tpu.checkpoints.torch_names import to_torch, torch_names
from resnet_tpu.checkpoints.writing import write_model_dir
from resnet_tpu.models.arrays import leaf_at
from resnet_tpu.models.from_options import create_network, network_of
from resnet_tpu.serving.server.images import network_input
from tests.checkpoints.test_torch_pickle import save_zip, tensor

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 80, 100, 3), np.uint8)


@pytest.fixture
def weights() -> dict[str, np.ndarray]:
    """A ResNet-18 of width 4 for three classes, under torchvision's names."""
    config = rt.Config().replace(resnet_depth=18, resnet_width=4, stem="imagenet")
    network = create_network(config.model, num_classes=3, image_size=64)
    rng = np.random.default_rng(0)
    shapes = network.shape_trees()
    arrays = jax.tree.map(lambda leaf: jnp.asarray(rng.uniform(0.01, 0.1, leaf.shape), jnp.float32), shapes)
    places = torch_names(network).items()
    return {name: np.ascontiguousarray(to_torch(np.asarray(leaf_at(arrays, place)))) for name, place in places}


def test_a_file_of_weights_in_each_form(
    weights: dict[str, np.ndarray], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pickled, plain, run = (tmp_path / name for name in ("resnet.pth", "resnet.safetensors", "run"))
    save_zip(pickled, {name: tensor(name, array) for name, array in weights.items()}, weights)
    safetensors.numpy.save_file(weights, plain)
    models = [rt.load_model(pickled), rt.load_model(str(plain))]
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")
    assert cli.main(["convert", str(pickled), str(run)]) == 0
    rt.convert(plain, tmp_path / "run_too")
    models += [rt.load_model(run), rt.load_model(tmp_path / "run_too")]
    for model in models:
        assert (model.class_names, model.config.model.precision) == (["0", "1", "2"], "float32")
    expected = models[0].logits(IMAGES)
    assert np.ptp(expected) > 0
    for model in models[1:]:
        np.testing.assert_array_equal(model.logits(IMAGES), expected)


@pytest.mark.long
def test_exported_and_served_it_sees_a_photo_as_its_makers_did(weights: dict[str, np.ndarray], tmp_path: Path) -> None:
    pickled, run, photo = tmp_path / "resnet.pth", str(tmp_path / "run"), tmp_path / "photo.jpg"
    save_zip(pickled, {name: tensor(name, array) for name, array in weights.items()}, weights)
    noise = np.random.default_rng(0).integers(0, 256, (200, 300, 3), np.uint8)
    Image.fromarray(noise).save(photo)
    assert cli.main(["convert", str(pickled), run]) == 0
    live = rt.load_model(run)
    assert live.config.model.precision == "float32"
    bundle = rt.export(live.config.replace(export_dir=str(tmp_path / "exported"), export_forms="onnx"))
    with Image.open(photo) as image:
        resized = image.resize((384, 256), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(live.logits(photo), live.logits(resized))
    np.testing.assert_allclose(rt.load_model(bundle).logits(photo), live.logits(photo), rtol=1e-5, atol=1e-5)
    served = network_input(photo.read_bytes(), rt.open_bundle(bundle).config.data, max_pixels=100_000)
    np.testing.assert_array_equal(served, np.asarray(resized)[16:240, 80:304])


def test_a_short_name(weights: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file was downloaded by other means and put where the message says that it may be."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    own = tmp_path / "own.pth"
    save_zip(own, {name: tensor(name, array) for name, array in weights.items()}, weights)
    name = f"tiny-{hashlib.sha256(own.read_bytes()).hexdigest()[:8]}.pth"
    tiny = dataclasses.replace(pretrained.PRETRAINED["resnet18"], location=f"https://hub.invalid/{name}")
    monkeypatch.setitem(pretrained.PRETRAINED, "tiny", tiny)
    with pytest.raises(rt.UserError, match="HF_HUB_OFFLINE, and no copy on this machine"):
        rt.load_model("tiny")
    folder = Path(published.folder())
    folder.mkdir(parents=True)
    own.rename(folder / name)
    model, file = rt.load_model("tiny"), rt.load_model(folder / name)
    options = model.config.flat()
    assert {name: options[name] for name in tiny.options} == dict(tiny.options)
    assert (options["weights_licence"], options["eval_preprocessing"]) == ("bsd-3-clause", "pil")
    image = np.random.default_rng(0).integers(0, 256, (256, 256, 3), np.uint8)  # its centre is cropped, not resized
    np.testing.assert_array_equal(model.logits(image), file.logits(image))


@pytest.mark.parametrize("wanted", [True, False])
def test_moving_averages_are_used_as_the_option_says(wanted: bool, tmp_path: Path) -> None:
    config = rt.Config().replace(
        resnet_depth=8, resnet_width=4, image_size=16, num_label_classes=2, moving_average_decay=0.9, bn_momentum=0.0,
        export_moving_average=wanted,
    )  # fmt: skip
    kept = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), network_of(config).shape_trees())
    params = kept["params"]
    averages = kept | {"params": params | {"dense": params["dense"] | {"bias": np.arange(2, dtype=np.float32)}}}
    run = str(tmp_path / "run")
    write_model_dir(run, config, {"step": 7, "momentum": params, **kept, "ema": averages}, ["a", "b"])
    assert rt.load_model(run).logits(IMAGES[0]).tolist() == [[0, 1] if wanted else [0, 0]]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("resnet51", r"got resnet51, which does not exist, expected .*resnet-tpu models.*Did you mean resnet50"),
        ("nowhere.pth", "got nowhere.pth, which does not exist, expected"),
        ("", "Weights: got nothing, expected"),  # as `follow_weights` of options that start from no weights
        ("hf:tiny", "got tiny, expected a repository, OWNER/NAME"),
    ],
)
def test_a_source_that_does_not_exist_is_refused(source: str, message: str) -> None:
    with pytest.raises(rt.UserError, match=message):
        rt.load_model(source)


CONFIG = "config: got 'model' of type str, expected type Config. Make one: find_recipe"
PATH = "expected text or a pathlib.Path"


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        (rt.train, ["model"], CONFIG),
        (rt.evaluate, ["model"], CONFIG),
        (rt.predict, ["model", "photo.jpg"], CONFIG),
        (rt.export, ["model"], CONFIG),
        (rt.follow_weights, ["model"], CONFIG),
        (rt.plan, ["model", "v5e-8"], CONFIG),
        (rt.plan, [rt.Config(), "v5e-8"], "topology: got 'v5e-8' of type str, expected type Topology. Find it"),
        (rt.prune, ["model", "out", {"density": 20}], "of type dict, expected type Experiment. Make one"),
        (rt.prepare, ["photos", "data", {"seed": 1}], "of type dict, expected type PrepareOptions. Make them"),
        (rt.load_classifier, ["exported"], "bundle: got 'exported' of type str, expected type Bundle. Open it first"),
        (rt.convert, [["model"], "out"], f"Path: got ['model'] of type list, {PATH}"),
        (rt.load_model, [None], f"Path: got None of type NoneType, {PATH}"),
        (rt.open_bundle, [3], f"Path: got 3 of type int, {PATH}"),
        (rt.open_dataset, [["a", "b"]], f"Path: got ['a', 'b'] of type list, {PATH}"),
        (rt.open_dataset, [np.eye(2)], f"Path: got array([[1., 0.], [0., 1.]]) of type ndarray, {PATH}"),
        (
            rt.find_recipe,
            [["digits"]],
            "Recipe: got ['digits'] of type list, expected type str. Choose one of",
        ),
        (rt.find_topology, [8], "topology: got 8 of type int, expected type str. Give its name"),
    ],
)
def test_an_argument_of_another_type_is_refused(function: Callable[..., Any], given: list[Any], message: str) -> None:
    with pytest.raises(rt.UserError, match=re.escape(message)):
        function(*given)


def test_weights_are_not_converted_to_an_unknown_form(tmp_path: Path) -> None:
    to: Any = "pth"
    with pytest.raises(rt.UserError, match="to: got 'pth', expected one of model_dir, tf1, safetensors, timm"):
        rt.convert("resnet50", tmp_path / "out", to=to)


def test_images_that_nobody_named_are_asked_for(tmp_path: Path) -> None:
    config = rt.find_recipe("digits").replace(model_dir=str(tmp_path / "model"))
    for function in (rt.train, rt.open_dataset):
        with pytest.raises(rt.UserError, match="data_dir: got nothing, expected TFRecords or a folder of images"):
            function(config)
    assert not (tmp_path / "model").exists()
