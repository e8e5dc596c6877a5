"""The routes of the server."""

import contextlib
import importlib.resources
import mimetypes
from collections.abc import AsyncIterator, Mapping
from typing import Annotated

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from resnet_tpu import __version__
from resnet_tpu.serving.server import openapi
from resnet_tpu.serving.server.gate import Gate, Readiness
from resnet_tpu.serving.server.json_answer import json_response
from resnet_tpu.serving.server.metrics import Metrics
from resnet_tpu.serving.server.models import Loader, Model, reloading
from resnet_tpu.serving.server.predict_api import model_metadata, model_status
from resnet_tpu.serving.server.refusal import Refusal
from resnet_tpu.serving.server.service import Service

_PAGE_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class _Part(StringConvertor):
    """A segment of a path up to the verb: `flowers` of `flowers:predict`."""

    regex = "[^/:]+"


register_url_convertor("part", _Part())

TopK = Annotated[int, Query(ge=1, description="Classes to return for each image.")]


def make_app(models: Mapping[str, Model], loader: Loader, readiness: Readiness) -> FastAPI:
    """The server as an ASGI application. It is ready when it starts; the caller may change `readiness` later."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with reloading([*models.values()], loader):
            readiness.is_ready = True
            yield

    app = FastAPI(
        title="resnet_tpu",
        version=__version__,
        description="Names the classes of images. The routes under /v1/models are those of TensorFlow Serving. "
        "Every GET route also takes HEAD.",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # a route like the others, so that it is counted like them
        redirect_slashes=False,
        responses=openapi.ANY_ERROR,
        generate_unique_id_function=lambda route: route.name,  # the names of functions in generated clients
        lifespan=lifespan,
    )
    service = Service(models, loader.options)
    _add_predictions(app, service)
    _add_models(app, service)
    _add_operation(app, loader.metrics, readiness)
    _add_pages(app)
    _add_errors(app)
    app.add_middleware(Gate, metrics=loader.metrics, readiness=readiness, access_log=loader.options.access_log)
    return app


def _add_predictions(app: FastAPI, service: Service) -> None:
    predictions = openapi.image_route("application/json", "PredictRequest", "PredictAnswer")
    classes = openapi.image_route("multipart/form-data", "ClassifyRequest", "ClassifyAnswer")

    @app.post("/v1/models/{name:part}:predict", **predictions)
    async def predict(request: Request, name: str) -> Response:
        """Probabilities for image files in base64, as in TensorFlow Serving's Predict API."""
        return await service.predict(request, name)

    @app.post("/v1/models/{name:part}/versions/{version:part}:predict", **predictions)
    async def predict_version(request: Request, name: str, version: int) -> Response:
        """The same for a given version."""
        return await service.predict(request, name, version)

    @app.post("/v1/models/{name:part}:classify", **classes)
    async def classify(request: Request, name: str, top_k: TopK = 5) -> Response:
        """The most probable classes, by name, of uploaded files; a file that is not an image gets an error instead."""
        return await service.classify(request, name, top_k=top_k)

    @app.post("/v1/models/{name:part}/versions/{version:part}:classify", **classes)
    async def classify_version(request: Request, name: str, version: int, top_k: TopK = 5) -> Response:
        """The same for a given version."""
        return await service.classify(request, name, version, top_k=top_k)


def _add_models(app: FastAPI, service: Service) -> None:
    states = openapi.answers("The version that is served.", "Status", 400, 404)
    described = openapi.answers("Signatures and model card.", "Metadata", 400, 404)

    def describe(name: str, version: int | None = None) -> Response:
        served = service.find(name, version)
        bundle = served.bundle
        signatures = model_metadata(name, bundle.version, len(bundle.class_names), bundle.image_size)
        return json_response({**signatures, "model_card": served.card(name)})

    @app.get("/v1/models", responses=openapi.answers("The models.", "Models"))
    async def list_models() -> Response:
        """The models by name; how large a request may be, and how long it may take."""
        found = [{"name": name, "version": model.current.bundle.version} for name, model in service.models.items()]
        options = service.options
        limits = {
            "body_bytes": options.max_body,
            "images": options.max_images_per_request,
            "request_seconds": options.request_timeout,
        }
        return json_response({"models": found, "limits": limits})

    @app.get("/v1/models/{name:part}", responses=states)
    async def status(name: str) -> Response:
        """The version that is served, as in TensorFlow Serving's Model status API."""
        return json_response(model_status(service.find(name, None).bundle.version))

    @app.get("/v1/models/{name:part}/versions/{version:part}", responses=states)
    async def status_version(name: str, version: int) -> Response:
        """The same for a given version."""
        return json_response(model_status(service.find(name, version).bundle.version))

    @app.get("/v1/models/{name:part}/metadata", responses=described)
    async def metadata(name: str) -> Response:
        """Signatures as in TensorFlow Serving's Model Metadata API, and the model card."""
        return describe(name)

    @app.get("/v1/models/{name:part}/versions/{version:part}/metadata", responses=described)
    async def metadata_version(name: str, version: int) -> Response:
        """The same for a given version."""
        return describe(name, version)


def _add_operation(app: FastAPI, measured: Metrics, readiness: Readiness) -> None:
    answers = openapi.answers("It answers.", "Health", 503, refused="Health")

    @app.get("/health", responses=answers)
    async def health() -> Response:
        """200 when requests are welcome, 503 as soon as the server begins to stop."""
        return json_response({"live": True, "ready": readiness.is_ready}, 200 if readiness.is_ready else 503)

    @app.get("/health/ready", responses=answers)
    async def health_ready() -> Response:
        """The same, for load balancers."""
        return await health()

    @app.get("/health/live", responses=openapi.answers("It answers.", "Health"))
    async def health_live() -> Response:
        """200 as long as the process answers."""
        return json_response({"live": True, "ready": readiness.is_ready})

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Counters and histograms in Prometheus's format."""
        return Response(measured.text(), media_type="text/plain; version=0.0.4")


def _add_pages(app: FastAPI) -> None:
    folder = importlib.resources.files("resnet_tpu.serving.server") / "page"
    files = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return HTMLResponse(files["index.html"], headers=_PAGE_HEADERS)

    @app.get("/page/{name}", include_in_schema=False)
    async def page_file(name: str) -> Response:
        if name not in files:
            raise HTTPException(404)
        return Response(files[name], media_type=mimetypes.guess_type(name)[0], headers=_PAGE_HEADERS)

    @app.get("/openapi.json", include_in_schema=False)
    async def schema() -> Response:
        return json_response(openapi.schema_of(app))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(openapi.docs_page(openapi.schema_of(app)), headers=_PAGE_HEADERS)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(Refusal)
    async def refused(_: Request, error: Refusal) -> Response:
        return json_response({"error": error.message}, error.status, error.headers)

    @app.exception_handler(HTTPException)
    async def no_route(request: Request, error: HTTPException) -> Response:
        message = f"Malformed request: {request.method} {request.url.path}: {error.detail}."
        headers = {**(error.headers or {})}
        allowed = headers.get("Allow", "").split(", ")
        if "GET" in allowed and "HEAD" not in allowed:
            headers["Allow"] += ", HEAD"  # the gate answers it
        return json_response({"error": message}, error.status_code, headers)

    @app.exception_handler(RequestValidationError)
    async def no_such_value(_: Request, error: RequestValidationError) -> Response:
        found = "; ".join(f"{problem['loc'][-1]}: {problem['msg']}" for problem in error.errors())
        return json_response({"error": f"Malformed request: {found}."}, 400)

    @app.exception_handler(Exception)
    async def our_fault(_: Request, __: Exception) -> Response:  # the server logs the traceback
        return json_response({"error": "Internal error. The log of the server says more."}, 500)
