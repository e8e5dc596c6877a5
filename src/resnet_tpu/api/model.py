"""A trained network in a Python program: its classes, and its predictions and features for images."""

import functools
import os
from collections.abc import Callable, Iterator
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from resnet_tpu.api.images import Images, ImageSource
from resnet_tpu.checkpoints import reading
from resnet_tpu.checkpoints.convert import open_network
from resnet_tpu.checkpoints.meta import config_of
from resnet_tpu.checkpoints.weights import locate
from resnet_tpu.data.class_names import numbers_as_names
from resnet_tpu.data.loader.batches import eval_batches
from resnet_tpu.data.pixels.decode import OR_SKIP, DecodeError
from resnet_tpu.errors import UserError, listed, nearest
from resnet_tpu.models.arrays import Arrays
from resnet_tpu.models.from_options import network_of
from resnet_tpu.models.network import Network
from resnet_tpu.options.config import Config
from resnet_tpu.options.fields import expand_home
from resnet_tpu.parallel import meshes, startup
from resnet_tpu.reports.finite import check_finite
from resnet_tpu.reports.predictions import Predictions
from resnet_tpu.serving.export.bundle import find_bundle, open_bundle
from resnet_tpu.serving.export.classifier import load_classifier, softmax
from resnet_tpu.training.inference.trained import load_trained
from resnet_tpu.training.maths.step import make_output_step

Precision = Literal["bfloat16", "float32"]

_PROBABILITIES = "probabilities"
_MOST_AT_ONCE = 32  # no CPU is faster with larger batches

_Compute = Callable[[str, np.ndarray], np.ndarray]
"""(stage, images uint8 [n, s, s, 3]) -> float32 [n, ...]"""


class Model:
    """A trained network, ready to name the classes of images; made by `load_model`."""

    def __init__(
        self, source: str, config: Config, class_names: list[str], stages: tuple[str, ...], compute: _Compute
    ) -> None:
        """stages: those that `features` accepts. compute: computes the output of these and of `probabilities`."""
        self.source = source
        """What it was loaded from."""
        self.config = config
        """The options of its training; `model_dir` is the run or checkpoint it was loaded from, empty for all else."""
        self.class_names = class_names
        """Names of the classes, in the order of the outputs."""
        self.stages = stages
        """The parts of the network whose output `features` returns, from `stem` to `logits`."""
        self._compute = compute

    def predict(self, images: Images) -> Predictions:
        """The probabilities of all classes, for one image or several.

        A file in a folder named after a class has a label, and counts towards the accuracy. Raises UserError for a
        missing or damaged image and for anything that is not an image.
        """
        source = ImageSource(images, self.class_names)
        probabilities, labels = self._run(_PROBABILITIES, source)
        names = [source.name(i) for i in range(len(source))]
        return Predictions(names, probabilities, labels, self.class_names)

    def logits(self, images: Images) -> np.ndarray:
        """The logits, whose softmax is the probabilities: float32 [n, classes]. Raises UserError as `predict` does."""
        return self._run("logits", ImageSource(images, self.class_names))[0]

    def features(self, images: Images, stage: str = "pooled") -> np.ndarray:
        """The output of part of the network: float32 [n, c] for `pooled`, [n, h, w, c] for `stem`, `group1` and so on.

        `pooled` is the input of the classifier. Raises UserError for a stage that is not in `stages`: checkpoints and
        weights have all of them, a bundle only `logits`.
        """
        if stage not in self.stages:
            do = f"Name one, or load the checkpoint instead of a bundle.{nearest(stage, self.stages)}"
            raise UserError("stage", stage, f"one of {', '.join(self.stages)}", do)
        return self._run(stage, ImageSource(images, self.class_names))[0]

    def __repr__(self) -> str:
        names = listed(self.class_names, 10)
        depth, size = self.config.model.resnet_depth, self.config.data.image_size
        return f"<ResNet-{depth} of {self.source}: {size} px, {len(self.class_names)} classes: {names}>"

    def _run(self, stage: str, source: ImageSource) -> tuple[np.ndarray, np.ndarray]:
        """The output of a stage for all images, and their labels, -1 if unknown."""
        outputs, labels = [], []
        for batch in self._batches(source):
            whole = batch["weight"] > 0
            output = self._compute(stage, batch["image"])[whole]
            check_finite(f"{stage} of {self.source}", output, lambda: "Load another checkpoint, or precision=float32.")
            outputs.append(output)
            labels.append(batch["label"][whole])
        return np.concatenate(outputs), np.concatenate(labels)

    def _batches(self, source: ImageSource) -> Iterator[dict[str, np.ndarray]]:
        """All images, cropped as in evaluation; batches are padded to a few sizes, as each size has to be compiled.

        Raises DecodeError for a damaged image, even if training skipped those: row i must belong to image i.
        """
        data = self.config.replace(skip_bad_records=False).data
        size = min(_MOST_AT_ONCE, 1 << (len(source) - 1).bit_length())
        with eval_batches(source, data, batch_size=size) as batches:
            try:
                yield from batches
            except DecodeError as error:
                # the API has no such option
                raise error.but(do=error.do.replace(OR_SKIP, "or leave it out")) from None


def load_model(source: str | os.PathLike[str], *, precision: Precision | None = None) -> Model:
    """Loads the trained network that `source` refers to.

    source: the `model_dir` of a run, for its newest checkpoint; a checkpoint; a bundle, or the folder it was exported
    to; a weights file of torchvision, timm or the original program; or a name such as `resnet50` or
    `hf:timm/resnet50.a1_in1k`, whose weights are fetched once (`resnet-tpu models` lists more).
    precision: of the arithmetic; by default that of training, or float32 for weights from elsewhere. Bundles ignore
    it. Prints nothing. Raises UserError when there is no such network, or its files are damaged.
    """
    path = expand_home(source)
    if bundle := find_bundle(path):
        return _load_bundle(bundle)
    startup.start_jax(use_tpu=True)
    if (found := locate(path)).kind == "ours":
        return _load_checkpoint(path, found.path, precision)
    config, arrays, class_names = open_network(path)
    config = config.replace(precision=precision or "float32")
    network = network_of(config)
    names = class_names or numbers_as_names(network.num_classes)
    return Model(path, config, names, network.stages, _computing(network, arrays["params"], arrays["batch_stats"]))


def _load_checkpoint(path: str, checkpoint: str, precision: Precision | None) -> Model:
    averages = config_of(reading.read_meta(checkpoint)).eval.export_moving_average  # as `predict` does with this run
    trained = load_trained(checkpoint, meshes.mesh_of(jax.devices()[:1]), moving_average=averages)
    # the run may have been moved or copied since its training
    config = trained.config.replace(model_dir=path, precision=precision or trained.config.model.precision)
    network = network_of(config)
    return Model(
        path, config, trained.class_names, network.stages, _computing(network, trained.params, trained.batch_stats)
    )


def _load_bundle(path: str) -> Model:
    bundle = open_bundle(path)
    classify = load_classifier(bundle, output="logits")

    def compute(stage: str, images: np.ndarray) -> np.ndarray:
        return classify(images) if stage == "logits" else softmax(classify(images))

    config = bundle.config.replace(model_dir="")  # its run is elsewhere, and may have gone on since
    return Model(path, config, bundle.class_names, ("logits",), compute)


def _computing(network: Network, params: Arrays, batch_stats: Arrays) -> _Compute:
    @functools.cache
    def compiled(stage: str) -> Callable[[Arrays, Arrays, jax.Array], jax.Array]:
        return make_output_step(network, stage)

    return lambda stage, images: np.asarray(compiled(stage)(params, batch_stats, jnp.asarray(images)))
