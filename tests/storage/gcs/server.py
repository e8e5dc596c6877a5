"""A small in-memory Google Cloud Storage: the part of its JSON API that the real clients use, and faults on demand.

Run as a program, it prints its port. `POST /_control` sets attributes of `Faults` and `Bucket.is_gone`, `GET /_stats`
returns counts of requests, `GET /_objects` the names of all objects.
"""

import argparse
import base64
import hashlib
import json
import random
import re
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import google_crc32c

BUCKET = "bucket"
TOKEN = "a-token"


class HttpError(Exception):
    """An error response."""

    def __init__(self, code: int, message: str) -> None:
        self.code, self.message = code, message


class CutError(Exception):
    """The connection is closed without a reply."""


@dataclass
class Faults:
    """Faults: some for a share of the requests, others for all of them."""

    seed: int = 0
    busy: float = 0.0  # 503
    limited: float = 0.0  # 429
    slow: float = 0.0  # answered after slow_secs
    slow_secs: float = 0.2
    cut_body: float = 0.0  # the connection is closed in the middle of the reply
    cut_after: float = 0.0  # the work is done, but the connection is closed without a reply
    deny: str = ""  # 403 for "read", "write", "delete", or "bucket": requests about the bucket itself
    needs_token: bool = False  # 401 without the token of a service account
    gone_after: str = ""  # the bucket vanishes when an object whose name matches is stored


@dataclass
class Object:
    """One object."""

    data: bytes
    generation: int
    created: float
    content_type: str
    metadata: dict[str, str]

    def resource(self, bucket: str, name: str) -> dict[str, Any]:
        """The resource that the API returns for it."""
        stamp = (
            time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(self.created)) + f".{int(self.created * 1000) % 1000:03d}Z"
        )
        return {
            "kind": "storage#object", "id": f"{bucket}/{name}/{self.generation}", "name": name, "bucket": bucket,
            "generation": str(self.generation), "metageneration": "1", "contentType": self.content_type,
            "timeCreated": stamp, "updated": stamp, "storageClass": "STANDARD", "size": str(len(self.data)),
            "md5Hash": base64.b64encode(hashlib.md5(self.data, usedforsecurity=False).digest()).decode(),
            "crc32c": base64.b64encode(google_crc32c.value(self.data).to_bytes(4, "big")).decode(),
            "etag": f"E{self.generation}", "metadata": self.metadata,
        }  # fmt: skip


@dataclass
class Upload:
    """A resumable upload in progress; nothing of it is visible yet."""

    name: str
    content_type: str
    query: dict[str, str]
    data: bytearray = field(default_factory=bytearray)
    done: dict[str, Any] | None = None


@dataclass
class Store:
    """The server's state."""

    objects: dict[str, Object] = field(default_factory=dict)
    uploads: dict[str, Upload] = field(default_factory=dict)
    is_gone: bool = False
    faults: Faults = field(default_factory=Faults)
    counts: dict[str, int] = field(default_factory=dict)
    sent_bytes: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    generation: int = 1000

    def control(self, values: dict[str, Any]) -> None:
        """Sets faults and resets the counters."""
        with self.lock:
            self.is_gone = values.pop("is_gone", False)
            for name in values.pop("damage", []):
                data = bytearray(self.objects[name].data)
                data[len(data) // 2] ^= 0xFF
                self.put(name, bytes(data), "application/octet-stream", {})
            self.faults = Faults(**values)
            self.rng = random.Random(self.faults.seed)
            self.counts, self.sent_bytes = {}, 0

    def put(self, name: str, data: bytes, content_type: str, query: dict[str, str], **metadata: str) -> dict[str, Any]:
        """Stores a whole object, unless a precondition fails."""
        with self.lock:
            self.check(name, query)
            self.generation += 1
            self.objects[name] = Object(data, self.generation, time.time(), content_type, metadata)
            if self.faults.gone_after and re.search(self.faults.gone_after, name):
                self.is_gone = True
            return self.objects[name].resource(BUCKET, name)

    def check(self, name: str, query: dict[str, str], *, is_read: bool = False) -> None:
        """Checks preconditions on the generation."""
        now = self.objects[name].generation if name in self.objects else 0
        if "ifGenerationMatch" in query and int(query["ifGenerationMatch"]) != now:
            raise HttpError(412, "At least one of the pre-conditions you specified did not hold.")
        if "ifGenerationNotMatch" in query and int(query["ifGenerationNotMatch"]) == now:
            raise HttpError(304 if is_read else 412, "Not modified.")
        if "generation" in query and int(query["generation"]) != now:
            raise HttpError(404, f"No such object: {BUCKET}/{name}")

    def get(self, name: str, query: dict[str, str]) -> Object:
        """An existing object."""
        with self.lock:
            if name not in self.objects:
                raise HttpError(404, f"No such object: {BUCKET}/{name}")
            self.check(name, query, is_read=True)
            return self.objects[name]

    def listing(self, query: dict[str, str]) -> dict[str, Any]:
        """A page of names, with those below a delimiter folded into prefixes."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        start, end = query.get("startOffset", ""), query.get("endOffset", "")
        after, limit = query.get("pageToken", ""), int(query.get("maxResults", 1000))
        items: list[dict[str, Any]] = []
        prefixes: list[str] = []
        last = ""
        with self.lock:
            for name in sorted(self.objects):
                if not name.startswith(prefix) or name < start or (end and name >= end):
                    continue
                rest = name[len(prefix) :]
                folder = prefix + rest.partition(delimiter)[0] + delimiter if delimiter and delimiter in rest else ""
                key = folder or name
                if after and (key <= after or (folder and after.startswith(folder))):
                    continue
                if folder and prefixes[-1:] == [folder]:
                    continue
                if len(items) + len(prefixes) == limit:
                    return {"kind": "storage#objects", "items": items, "prefixes": prefixes, "nextPageToken": last}
                if folder:
                    prefixes.append(folder)
                else:
                    items.append(self.objects[name].resource(BUCKET, name))
                last = key
        return {"kind": "storage#objects", "items": items, "prefixes": prefixes}


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 20
    disable_nagle_algorithm = True
    store: Store

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name in the base class
        """Says nothing."""

    def _handle(self) -> None:
        body = self._body()
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        try:
            if url.path.startswith("/_"):
                return self._json(self._own(url.path, body))
            if url.path == "/token":
                return self._json({"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"})
            reply = self._with_faults(url.path, query, body)
        except HttpError as error:
            text = {"error": {"code": error.code, "message": error.message, "errors": [{"message": error.message}]}}
            return self._json(text, error.code)
        except CutError:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return None
        return reply

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _handle  # noqa: N815

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _own(self, path: str, body: bytes) -> dict[str, Any]:
        if path == "/_control":
            self.store.control(json.loads(body))
        if path == "/_stats":
            return {"requests": self.store.counts, "bytes": self.store.sent_bytes}
        with self.store.lock:
            return {"names": sorted(self.store.objects)}

    def _with_faults(self, path: str, query: dict[str, str], body: bytes) -> None:
        store, faults = self.store, self.store.faults
        with store.lock:
            draw, cut = store.rng.random(), store.rng.random()
            is_slow = store.rng.random() < faults.slow
            kind = self._kind(path, query)
            store.counts[kind] = store.counts.get(kind, 0) + 1
        if is_slow:
            time.sleep(faults.slow_secs)
        if draw < faults.busy:
            raise HttpError(503, "Service unavailable, please try again.")
        if draw < faults.busy + faults.limited:
            raise HttpError(429, "The rate limit for object mutation operations was exceeded.")
        self._check_access(kind)
        self._cut_body = cut < faults.cut_body
        match = re.fullmatch(r"(?:/download|/upload)?/storage/v1/b/([^/]+)(/.*)?", path)
        if not match or unquote(match[1]) != BUCKET or store.is_gone:
            raise HttpError(404, "The specified bucket does not exist.")
        reply = self._answer(match[2] or "", query, body, is_upload=path.startswith("/upload"))
        if faults.cut_body <= cut < faults.cut_body + faults.cut_after:
            raise CutError
        if isinstance(reply, bytes):
            return self._data(reply)
        if isinstance(reply, tuple):
            return self._json(reply[0], reply[1], reply[2])
        return self._json(reply)

    def _kind(self, path: str, query: dict[str, str]) -> str:
        if self.command == "DELETE":
            return "delete"
        if self.command in ("POST", "PUT", "PATCH"):
            return "write"
        if query.get("alt") == "media":
            return "media"
        if path.endswith("/o"):
            return "list"
        return "metadata" if "/o/" in path else "bucket"

    def _check_access(self, kind: str) -> None:
        faults = self.store.faults
        if faults.needs_token and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise HttpError(401, "Anonymous caller does not have storage.objects.get access to the object.")
        is_read = kind not in ("write", "delete")
        if faults.deny and (faults.deny == kind or (faults.deny == "read" and is_read)):
            raise HttpError(403, f"someone@example.com does not have {kind} access to the Cloud Storage object.")

    def _answer(self, rest: str, query: dict[str, str], body: bytes, *, is_upload: bool) -> Any:
        if not rest:
            return {
                "kind": "storage#bucket",
                "name": BUCKET,
                "id": BUCKET,
                "location": "US",
                "storageClass": "STANDARD",
            }
        if is_upload:
            return self._upload(query, body)
        if rest in ("/o", "/o/"):
            return self.store.listing(query)
        if match := re.fullmatch(r"/o/([^/]+)/(rewriteTo|copyTo)/b/[^/]+/o/([^/]+)", rest):
            copy = self._copy(unquote(match[1]), unquote(match[3]), query)
            return copy if match[2] == "copyTo" else {"kind": "storage#rewriteResponse", "done": True, "resource": copy}
        if match := re.fullmatch(r"/o/([^/]+)/moveTo/o/([^/]+)", rest):
            with self.store.lock:
                copy = self._copy(unquote(match[1]), unquote(match[2]), query)
                del self.store.objects[unquote(match[1])]
            return copy
        if match := re.fullmatch(r"/o/([^/]+)/compose", rest):
            with self.store.lock:
                parts = [self.store.get(part["name"], {}).data for part in json.loads(body)["sourceObjects"]]
            return self.store.put(unquote(match[1]), b"".join(parts), "application/octet-stream", query)
        name = unquote(rest.removeprefix("/o/"))
        if self.command == "DELETE":
            with self.store.lock:
                self.store.get(name, query)
                del self.store.objects[name]
            return {}, 204, {}
        found = self.store.get(name, query)
        return found.data if query.get("alt") == "media" else found.resource(BUCKET, name)

    def _copy(self, name: str, target: str, query: dict[str, str]) -> dict[str, Any]:
        found = self.store.get(name, {})
        return self.store.put(target, found.data, found.content_type, query)

    def _upload(self, query: dict[str, str], body: bytes) -> Any:
        if session := query.get("upload_id"):
            return self._continue_upload(session, body)
        kind = query.get("uploadType")
        if kind == "media":
            return self.store.put(query["name"], body, self.headers.get("Content-Type", ""), query)
        if kind == "multipart":
            header = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
            boundary = BytesParser().parsebytes(header).get_param("boundary")
            first, second = body.split(f"--{boundary}".encode())[1:3]
            description = json.loads(_without_header(first))
            return self.store.put(description["name"], _without_header(second), "application/octet-stream", query)
        description = json.loads(body or b"{}")
        name = query.get("name") or description["name"]
        session = f"session-{random.getrandbits(64):x}"
        with self.store.lock:
            self.store.check(name, query)
            content_type = self.headers.get("X-Upload-Content-Type", "application/octet-stream")
            self.store.uploads[session] = Upload(name, content_type, query)
        host = self.headers["Host"]
        place = f"http://{host}/upload/storage/v1/b/{BUCKET}/o?uploadType=resumable&upload_id={session}"
        return {}, 200, {"Location": place}

    def _continue_upload(self, session: str, body: bytes) -> Any:
        with self.store.lock:
            upload = self.store.uploads.get(session)
            if upload is None:
                raise HttpError(404, "No such upload.")
            if self.command == "DELETE":
                del self.store.uploads[session]
                return {}, 499, {}
            if upload.done:
                return upload.done
            span = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", self.headers.get("Content-Range", "bytes */*"))
            if span is None:
                raise HttpError(400, "Bad Content-Range.")
            start = int(span[1] or 0)
            if start > len(upload.data):
                raise HttpError(400, "A gap in the upload.")
            if span[1]:  # skips bytes that it has already
                upload.data += body[len(upload.data) - start :]
            if span[3] != "*" and len(upload.data) == int(span[3]):
                upload.done = self.store.put(upload.name, bytes(upload.data), upload.content_type, upload.query)
                return upload.done
            return {}, 308, {"Range": f"bytes=0-{len(upload.data) - 1}"} if upload.data else {}

    def _data(self, data: bytes) -> None:
        code, headers, total = 200, {}, len(data)
        if span := re.fullmatch(r"bytes=(\d+)-(\d*)|bytes=-(\d+)", self.headers.get("Range", "")):
            start = int(span[1]) if span[1] else max(0, total - int(span[3]))
            stop = min(int(span[2]) + 1 if span[2] else total, total)
            if start >= total:
                raise HttpError(416, "The requested range cannot be satisfied.")
            data, code = data[start:stop], 206
            headers = {"Content-Range": f"bytes {start}-{stop - 1}/{total}"}
        name = unquote(urlsplit(self.path).path.rpartition("/o/")[2])
        found = self.store.objects.get(name)
        if found:
            headers |= {"x-goog-generation": str(found.generation), "ETag": f"E{found.generation}"}
        self.store.sent_bytes += len(data)
        self._send(data, code, {"Content-Type": "application/octet-stream", **headers})

    def _json(self, content: Any, code: int = 200, headers: dict[str, str] | None = None) -> None:
        data = b"" if code in (204, 304) else json.dumps(content).encode()
        self._send(data, code, {"Content-Type": "application/json; charset=UTF-8", **(headers or {})})

    _cut_body = False

    def _send(self, data: bytes, code: int, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self._cut_body and len(data) > 1:
            self._cut_body = False
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self.close_connection = True
            return
        self.wfile.write(data)


def _without_header(part: bytes) -> bytes:
    """The body of a part of a multipart message."""
    for gap in (b"\r\n\r\n", b"\n\n"):
        if gap in part:
            body = part.split(gap, 1)[1]
            end = b"\r\n" if gap == b"\r\n\r\n" and body.endswith(b"\r\n") else b"\n"
            return body.removesuffix(end)
    raise HttpError(400, "A part without a header.")


class Server(ThreadingHTTPServer):
    """Listens with room for many connections at once."""

    request_queue_size = 256
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Does not report clients that disconnect."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    Handler.store = Store()
    server = Server(("127.0.0.1", parser.parse_args().port), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
