"""Batches in a deterministic order, prepared ahead of use."""
