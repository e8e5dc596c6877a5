"""Answers requests: reads the body, runs the images through the model, and keeps the limits of the options."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from resnet_tpu.serving.export.classifier import softmax
from resnet_tpu.serving.server.body import Pending, read_body, read_files
from resnet_tpu.serving.server.json_answer import to_json
from resnet_tpu.serving.server.models import LoadedBundle, Model
from resnet_tpu.serving.server.options import ServeOptions
from resnet_tpu.serving.server.predict_api import parse_request, predict_answer
from resnet_tpu.serving.server.refusal import CLIENT_GONE, Refusal

T = TypeVar("T")

_LARGE = 1_000_000
"""Bodies of more bytes are processed in a thread, off the event loop."""

_CLASS_BYTES = 50
"""Approximate bytes of a class in an answer, with its name and probability."""


class Service:
    """The models, and how requests for them are answered."""

    def __init__(self, models: Mapping[str, Model], options: ServeOptions) -> None:
        self.models, self.options = models, options
        self._pending = Pending(options.max_pending)

    def find(self, name: str, version: int | None) -> LoadedBundle:
        """The version served under `name`; if `version` is given, it must be that one. Raises Refusal (404)."""
        model = self.models.get(name)
        current = model.current if model else None  # read once: a newer version may take over at any time
        if current is None or version not in (None, current.bundle.version):
            wanted = f"Latest({name})" if version is None else f"Specific({name}, {version})"
            served = ", ".join(f"{name} {model.current.bundle.version}" for name, model in self.models.items())
            raise Refusal(404, f"Servable not found for request: {wanted}. Served: {served}.")
        return current

    async def predict(self, request: Request, name: str, version: int | None = None) -> Response:
        """Answers a `:predict` request. Raises Refusal."""
        served = self.find(name, version)
        deadline = self._deadline()
        with self._pending.share() as share:
            body = await self._received(read_body(request, self.options.max_body, share), deadline)
            return await self._answer_by(request, self._predict(request, served, body), deadline)

    async def classify(self, request: Request, name: str, version: int | None = None, *, top_k: int) -> Response:
        """Answers a `:classify` request. Raises Refusal."""
        options = self.options
        served = self.find(name, version)
        deadline = self._deadline()
        with self._pending.share() as share:
            reading = read_files(request, options.max_body, options.max_images_per_request, share)
            files = await self._received(reading, deadline)
            start = time.perf_counter()  # excludes the time that the client takes to send its photos
            return await self._answer_by(request, _classify(request, name, served, files, top_k, start), deadline)

    def _deadline(self) -> float:
        """The time by which a request that begins now must be answered, in seconds of the event loop's clock."""
        return asyncio.get_running_loop().time() + self.options.request_timeout

    async def _received(self, reading: Awaitable[T], deadline: float) -> T:
        """The result of `reading`. Raises Refusal if it takes too long or the client disconnects."""
        try:
            async with asyncio.timeout_at(deadline):
                return await reading
        except TimeoutError:
            raise Refusal(408, f"Request: got no complete body in {self.options.request_timeout:g} s.") from None
        except ClientDisconnect:
            raise Refusal(CLIENT_GONE, "The client is gone.") from None

    async def _answer_by(self, request: Request, working: Coroutine[Any, Any, Response], deadline: float) -> Response:
        """The answer of `working`, cancelled at the deadline or when the client disconnects. Raises Refusal."""
        work = asyncio.ensure_future(working)
        gone = asyncio.ensure_future(_wait_until_gone(request))
        try:
            left = deadline - asyncio.get_running_loop().time()
            await asyncio.wait((work, gone), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            if gone.done():
                raise Refusal(CLIENT_GONE, "The client is gone.")
            raise Refusal(504, f"Request: got no answer in {self.options.request_timeout:g} s.")
        finally:
            work.cancel()
            gone.cancel()

    async def _predict(self, request: Request, served: LoadedBundle, body: bytes) -> Response:
        most, image_size = self.options.max_images_per_request, served.bundle.image_size
        parsed = await _off_loop_if_large(len(body), lambda: parse_request(body, most, image_size))
        results = await _logits_of(request, served, parsed.images)
        for index, result in enumerate(results):
            if isinstance(result, Refusal):
                raise Refusal(result.status, result.message.replace("Image", f"Image {index}", 1))
        rows = [result for result in results if isinstance(result, np.ndarray)]
        num_bytes = 20 * len(rows) * len(rows[0])
        return await _off_loop_if_large(num_bytes, lambda: predict_answer(np.stack(rows), parsed))


async def _classify(
    request: Request, model: str, served: LoadedBundle, files: Sequence[tuple[str, bytes]], top_k: int, start: float
) -> Response:
    results = await _logits_of(request, served, [content for _, content in files])
    num_bytes = _CLASS_BYTES * len(results) * min(top_k, len(served.bundle.class_names))
    names = [name for name, _ in files]
    return await _off_loop_if_large(num_bytes, lambda: _classify_answer(model, served, names, results, top_k, start))


def _classify_answer(
    model: str,
    served: LoadedBundle,
    names: Sequence[str],
    results: Sequence[np.ndarray | Refusal],
    top_k: int,
    start: float,
) -> Response:
    """The answer to a `:classify` request, an error if all images are refused. start: from `time.perf_counter`."""
    refused = [result for result in results if isinstance(result, Refusal)]
    is_refused = len(refused) == len(results)
    head: dict[str, Any] = {"error": refused[0].message} if is_refused else {}
    # one image at a time: no other thread can run while a value is encoded
    rows = [
        to_json({"name": name, **_describe(result, served.bundle.class_names, top_k)})
        for name, result in zip(names, results, strict=True)
    ]
    ms = round((time.perf_counter() - start) * 1000, 2)
    head |= {"model": model, "version": served.bundle.version, "ms": ms}
    body = b'%b,"predictions":[%b]}' % (to_json(head)[:-1], b",".join(rows))
    return Response(body, refused[0].status if is_refused else 200, media_type="application/json")


async def _logits_of(
    request: Request, served: LoadedBundle, images: Sequence[bytes] | Sequence[np.ndarray]
) -> list[np.ndarray | Refusal]:
    """The logits [classes] of each image, or the reason why there are none. Raises Refusal (503)."""
    request.state.num_images = len(images)
    results = await asyncio.gather(*served.submit(images), return_exceptions=True)
    for result in results:
        if not isinstance(result, np.ndarray | Refusal):
            raise result
    return [_refuse_unless_finite(result, served) for result in results if isinstance(result, np.ndarray | Refusal)]


def _refuse_unless_finite(result: np.ndarray | Refusal, served: LoadedBundle) -> np.ndarray | Refusal:
    """The result, or a refusal instead of logits that are not finite."""
    if isinstance(result, Refusal) or np.isfinite(result).all():
        return result
    bundle = served.bundle
    got = f"{bundle.name} version {bundle.version}, step {bundle.description.get('step')}, gives logits"
    return Refusal(500, f"Image: {got} that are not finite. Serve a bundle of another checkpoint.")


def _describe(result: np.ndarray | Refusal, class_names: Sequence[str], top_k: int) -> dict[str, Any]:
    if isinstance(result, Refusal):
        return {"error": result.message}
    best = np.argsort(-result, kind="stable")[:top_k]
    pairs = zip(best.tolist(), softmax(result)[best].tolist(), strict=True)
    return {"classes": [{"class": class_names[index], "probability": probability} for index, probability in pairs]}


async def _off_loop_if_large(num_bytes: int, function: Callable[[], T]) -> T:
    """Calls the function, in a thread if it has many bytes to process."""
    return await asyncio.to_thread(function) if num_bytes > _LARGE else function()


async def _wait_until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
