"""The server under load from third-party programs: every answer is right, and the server counts each."""

import base64
import json
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

PREDICT = "/v1/models/flowers:predict"
CONNECTIONS = 16
VERSION = {"wrk": "-v", "ab": "-V"}  # options that print the version
# Counts the wrong answers in each of wrk's threads.
SCRIPT = """
wrk.method, wrk.headers["Content-Type"], wrk.body = "POST", "application/json", [[{body}]]
local threads = {{}}
function setup(thread) table.insert(threads, thread) end
function init() wrong = 0 end
function response(status, headers, body)
  if status ~= 200 or not string.find(body, [["classes":{label},]], 1, true) then wrong = wrong + 1 end
end
function done(summary)
  local sum = 0
  for _, thread in ipairs(threads) do sum = sum + thread:get("wrong") end
  print("wrong: " .. sum .. ", of " .. summary.requests)
end
"""


def answered(client: httpx.Client) -> float:
    """The number of predictions that the server says it has answered."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
        if sample.name == "resnet_tpu_requests_total"
        and {*sample.labels.values()} == {"200", "/v1/models/{name}:predict"}
    )


def body_of(image: bytes) -> str:
    return json.dumps({"instances": [{"b64": base64.b64encode(image).decode()}]})


def load(request: pytest.FixtureRequest, program: str, *arguments: str) -> str:
    """Runs a load program, if installed, and returns its output; the test summary gets its version and the rate."""
    if not (path := shutil.which(program)):
        pytest.skip(f"{program} is not installed")
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    shown = subprocess.run([path, VERSION[program]], capture_output=True, text=True, check=False)
    version = re.search(r"\d+\.[\d.]*\d", shown.stdout)
    rate = re.search(r"^Requests(?:/sec| per second): +([\d.]+)", said, re.MULTILINE)
    assert version, shown
    assert rate, said
    request.node.user_properties.append(("peer", f"{program} {version[0]} at {float(rate[1]):.0f} requests/s"))
    return said


@pytest.mark.long
@pytest.mark.peer
def test_wrk_gets_right_answers(
    request: pytest.FixtureRequest, client: httpx.Client, images: list[bytes], expected: np.ndarray, tmp_path: Path
) -> None:
    (script := tmp_path / "predict.lua").write_text(
        SCRIPT.format(body=body_of(images[0]), label=int(expected[0].argmax()))
    )
    before = answered(client)
    options = ["--threads=2", f"--connections={CONNECTIONS}", "--duration=2s", "--timeout=60s", f"--script={script}"]
    said = load(request, "wrk", *options, f"{client.base_url}{PREDICT}")
    assert "Socket errors" not in said, said
    found = re.search(r"^wrong: (\d+), of (\d+)$", said, re.MULTILINE)
    assert found, said
    wrong, requests = map(int, found.groups())
    assert wrong == 0 < requests
    assert 0 <= answered(client) - before - requests <= CONNECTIONS  # some are in progress when it ends


@pytest.mark.long
@pytest.mark.peer
def test_ab_gets_answers_in_http_1_0(
    request: pytest.FixtureRequest, client: httpx.Client, images: list[bytes], tmp_path: Path
) -> None:
    (body := tmp_path / "body.json").write_text(body_of(images[0]))
    before = answered(client)
    options = ["-n", "200", "-c", str(CONNECTIONS), "-s", "60", "-l", "-p", str(body), "-T", "application/json"]
    said = load(request, "ab", *options, f"{client.base_url}{PREDICT}")
    assert re.search(r"^Complete requests: +200$", said, re.MULTILINE), said
    assert re.search(r"^Failed requests: +0$", said, re.MULTILINE), said
    assert "Non-2xx" not in said, said
    assert answered(client) - before == 200
