"""From a request to its answer: the body, the images, the model, within the bounds of the options."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from resnet_tpu.serving.export.bundle import softmax
from resnet_tpu.serving.server.body import Pending, Share, read_body, read_files
from resnet_tpu.serving.server.models import Model, Version
from resnet_tpu.serving.server.options import ServeOptions
from resnet_tpu.serving.server.predict_api import parse_request, predict_answer, to_json
from resnet_tpu.serving.server.refusal import CLIENT_GONE, Refusal

T = TypeVar("T")

_LARGE = 1_000_000
"""Bytes above which a body is processed in a thread, off the event loop."""

_CLASS_BYTES = 50
"""About what a class takes in an answer, with its name and its probability."""


class Service:
    """The models, and how requests for them are answered."""

    def __init__(self, models: Mapping[str, Model], options: ServeOptions) -> None:
        self.models, self.options = models, options
        self._pending = Pending(options.max_pending)

    def find(self, name: str, version: int | None) -> tuple[Model, Version]:
        """The model and its version; the one that is served when `version` is None. Raises Refusal (404)."""
        model = self.models.get(name)
        current = model.current if model else None  # once: a newer one may take over at any time
        if model is None or current is None or version not in (None, current.bundle.version):
            wanted = f"Latest({name})" if version is None else f"Specific({name}, {version})"
            served = ", ".join(f"{name} {model.current.bundle.version}" for name, model in self.models.items())
            raise Refusal(404, f"Servable not found for request: {wanted}. Served: {served}.")
        return model, current

    async def predict(self, request: Request, name: str, version: int | None = None) -> Response:
        """Answers a `:predict` request. Raises Refusal."""
        _, found = self.find(name, version)

        async def work(body: bytes) -> Response:
            max_images = self.options.max_images_per_request
            parsed = await _apart(len(body), lambda: parse_request(body, max_images, found.bundle.image_size))
            results = await _classify(request, found, parsed.images)
            for index, result in enumerate(results):
                if isinstance(result, Refusal):
                    raise Refusal(result.status, result.message.replace("Image", f"Image {index}", 1))
            rows = [result for result in results if isinstance(result, np.ndarray)]
            num_bytes = 20 * len(rows) * len(rows[0])
            return await _apart(num_bytes, lambda: predict_answer(np.stack(rows), parsed))

        return await self._bounded(request, lambda share: read_body(request, self.options.max_body, share), work)

    async def classify(self, request: Request, name: str, version: int | None = None, *, top_k: int) -> Response:
        """Answers a `:classify` request. Raises Refusal."""
        start = time.perf_counter()
        model, found = self.find(name, version)
        options, class_names = self.options, found.bundle.class_names

        async def read(share: Share) -> list[tuple[str, bytes]]:
            return await read_files(request, options.max_body, options.max_images_per_request, share)

        async def work(files: list[tuple[str, bytes]]) -> Response:
            results = await _classify(request, found, [content for _, content in files])

            def answer() -> Response:
                refused = [result for result in results if isinstance(result, Refusal)]
                is_refused = len(refused) == len(results)
                head: dict[str, Any] = {"error": refused[0].message} if is_refused else {}
                # one image at a time: while the whole is made into JSON, no other thread would run
                rows = [
                    to_json({"name": name, **_describe(result, class_names, top_k)})
                    for (name, _), result in zip(files, results, strict=True)
                ]
                ms = round((time.perf_counter() - start) * 1000, 2)
                head |= {"model": model.name, "version": found.bundle.version, "ms": ms}
                body = b'%b,"predictions":[%b]}' % (to_json(head)[:-1], b",".join(rows))
                return Response(body, refused[0].status if is_refused else 200, media_type="application/json")

            return await _apart(_CLASS_BYTES * len(results) * min(top_k, len(class_names)), answer)

        return await self._bounded(request, read, work)

    async def _bounded(
        self,
        request: Request,
        read: Callable[[Share], Awaitable[T]],
        work: Callable[[T], Coroutine[Any, Any, Response]],
    ) -> Response:
        """The result of `work` on what `read` gives, within request_timeout and while the client stays connected."""
        seconds = self.options.request_timeout
        deadline = asyncio.get_running_loop().time() + seconds
        with self._pending.share() as share:
            try:
                async with asyncio.timeout_at(deadline):
                    given = await read(share)
            except TimeoutError:
                raise Refusal(408, f"Request: got no complete body in {seconds:g} s.") from None
            except ClientDisconnect:
                raise Refusal(CLIENT_GONE, "The client is gone.") from None
            working = asyncio.ensure_future(work(given))
            gone = asyncio.ensure_future(_wait_until_gone(request))
            try:
                left = deadline - asyncio.get_running_loop().time()
                await asyncio.wait((working, gone), timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if working.done():
                    return working.result()
                if gone.done():
                    raise Refusal(CLIENT_GONE, "The client is gone.")
                raise Refusal(504, f"Request: got no answer in {seconds:g} s.")
            finally:
                working.cancel()
                gone.cancel()


async def _classify(
    request: Request, version: Version, images: Sequence[bytes] | Sequence[np.ndarray]
) -> list[np.ndarray | Refusal]:
    """The logits [classes] of each image, or why there are none. Raises Refusal (503)."""
    request.state.num_images = len(images)
    results = await asyncio.gather(*version.submit(images), return_exceptions=True)
    for result in results:
        if not isinstance(result, np.ndarray | Refusal):
            raise result
    return [_sound(result, version) for result in results if isinstance(result, np.ndarray | Refusal)]


def _sound(result: np.ndarray | Refusal, version: Version) -> np.ndarray | Refusal:
    """The result, or a refusal in place of logits that are not finite."""
    if isinstance(result, Refusal) or np.isfinite(result).all():
        return result
    bundle = version.bundle
    got = f"{bundle.name} version {bundle.version}, step {bundle.description.get('step')}, gives logits"
    return Refusal(500, f"Image: {got} that are not finite. Serve a bundle of another checkpoint.")


def _describe(result: np.ndarray | Refusal, class_names: Sequence[str], top_k: int) -> dict[str, Any]:
    if isinstance(result, Refusal):
        return {"error": result.message}
    best = np.argsort(-result, kind="stable")[:top_k]
    pairs = zip(best.tolist(), softmax(result)[best].tolist(), strict=True)
    return {"classes": [{"class": class_names[index], "probability": probability} for index, probability in pairs]}


async def _apart(num_bytes: int, function: Callable[[], T]) -> T:
    """Calls the function, in a thread if there are many bytes to process."""
    return await asyncio.to_thread(function) if num_bytes > _LARGE else function()


async def _wait_until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
