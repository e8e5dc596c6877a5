"""Kernels: other ways to compute the layers of `models.layers` in training."""
