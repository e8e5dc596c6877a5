"""A client that openapi-python-client makes from `/openapi.json`: its names are those of our routes and bodies."""

import base64
import importlib
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from .conftest import CLASSES, Server


@pytest.mark.peer("openapi-python-client")
def test_a_generated_client_asks_and_understands(
    client: httpx.Client, server: Server, images: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "openapi.json").write_bytes(client.get("/openapi.json").content)
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--path=openapi.json", "--meta=none"]
    made = subprocess.run([*command, "--output-path=flowers_client"], cwd=tmp_path, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    monkeypatch.syspath_prepend(tmp_path)
    generated, api, models, types = (
        importlib.import_module(f"flowers_client{module}") for module in ("", ".api.default", ".models", ".types")
    )
    with generated.Client(server.url) as ask:

        def call(route: str, *args: object, **more: object) -> Any:
            return importlib.import_module(f"{api.__name__}.{route}").sync(*args, client=ask, **more)

        assert call("health") == models.Health(live=True, ready=True)
        (model,) = call("list_models").models
        card = call("metadata_version", model.name, model.version).model_card
        assert (card.name, card.class_names) == ("flowers", CLASSES)
        (state,) = call("status", model.name).model_version_status
        assert (state.version, state.state) == (str(model.version), "AVAILABLE")
        assert "Servable not found" in call("status", "roses").error

        files = [models.ImageFile(base64.b64encode(image).decode()) for image in images[:3]]
        rows = call("predict", model.name, body=models.PredictRequest(instances=files)).predictions
        columns = call("predict", model.name, body=models.PredictRequest(inputs=files)).outputs
        np.testing.assert_array_equal([row.probabilities for row in rows], columns.probabilities)
        uploads = [types.File(io.BytesIO(data), f"{i}.png") for i, data in enumerate([*images[:3], b"no image"])]
        found = call("classify", model.name, body=models.ClassifyRequest(images=uploads), top_k=1).predictions
        best = [named.classes[0] for named in found[:3]]
        assert [CLASSES.index(one.class_) for one in best] == columns.classes
        np.testing.assert_array_equal([one.probability for one in best], np.max(columns.probabilities, axis=1))
        assert (found[3].name, found[3].classes) == ("3.png", types.UNSET)
        assert "not a known image format" in found[3].error
