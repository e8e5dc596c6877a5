"""A trained network in forms that run elsewhere."""

import os

# ONNX Runtime would keep an identifier of this user below ~/.cache, and report on each model to its makers.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
