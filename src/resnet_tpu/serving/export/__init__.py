"""Exports a trained network in forms that run without this package."""

import os

# ONNX Runtime would keep an identifier of this user in ~/.cache, and report each model to its makers.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
