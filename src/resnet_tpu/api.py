"""What the verbs do, as functions over the same options."""

from resnet_tpu.config import Config
from resnet_tpu.data.prepare.prepare import PrepareOptions, prepare
from resnet_tpu.errors import UserError
from resnet_tpu.export.bundle import load_classifier, open_bundle
from resnet_tpu.export.export import export_run as export
from resnet_tpu.plan.plan import plan
from resnet_tpu.plan.topology import find_topology
from resnet_tpu.prune.experiment import prune_run as prune
from resnet_tpu.prune.options import Experiment
from resnet_tpu.recipes import find_recipe
from resnet_tpu.train.evaluate import evaluate_run as evaluate
from resnet_tpu.train.loop import train
from resnet_tpu.train.predict import predict

__all__ = [
    "Config",
    "Experiment",
    "PrepareOptions",
    "UserError",
    "evaluate",
    "export",
    "find_recipe",
    "find_topology",
    "load_classifier",
    "open_bundle",
    "plan",
    "predict",
    "prepare",
    "prune",
    "train",
]
