"""Published weights, by name: those known to work here, and any of timm's ResNets on the hub."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from resnet_tpu.checkpoints import hub, published

HUB = "hf:"
"""The prefix that marks a repository on Hugging Face's hub: `hf:timm/resnet50.a1_in1k`."""

_TORCHVISION = "https://download.pytorch.org/models/"


@dataclass(frozen=True)
class Pretrained:
    """Weights for the 1000 classes of ImageNet.

    `parameters`: in millions. `top_1`: the accuracy on ImageNet's validation images that the publisher states for the
    image size that comes with them, in percent; None if that is not known for sure. `options`: those that the files
    do not record.
    """

    location: str
    network: str
    parameters: float
    top_1: float | None
    licence: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def megabytes(self) -> int:
        """The size of the weights in float32."""
        return round(4 * self.parameters)

    @property
    def eval_preprocessing(self) -> str:
        """How their publisher preprocesses images for evaluation."""
        return "tf" if self.location.startswith("gs://") else "pil"

    @property
    def source(self) -> str:
        """The address at which they are published."""
        return self.location.replace(HUB, "https://huggingface.co/", 1)


def _torchvision(file: str, network: str, parameters: float, top_1: float, shorter_side: int = 256) -> Pretrained:
    """Weights from torchvision's table, evaluated on 224 px out of a photo with this shorter side."""
    options = {"image_size": 224, "crop_pct": round(224 / shorter_side, 4), "resize_method": "bilinear"}
    return Pretrained(_TORCHVISION + file, network, parameters, top_1, "bsd-3-clause", options)


def _timm(name: str, network: str, parameters: float, top_1: float | None = None) -> Pretrained:
    return Pretrained(f"{HUB}{name}", network, parameters, top_1, "apache-2.0")


PRETRAINED = {
    "resnet18": _torchvision("resnet18-f37072fd.pth", "ResNet-18", 11.7, 69.758),
    "resnet34": _torchvision("resnet34-b627a593.pth", "ResNet-34", 21.8, 73.314),
    "resnet50": _torchvision("resnet50-11ad3fa6.pth", "ResNet-50", 25.6, 80.858, 232),
    "resnet101": _torchvision("resnet101-cd907fc2.pth", "ResNet-101", 44.5, 81.886, 232),
    "resnet152": _torchvision("resnet152-f82ba261.pth", "ResNet-152", 60.2, 82.284, 232),
    "resnet50_v1": _torchvision("resnet50-0676ba61.pth", "ResNet-50", 25.6, 76.130),
    "resnet101_v1": _torchvision("resnet101-63fe2227.pth", "ResNet-101", 44.5, 77.374),
    "resnet152_v1": _torchvision("resnet152-394f9c45.pth", "ResNet-152", 60.2, 78.312),
    "resnet-nhwc-2018-02-07": Pretrained(
        "gs://cloud-tpu-artifacts/resnet/resnet-nhwc-2018-02-07", "ResNet-50", 25.6, None, "apache-2.0"
    ),
    **{
        found.location: found
        for found in (
            _timm("timm/resnet18.a1_in1k", "ResNet-18", 11.7),
            _timm("timm/resnet34.a1_in1k", "ResNet-34", 21.8),
            _timm("timm/resnet50.a1_in1k", "ResNet-50", 25.6, 80.4),
            _timm("timm/resnet50.a2_in1k", "ResNet-50", 25.6, 79.8),
            _timm("timm/resnet101.a1_in1k", "ResNet-101", 44.5),
            _timm("timm/resnet152.a1_in1k", "ResNet-152", 60.2),
            _timm("timm/resnet50d.ra2_in1k", "ResNet-50-D", 25.6),
            _timm("timm/resnet101d.ra2_in1k", "ResNet-101-D", 44.6),
            _timm("timm/resnet152d.ra2_in1k", "ResNet-152-D", 60.2),
            _timm("timm/seresnet50.ra2_in1k", "SE-ResNet-50", 28.1),
            _timm("timm/resnetrs50.tf_in1k", "ResNet-RS-50", 35.7),
            _timm("timm/resnetrs101.tf_in1k", "ResNet-RS-101", 63.6),
            _timm("timm/resnetrs152.tf_in1k", "ResNet-RS-152", 86.6),
        )
    },
}
"""Weights by name.

Sources of the accuracies: torchvision's table of weights, V1 for ResNet-18, -34 and the names with v1, else V2; for
timm's a1 and a2 arXiv:2110.00476, table 3, at 224 px.
"""


def fetch(name: str) -> tuple[str, dict[str, Any]] | None:
    """Where the weights called `name` are now, and the options that their files do not record; None for no such name.

    Missing files are downloaded, once.
    Raises UserError when nothing is published under that name, or it cannot be reached or is damaged.
    """
    if name.startswith(HUB):
        return hub.fetch(name.removeprefix(HUB), name)
    if name not in PRETRAINED:
        return None
    found = PRETRAINED[name]
    location, origin = found.location, found.location
    if location.startswith("https://"):
        location, checksum = published.fetch(location)
        origin = f"{origin} sha256:{checksum}"
    return location, {**found.options, "weights_origin": origin, "weights_licence": found.licence}
