"""Pruning, and re-training what is left."""
