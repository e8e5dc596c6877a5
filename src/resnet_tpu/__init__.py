"""Image classification with ResNets on TPU, GPU and CPU."""

__version__ = "0.1.0"
