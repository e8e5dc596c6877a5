"""Estimates memory, speed and cost of training on a TPU or GPU that is not attached."""
