"""Batches in exact order, made ahead of their use."""
