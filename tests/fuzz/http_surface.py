"""Fuzzes a server over HTTP: `python -m tests.fuzz.http_surface --seconds 60`, from the checkout.

For half of the time, Schemathesis sends requests that the server's own `/openapi.json` allows and ones that it forbids.
In the other half, requests with mutated bytes are sent. With `--runs`, both send a number of requests, the same every
time. The server may refuse any request, with a documented status and body; it must not fail, leak memory, stop or leave
clients without an answer. The exit code is 0 if all went well.
"""

import argparse
import base64
import contextlib
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.serving.server.conftest import Server, decode, make_images, run_server, write_small_bundle

GROWTH_MB, CLIENTS = 200, 8
VERSION = 1
PREDICT, CLASSIFY = "/v1/models/flowers:predict", "/v1/models/flowers:classify"
HOOKS = "tests.fuzz.http_hooks"


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=float, default=60.0)
    length.add_argument("--runs", type=int, help="Requests with accidents; a hundredth of them for each operation.")
    parser.add_argument("--seed", type=int, help="Default: a random one, with --runs 1.")
    asked = parser.parse_args()
    if importlib.util.find_spec("schemathesis") is None:
        print("http_surface: schemathesis is not installed: pip install --group fuzz", file=sys.stderr)
        return 2
    seed = asked.seed or (1 if asked.runs else random.randrange(2**32))
    print(f"http_surface: seed {seed}", flush=True)
    images = make_images()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_small_bundle(folder, decode(images))
        (written,) = folder.iterdir()
        written.rename(folder / str(VERSION))
        with run_server(folder, folder, "--request_timeout=10") as server:
            check(server, images)
            before = server.memory_mb()
            server.forget_peak()
            half = f"--max-time={max(1, round(asked.seconds / 2))}"
            code = run_schemathesis(server, f"--max-examples={1 + asked.runs // 100}" if asked.runs else half, seed)
            end = time.monotonic() + asked.seconds / 2
            rounds = range(asked.runs // CLIENTS) if asked.runs else iter(lambda: time.monotonic() < end, False)
            with ThreadPoolExecutor(CLIENTS) as pool:
                found = pool.map(lambda number: send_accidents(server, images, rounds, seed + number), range(CLIENTS))
                answers = sum(found, Counter[str]())
            print("http_surface: accidents in bytes:", ", ".join(f"{n} x {code}" for code, n in answers.most_common()))
            check(server, images)
            print("http_surface: answers by route:", *counts(server), sep="\n  ")
            after = server.memory_mb("VmHWM")
            assert after < before + GROWTH_MB, f"memory grew from {before} to {after} MB"
            log = server.log.read_text()
            assert "Traceback" not in log, log
            assert server.stop() == 0
    print(f"http_surface: {'all went well' if code == 0 else 'schemathesis found something, see above'}")
    return code


def check(server: Server, images: list[bytes]) -> None:
    """Checks that the server answers."""
    answer = httpx.post(server.url + CLASSIFY, files=[("images", image) for image in images], timeout=60)
    assert answer.status_code == 200, answer.text


def counts(server: Server) -> list[str]:
    """How often each route answered with each status code."""
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return [line for line in lines if line.startswith("resnet_tpu_requests_total")]


def run_schemathesis(server: Server, length: str, seed: int) -> int:
    """Runs Schemathesis, which prints its findings with commands to reproduce them, and returns its exit code."""
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json",
        length, f"--seed={seed}", "--request-timeout=30", "--no-color",
        # the schema allows any base64, which need not be an image
        "--checks=all", "--exclude-checks=positive_data_acceptance",
    ]  # fmt: skip
    return subprocess.run(command, env={**os.environ, "SCHEMATHESIS_HOOKS": HOOKS}, check=False).returncode


def seeds(images: list[bytes]) -> list[bytes]:
    """Complete requests of every kind."""
    rows = {"instances": [{"b64": base64.b64encode(image).decode()} for image in images[:2]]}
    pixels = {"signature_name": "pixels", "inputs": {"images": decode(images[:1]).tolist()}}
    part = b'--x\r\nContent-Disposition: form-data; name="a"; filename="%b"\r\nContent-Type: image/png\r\n\r\n%b\r\n'
    files = part % (b"a.png", images[1]) + part % ("ü.png".encode(), images[0]) + b"--x--\r\n"
    found = [f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode() for path in ("/", "/v1/models/flowers?a=b", "/metrics")]
    for path, body in ((PREDICT, json.dumps(rows).encode()), (PREDICT, json.dumps(pixels).encode()), (CLASSIFY, files)):
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=x\r\n".encode()
        found.append(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        half = len(body) // 2
        chunks = b"".join(b"%x;a=b\r\n%b\r\n" % (len(piece), piece) for piece in (body[:half], body[half:], b""))
        found.append(
            head + b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n" + chunks[:-2] + b"A: b\r\n\r\n"
        )
    return found


def accident(rng: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """The request with one to four mutations: bytes changed, cut out, repeated, or taken from another request."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(min(len(changed), rng.choice((300, len(changed)))) or 1)
        length = rng.choice((1, 2, 16, 500))
        other = rng.choice(others)
        begin = rng.randrange(len(other))
        match rng.randrange(5):
            case 0:
                changed[at : at + 1] = rng.choice((b"\0", b"\r", b"\n", b"\r\n", b" ", b":", b"\xff", b"9", b"-", b"["))
            case 1:
                changed[at : at + length] = rng.randbytes(length)
            case 2:
                del changed[at : at + length]
            case 3:
                changed[at:at] = changed[at : at + length] * rng.choice((1, 2, 100))
            case _:
                changed[at : at + length] = other[begin : begin + length]
    return bytes(changed)


def send_accidents(server: Server, images: list[bytes], rounds: Iterable[object], seed: int) -> Counter[str]:
    """Statuses of the answers to mutated requests: up to three per round, and one connection per round."""
    rng, whole = random.Random(seed), seeds(images)
    statuses: Counter[str] = Counter()
    for _ in rounds:
        sent = b"".join(accident(rng, rng.choice(whole), whole) for _ in range(rng.randint(1, 3)))
        received = b""
        with server.connect() as connection, contextlib.suppress(ConnectionError, TimeoutError):
            connection.settimeout(0.5)  # do not wait for answers to requests that are only half sent
            connection.sendall(sent)
            while chunk := connection.recv(65536):
                received += chunk
        codes = [line[9:12].decode() for line in received.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
        statuses.update(codes or ["none"])
        assert "500" not in codes, (sent, received)
    return statuses


if __name__ == "__main__":
    sys.exit(main())
