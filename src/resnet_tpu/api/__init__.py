"""The Python API, also available in `resnet_tpu`: the commands as functions, data sets, and trained models."""

from resnet_tpu.api.dataset import Dataset, Example, open_dataset
from resnet_tpu.api.model import Model, load_model
from resnet_tpu.checkpoints.convert import convert
from resnet_tpu.data.pixels.decode import DecodeError
from resnet_tpu.data.prepare.digits import write_digits
from resnet_tpu.data.prepare.flowers import fetch_flower_photos
from resnet_tpu.data.prepare.options import PrepareOptions
from resnet_tpu.data.prepare.prepare import prepare
from resnet_tpu.errors import NonFiniteError, UserError
from resnet_tpu.options.config import Config
from resnet_tpu.performance.plan.plan import plan
from resnet_tpu.performance.plan.topology import find_topology
from resnet_tpu.pruning.experiment import prune_run as prune
from resnet_tpu.pruning.options import Experiment
from resnet_tpu.recipes import find_recipe
from resnet_tpu.recipes.choice import follow_weights
from resnet_tpu.reports.history import History
from resnet_tpu.reports.history import read_history as history
from resnet_tpu.reports.predictions import Predictions
from resnet_tpu.serving.export.bundle import open_bundle
from resnet_tpu.serving.export.classifier import load_classifier
from resnet_tpu.serving.export.export import export_run as export
from resnet_tpu.training.inference.evaluate_run import evaluate_run as evaluate
from resnet_tpu.training.inference.predict import predict
from resnet_tpu.training.loop import train

__all__ = [
    "Config", "Dataset", "DecodeError", "Example", "Experiment", "History", "Model", "NonFiniteError", "Predictions",
    "PrepareOptions", "UserError", "convert", "evaluate", "export", "fetch_flower_photos", "find_recipe",
    "find_topology", "follow_weights", "history", "load_classifier", "load_model", "open_bundle", "open_dataset",
    "plan", "predict", "prepare", "prune", "train", "write_digits",
]  # fmt: skip
