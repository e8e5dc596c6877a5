"""What operators and visitors see: health, metrics, the schema and its page; and the models inside."""

import asyncio
import base64
import dataclasses
import html.parser
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from resnet_tpu.errors import UserError
from resnet_tpu.serving.export.classifier import softmax
from resnet_tpu.serving.server.app import make_app
from resnet_tpu.serving.server.batching import Batcher
from resnet_tpu.serving.server.gate import Readiness
from resnet_tpu.serving.server.metrics import Metrics
from resnet_tpu.serving.server.models import Loader, load_models
from resnet_tpu.serving.server.options import ServeOptions


def test_health(client: httpx.Client) -> None:
    for path in ("/health", "/health/ready", "/health/live"):
        answer = client.get(path)
        assert (answer.status_code, answer.json()) == (200, {"live": True, "ready": True})


def test_metrics_count_what_was_asked(client: httpx.Client, images: list[bytes]) -> None:
    def read() -> dict[tuple[str, ...], float]:
        families = text_string_to_metric_families(client.get("/metrics").text)
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in families
            for sample in family.samples
            if not sample.name.endswith("_bucket")
        }

    before = read()
    files = [("images", image) for image in images[:3]]
    assert client.post("/v1/models/flowers:classify", files=[*files, ("images", b"none")]).status_code == 200
    assert client.get("/v1/models/" + "x" * 100).status_code == 404
    assert client.get("/openapi.json").status_code == 200
    after = read()
    grown = {key: value - before.get(key, 0) for key, value in after.items()}
    assert grown["resnet_tpu_requests_total", "200", "/v1/models/{name}:classify"] == 1
    assert grown["resnet_tpu_requests_total", "404", "/v1/models/{name}"] == 1
    assert grown["resnet_tpu_requests_total", "200", "/openapi.json"] == 1
    assert grown["resnet_tpu_batch_images_sum", "flowers"] == 3
    assert grown["resnet_tpu_stage_seconds_count", "flowers", "decode"] == 3
    assert grown["resnet_tpu_stage_seconds_count", "flowers", "queue"] == 3
    runs = grown["resnet_tpu_stage_seconds_count", "flowers", "run"]
    assert 1 <= runs == grown["resnet_tpu_batch_images_count", "flowers"] <= 3
    assert after["resnet_tpu_queue_images", "flowers"] == 0
    assert after["resnet_tpu_reloads_total", "flowers", "loaded"] == 0
    assert after["resnet_tpu_reloads_total", "flowers", "refused"] == 0
    assert after["resnet_tpu_connections",] >= 1
    assert after["process_resident_memory_bytes",] > 1e6


def test_the_schema_names_every_route_and_its_errors(client: httpx.Client) -> None:
    schema = client.get("/openapi.json").json()
    paths = schema["paths"]
    assert set(paths) == {
        *(f"/v1/models/{{name}}{version}{what}" for version in ("", "/versions/{version}")
          for what in ("", "/metadata", ":predict", ":classify")),
        "/v1/models", "/health", "/health/ready", "/health/live", "/metrics",
    }  # fmt: skip
    for path in ("/v1/models/{name}:predict", "/v1/models/{name}/versions/{version}:classify"):
        route = paths[path]["post"]
        assert {"200", "400", "404", "408", "413", "503", "504"} <= set(route["responses"])
        assert route["requestBody"]["content"]
        assert route["parameters"][0]["name"] == "name"
    named = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(schema)))
    assert named == set(schema["components"]["schemas"])


class Outside(html.parser.HTMLParser):
    """Collects the addresses in a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called for every tag."""
        assert tag not in ("script", "style")
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_of_the_schema_needs_nothing_from_outside(client: httpx.Client) -> None:
    answer = client.get("/docs")
    page = Outside()
    page.feed(answer.text)
    assert page.links
    assert {link[1:] for link in page.links if link.startswith("#")} == set(re.findall(r' id="(\w+)"', answer.text))
    for link in page.links:
        assert client.get(f"/{link}").status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "POST /v1/models/{name}:predict" in answer.text


def test_a_network_that_fails_is_an_internal_error_and_no_more(export_dir: Path, images: list[bytes]) -> None:
    def fail(_: np.ndarray) -> np.ndarray:
        raise RuntimeError("our own affair")

    async def ask(loader: Loader) -> None:
        models = load_models([str(export_dir)], loader)
        flowers = models["flowers"]
        metrics = loader.metrics.of_model("flowers")
        broken = Batcher(fail, decoders=loader.decoders, metrics=metrics, max_batch_size=2, max_wait=0, max_queue=9)
        flowers.current, sound = dataclasses.replace(flowers.current, batcher=broken), flowers.current
        app = httpx.ASGITransport(make_app(models, loader, Readiness()), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=app, base_url="http://server") as client:
            answer = await client.post("/v1/models/flowers:classify", files={"images": images[0]})
            assert (answer.status_code, list(answer.json())) == (500, ["error"])
            assert "affair" not in answer.text
            flowers.current = sound
            answer = await client.post("/v1/models/flowers:classify", files={"images": images[0]})
            assert answer.status_code == 200
        codes = {'code="500"', 'code="200"'}
        assert codes <= set(re.findall(r'code="\d+"', loader.metrics.text().decode()))

    with ThreadPoolExecutor(1) as decoders:
        asyncio.run(ask(Loader(ServeOptions(), decoders, Metrics())))


def test_the_work_for_a_request_that_is_out_of_time_is_dropped(export_dir: Path, images: list[bytes]) -> None:
    may_end = threading.Event()

    def block(pixels: np.ndarray) -> np.ndarray:
        may_end.wait(60)
        return np.zeros((len(pixels), 5), np.float32)

    async def ask(loader: Loader) -> None:
        models = load_models([str(export_dir)], loader)
        flowers = models["flowers"]
        metrics = loader.metrics.of_model("flowers")
        batcher = Batcher(block, decoders=loader.decoders, metrics=metrics, max_batch_size=1, max_wait=0, max_queue=9)
        flowers.current = dataclasses.replace(flowers.current, batcher=batcher)
        app = httpx.ASGITransport(make_app(models, loader, Readiness()))
        async with httpx.AsyncClient(transport=app, base_url="http://server") as client:
            files = [("images", image) for image in images[:3]]
            answer = await client.post("/v1/models/flowers:classify", files=files)
            assert answer.status_code == 504
        async with asyncio.timeout(20):
            while batcher.queue_length:
                await asyncio.sleep(0.01)

    with ThreadPoolExecutor(1) as decoders:
        try:
            asyncio.run(ask(Loader(ServeOptions(request_timeout=0.5), decoders, Metrics())))
        finally:
            may_end.set()


def test_probabilities_that_are_no_numbers_are_never_answered(export_dir: Path, images: list[bytes]) -> None:
    """The answer is a 500 that names the network; another image in the same batch is still answered."""

    def overflow(pixels: np.ndarray) -> np.ndarray:
        found = np.full((len(pixels), 5), 0.2, np.float32)
        found[0, 3] = np.nan
        return found

    async def ask(loader: Loader) -> None:
        models = load_models([str(export_dir)], loader)
        flowers = models["flowers"]
        metrics = loader.metrics.of_model("flowers")
        batcher = Batcher(
            overflow, decoders=loader.decoders, metrics=metrics, max_batch_size=2, max_wait=9, max_queue=9
        )
        flowers.current = dataclasses.replace(flowers.current, batcher=batcher)
        app = httpx.ASGITransport(make_app(models, loader, Readiness()), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=app, base_url="http://server") as client:
            version = flowers.current.bundle.version
            expected = f"Image 0: flowers version {version}, step 3, gives logits that are not finite."
            both = {"instances": [{"b64": base64.b64encode(image).decode()} for image in images[:2]]}
            answer = await client.post("/v1/models/flowers:predict", json=both)
            assert (answer.status_code, list(answer.json())) == (500, ["error"])
            assert answer.json()["error"].startswith(expected)
            answer = await client.post("/v1/models/flowers:classify", files=[("images", image) for image in images[:2]])
            assert answer.status_code == 200
            first, second = answer.json()["predictions"]
            assert "not finite" in first["error"] and "classes" not in first
            assert second["classes"][0]["probability"] == pytest.approx(0.2)

    with ThreadPoolExecutor(1) as decoders:
        asyncio.run(ask(Loader(ServeOptions(), decoders, Metrics())))


@pytest.mark.parametrize("sizes", ["", "2"])
def test_xla_answers_as_onnx_runtime_with_padded_batches(
    export_dir: Path, images: list[bytes], expected: np.ndarray, sizes: str
) -> None:
    options = ServeOptions(form="stablehlo", max_batch_size=2, inference_batch_sizes=sizes)

    async def ask(loader: Loader) -> list[np.ndarray]:
        version = load_models([str(export_dir)], loader)["flowers"].current
        alone = await asyncio.gather(*version.submit(images[:1]))
        return alone + await asyncio.gather(*version.submit(images[1:]))

    with ThreadPoolExecutor(1) as decoders:
        found = asyncio.run(ask(Loader(options, decoders, Metrics())))
    np.testing.assert_allclose(softmax(np.stack(found)), expected, rtol=0, atol=1e-5)


def test_batch_sizes_of_xla() -> None:
    assert ServeOptions(max_batch_size=1).batch_sizes() == [1]
    assert ServeOptions(max_batch_size=24).batch_sizes() == [1, 2, 4, 8, 16, 24]
    assert ServeOptions(max_batch_size=32).batch_sizes() == [1, 2, 4, 8, 16, 32]
    assert ServeOptions(inference_batch_sizes="32,1,8").batch_sizes() == [1, 8, 32]
    for wrong in ("1,8", "0,32", "a,32", "64"):
        with pytest.raises(UserError, match="with max_batch_size, 32, as the largest"):
            ServeOptions(inference_batch_sizes=wrong)
