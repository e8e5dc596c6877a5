"""Pruning, and training again what is left."""
