"""Reads the bodies of requests as streams, and refuses a body as soon as it is too large."""

import contextlib
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from resnet_tpu.serving.server.refusal import Refusal

_CHARSETS = {b"utf-8", b"us-ascii"}
"""Charsets accepted for names and fields. Some other codecs of Python take minutes for a megabyte."""


class Pending:
    """Counts the bytes of requests that the server holds in memory."""

    def __init__(self, limit: int) -> None:
        self.limit, self.held = limit, 0

    @contextlib.contextmanager
    def share(self) -> Iterator["Share"]:
        """The share of one request. It is given back at the end of the block."""
        share = Share(self)
        try:
            yield share
        finally:
            self.held -= share.held


@dataclass
class Share:
    """Counts the bytes that one request holds."""

    pending: Pending
    held: int = 0

    def take(self, count: int) -> None:
        """Adds `count` bytes. Raises Refusal (503) if the server then holds too many."""
        self.held += count
        self.pending.held += count
        if self.pending.held > self.pending.limit:
            raise Refusal(503, f"Server: got {self.pending.held} bytes pending, expected at most {self.pending.limit}.")


async def read_body(request: Request, max_bytes: int, share: Share) -> bytes:
    """The whole body. Raises ClientDisconnect and Refusal (413, 415, 503), if possible before the body is read."""
    body = bytearray()
    async for chunk in _stream(request, max_bytes, share):
        body += chunk
    return bytes(body)


async def read_files(request: Request, max_bytes: int, max_files: int, share: Share) -> list[tuple[str, bytes]]:
    """(name, content) of the files in a multipart body, whatever the names of its fields.

    Raises ClientDisconnect, and Refusal (400, 413, 415, 503), also for a part that may be a photo without a file name:
    it would otherwise be ignored.
    """
    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("multipart/form-data"):
        raise Refusal(415, f"Content-Type: got {kind!r:.100}, expected multipart/form-data. JSON goes to :predict.")
    charset = parse_options_header(kind)[1].get(b"charset", b"utf-8")
    if charset.lower() not in _CHARSETS:
        raise Refusal(415, f"Content-Type: got charset {charset!r:.100}, expected utf-8.")
    parser = _InMemory(request.headers, _stream(request, max_bytes, share), max_files=max_files, max_fields=100)
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        reason = getattr(error, "message", "") or type(error).__name__
        if "aximum" in reason:  # "Maximum ...": beyond a limit of the parser, but well-formed
            raise Refusal(400, f"Request: got too much in one body. {reason}") from None
        raise Refusal(400, f"Request: got a malformed body ({reason}), expected multipart/form-data.") from None
    uploads = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
    texts = {name for name, value in form.multi_items() if not isinstance(value, UploadFile)}
    if "top_k" in texts:
        raise Refusal(400, "top_k: got a field of the form, expected it in the address: ...:classify?top_k=3.")
    names = {name for name, value in form.multi_items() if isinstance(value, UploadFile)}
    files = [(_unescaped(upload.filename or ""), await upload.read()) for upload in uploads]
    await form.close()
    expected = "one or more in the fields of a multipart/form-data body, each with a filename="
    if not files:
        raise Refusal(400, f"Request: got no file, expected {expected}.")
    if parser.has_unnamed or texts & {*names, "images"}:
        raise Refusal(400, f"Request: got a part without a file's name, expected {expected}.")
    return files


def _unescaped(filename: str) -> str:
    """A file name without the percent-encoding that clients use for three characters (WHATWG, multipart/form-data)."""
    return filename.replace("%22", '"').replace("%0D", "\r").replace("%0A", "\n")


class _InMemory(MultiPartParser):
    """Keeps files in memory, as bodies are limited. Refuses a body that ends within a part, which would be ignored."""

    spool_max_size = 1 << 62
    is_within_part = False
    has_unnamed = False  # whether a part without filename= has an image's type, or a name as filename*=

    def on_part_begin(self) -> None:
        self.is_within_part = True
        super().on_part_begin()

    def on_part_end(self) -> None:
        self.is_within_part = False
        super().on_part_end()

    def on_headers_finished(self) -> None:
        super().on_headers_finished()
        if self._current_part.file is None:
            headers = dict(self._current_part.item_headers)
            is_named = b"filename*" in headers[b"content-disposition"].lower()
            kind = headers.get(b"content-type", b"").lower()
            self.has_unnamed |= is_named or kind.startswith((b"image/", b"application/octet-stream"))

    async def parse(self) -> FormData:
        form = await super().parse()
        if self.is_within_part:
            await form.close()
            raise MultiPartException("it ends within a part, without the boundary that closes it")
        return form


async def _stream(request: Request, max_bytes: int, share: Share) -> AsyncGenerator[bytes, None]:
    """The body in chunks. Raises Refusal (413, 415, 503)."""
    if (encoding := request.headers.get("content-encoding", "").lower()) not in ("", "identity"):
        raise Refusal(415, f"Content-Encoding: got {encoding!r:.100}, expected none.")
    try:
        announced = int(request.headers.get("content-length", "0"))
    except ValueError:
        announced = 0
    count = 0
    if announced <= max_bytes:
        async for chunk in request.stream():
            count += len(chunk)
            if count > max_bytes:
                break
            share.take(len(chunk))
            yield chunk
        else:
            return
    raise Refusal(413, f"Request: got a body of {max(announced, count)} bytes or more, expected at most {max_bytes}.")
