"""Serves bundles over HTTP: reads requests, decodes images, forms batches, answers."""
