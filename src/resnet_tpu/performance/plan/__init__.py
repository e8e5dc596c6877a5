"""Estimates of what a training would be like on a TPU or a GPU that is not attached."""
