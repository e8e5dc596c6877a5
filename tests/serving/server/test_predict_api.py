"""TensorFlow Serving's requests, as in its documentation, and uploads, sent to a running server."""

import base64
import concurrent.futures
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from resnet_tpu import cli
from resnet_tpu.serving.export.bundle import open_bundle
from resnet_tpu.serving.export.classifier import load_classifier
from resnet_tpu.serving.server.json_answer import to_json
from resnet_tpu.serving.server.options import ServeOptions
from resnet_tpu.serving.server.service import Service

CLASSES = ["daisy", "dandelion", "roses", "sunflowers", "tulips"]
TOLERANCE = 1e-6  # another batch size changes the order of float32 sums


def b64(image: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(image).decode()}


def rows(answer: httpx.Response) -> np.ndarray:
    """The probabilities [n, classes] in an answer in row format."""
    assert answer.status_code == 200, answer.text
    return np.array([row["probabilities"] for row in answer.json()["predictions"]], np.float32)


def test_status_and_metadata(client: httpx.Client, export_dir: Path) -> None:
    (version,) = [path.name for path in export_dir.iterdir()]
    status = {"error_code": "OK", "error_message": ""}
    expected = {"model_version_status": [{"version": version, "state": "AVAILABLE", "status": status}]}
    for path in ("/v1/models/flowers", f"/v1/models/flowers/versions/{version}"):
        assert client.get(path).json() == expected
        found = client.get(f"{path}/metadata").json()
        assert found["model_spec"] == {"name": "flowers", "signature_name": "", "version": version}
        signature = found["metadata"]["signature_def"]["signature_def"]["serving_default"]
        assert signature["inputs"]["input"]["dtype"] == "DT_STRING"
        assert signature["outputs"]["probabilities"]["tensor_shape"]["dim"][1]["size"] == "5"
        card = found["model_card"]
        assert (card["class_names"], card["metrics"]["top_1_accuracy"], card["form"]) == (CLASSES, 0.91, "onnx")
    assert client.get("/v1/models").json()["models"] == [{"name": "flowers", "version": int(version)}]


def test_a_version_is_answered_by_itself_while_a_newer_one_takes_over() -> None:
    class Reloading:
        versions = iter((1, 2))

        @property
        def current(self) -> Any:
            return SimpleNamespace(bundle=SimpleNamespace(version=next(self.versions)))

    models: Any = {"flowers": Reloading()}
    assert Service(models, ServeOptions()).find("flowers", 1).bundle.version == 1


@pytest.mark.parametrize("path", ["/v1/models/half", "/v1/models/half/metadata", "/v1/models/flowers/versions/1"])
def test_what_is_not_served_is_not_found(client: httpx.Client, path: str) -> None:
    wanted = "Specific(flowers, 1)" if "versions" in path else "Latest(half)"
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"].startswith(f"Servable not found for request: {wanted}")


def test_the_documentations_client_works_unchanged(
    client: httpx.Client, images: list[bytes], expected: np.ndarray
) -> None:
    # `requests.post(url, data=text)` and `curl -d` send no JSON content type
    body = '{"instances" : [{"b64": "' + base64.b64encode(images[0]).decode() + '"}]}'
    for headers in ({}, {"content-type": "application/x-www-form-urlencoded"}):
        answer = client.post("/v1/models/flowers:predict", content=body, headers=headers)
        np.testing.assert_allclose(rows(answer), expected[:1], rtol=0, atol=TOLERANCE)
        assert answer.json()["predictions"][0]["classes"] == expected[0].argmax()


def test_rows_and_columns_named_and_not_all_say_the_same(
    client: httpx.Client, images: list[bytes], expected: np.ndarray, export_dir: Path
) -> None:
    (version,) = [path.name for path in export_dir.iterdir()]
    files = [b64(image) for image in images]
    named = [{"input": file} for file in files]
    unset = {"instances": files, "signature_name": None}
    for request in ({"instances": files}, unset, {"instances": named, "signature_name": "classify"}):
        answer = client.post(f"/v1/models/flowers/versions/{version}:predict", json=request)
        np.testing.assert_allclose(rows(answer), expected, rtol=0, atol=TOLERANCE)
        assert [row["classes"] for row in answer.json()["predictions"]] == expected.argmax(1).tolist()
    for request in ({"inputs": files}, {"inputs": {"input": files}, "signature_name": "serving_default"}):
        outputs = client.post("/v1/models/flowers:predict", json=request).json()["outputs"]
        np.testing.assert_allclose(outputs["probabilities"], expected, rtol=0, atol=TOLERANCE)
        assert outputs["classes"] == expected.argmax(1).tolist()


def test_answers_are_those_of_the_command(
    client: httpx.Client, images: list[bytes], export_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for index, image in enumerate(images):
        (tmp_path / f"{index:02}.jpg").write_bytes(image)
    assert cli.main(["predict", str(export_dir), str(tmp_path), "--format=json", "--predict_batch_size=1"]) == 0
    predicted = {
        Path(entry["name"]).name: {found["class"]: found["probability"] for found in entry["predictions"]}
        for entry in json.loads(capsys.readouterr().out)["images"]
    }
    files = [("images", (f"{index:02}.jpg", image)) for index, image in enumerate(images)]
    answer = client.post("/v1/models/flowers:classify", files=files).json()
    assert len(answer["predictions"]) == len(predicted) == len(images)
    for entry in answer["predictions"]:
        served = {found["class"]: found["probability"] for found in entry["classes"]}
        assert served == pytest.approx(predicted[entry["name"]], rel=0, abs=TOLERANCE)


def test_64_at_a_time_get_the_answers_of_one_at_a_time(
    client: httpx.Client, images: list[bytes], expected: np.ndarray
) -> None:
    def post(index: int) -> httpx.Response:
        return client.post("/v1/models/flowers:predict", json={"instances": [b64(images[index])]})

    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        found = np.concatenate([rows(answer) for answer in pool.map(post, [*range(16)] * 8)])
    np.testing.assert_allclose(found, np.tile(expected, (8, 1)), rtol=0, atol=TOLERANCE)


def test_uploads_are_named_and_sorted(client: httpx.Client, images: list[bytes], expected: np.ndarray) -> None:
    files = [("images", ("a b.jpg", images[0])), ("photo", ("ü.png", images[1]))]
    answer = client.post("/v1/models/flowers:classify", params={"top_k": 3}, files=files).json()
    assert answer["model"] == "flowers"
    for row, name, entry in zip(expected, ("a b.jpg", "ü.png"), answer["predictions"], strict=False):
        order = np.argsort(-row)[:3]
        assert entry["name"] == name
        assert [found["class"] for found in entry["classes"]] == [CLASSES[index] for index in order]
        np.testing.assert_allclose([found["probability"] for found in entry["classes"]], row[order], atol=TOLERANCE)


def test_a_file_that_is_no_image_does_not_harm_the_others(client: httpx.Client, images: list[bytes]) -> None:
    files = [
        ("images", ("good.jpg", images[0])),
        ("images", ("bad.jpg", b"text")),
        ("images", ("cut.jpg", images[2][:150])),
    ]
    answer = client.post("/v1/models/flowers:classify", files=files)
    good, bad, cut = answer.json()["predictions"]
    assert answer.status_code == 200
    assert good["classes"]
    assert "4 bytes that are not a known image format" in bad["error"]
    assert "expected a whole JPEG" in cut["error"]
    answer = client.post("/v1/models/flowers:classify", files=files[1:])
    assert answer.status_code == 400
    assert answer.json()["error"] == bad["error"]


def test_pixels_are_classified_as_by_the_savedmodel(
    client: httpx.Client, pixels: np.ndarray, export_dir: Path, expected: np.ndarray
) -> None:
    pixels, expected = pixels[:5], expected[:5]
    logits = load_classifier(open_bundle(str(export_dir)), "onnx", output="logits")(pixels)
    arrays = pixels.tolist()
    metadata = client.get("/v1/models/flowers/metadata").json()["metadata"]["signature_def"]["signature_def"]["pixels"]
    assert [dim["size"] for dim in metadata["inputs"]["images"]["tensor_shape"]["dim"]] == ["-1", "32", "32", "3"]
    for instances in (arrays, [{"images": array} for array in arrays]):
        for indent in (None, 1):
            body = json.dumps({"instances": instances, "signature_name": "pixels"}, indent=indent)
            found = client.post("/v1/models/flowers:predict", content=body).json()["predictions"]
            assert [sorted(row) for row in found] == [["logits", "probabilities"]] * len(arrays)
            np.testing.assert_allclose([row["probabilities"] for row in found], expected, rtol=0, atol=TOLERANCE)
            np.testing.assert_allclose([row["logits"] for row in found], logits, rtol=0, atol=1e-5)
    for inputs in (arrays, {"images": arrays}):
        request = {"signature_name": "pixels", "inputs": inputs}
        outputs = client.post("/v1/models/flowers:predict", json=request).json()["outputs"]
        np.testing.assert_allclose(outputs["probabilities"], expected, rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(outputs["logits"], logits, rtol=0, atol=1e-5)


ROW = [[0, 128, 255]] * 32
SQUARE = [ROW] * 32
"""Pixels of one image."""


@pytest.mark.parametrize(
    ("instances", "message"),
    [
        (SQUARE, "Image 0: got another shape, expected an array of [32, 32, 3]"),
        ([SQUARE, [ROW] * 31], "Image 1: got another shape"),
        ([SQUARE, [ROW] * 31 + [[[0, 128, 256]] * 32]], "Image 1: got other values"),
        ([SQUARE, [ROW] * 31 + [[[0, 128, -1]] * 32]], "Image 1: got other values"),
        ([SQUARE, [ROW] * 31 + [[[0, 128, 1.5]] * 32]], "Image 1: got other values"),
        ([SQUARE, [ROW] * 31 + [[[0, 128, 10**30]] * 32]], "Image 1: got other values"),
        ([SQUARE, [ROW] * 31 + [[[0, 128, None]] * 32]], "that is not JSON"),
        ([{"images": SQUARE}, {"images": [SQUARE]}], "Image 1: got another shape"),
        ([{"images": SQUARE}, {"input": SQUARE}], "expected arrays of pixels"),
        ([SQUARE] * 129, "got more than 128 images"),
        ([{"images": SQUARE}] * 129, "got 129 images"),
        ([{"images": "array 0"}, {"images": SQUARE}] * 65, "got 130 images"),
        ([{"b64": ""}], "expected arrays of pixels"),
        ([[0, 1], [2, 3]], "expected arrays of pixels"),
        ([[[[]]]], "Image 0: got another shape"),
        ("array 0", "expected arrays of pixels"),
    ],
)
def test_pixels_that_do_not_fit_are_told_why(client: httpx.Client, instances: Any, message: str) -> None:
    answer = client.post("/v1/models/flowers:predict", json={"signature_name": "pixels", "instances": instances})
    assert answer.status_code == 400
    assert message in answer.json()["error"]
    assert len(answer.content) < 300


@pytest.mark.parametrize("pixel", ["[0, 128, 007]", "[0,, 128]", "[0, 1 2, 3]", "[0, 128, ]", "[0, 128, 1e0]"])
def test_pixels_that_are_no_json_are_refused(client: httpx.Client, pixel: str) -> None:
    body = json.dumps({"signature_name": "pixels", "instances": [SQUARE]}).replace("[0, 128, 255]", pixel)
    assert "Image 0: got" in client.post("/v1/models/flowers:predict", content=body).json()["error"]


IMAGE = {"b64": "aW1hZ2UgYnl0ZXM="}
CASES: Sequence[tuple[Any, int, str]] = [
    ("{", 400, "that is not JSON"),
    ("[]", 400, "JSON that is not an object"),
    ("", 400, "that is not JSON"),
    (b"\xff\xfe", 400, "that is not JSON"),
    ("[" * 900, 400, "that is not JSON"),
    ({}, 400, "neither"),
    ({"instances": [IMAGE], "inputs": [IMAGE]}, 400, "both"),
    ({"instances": []}, 400, "no list of images"),
    (
        {"instances": [SQUARE]},
        400,
        'got arrays of numbers, expected image files in base64; pixels need "signature_name"',
    ),
    ({"instances": IMAGE}, 400, "no list of images"),
    ({"instances": [1.0, 2.0, 5.0]}, 400, "Image 0: got something else"),
    ({"instances": ["foo"]}, 400, "Image 0: got something else"),
    ({"instances": [[IMAGE]]}, 400, "Image 0: got something else"),
    ({"instances": [{"b64": "AAAAA"}]}, 400, "Image 0: got text that is not base64"),
    ({"instances": [{"b64": "é"}]}, 400, "Image 0: got text that is not base64"),
    ({"instances": [IMAGE]}, 400, "Image 0: got 11 bytes that are not a known image format"),
    ({"instances": [{"b64": ""}]}, 400, "Image 0: got 0 bytes"),
    ({"instances": [IMAGE], "signature_name": "tensorflow/serving/regress"}, 400, "signature_name"),
    ({"instances": [IMAGE], "signature_name": ["a"]}, 400, "signature_name"),
    ({"instances": [IMAGE] * 129}, 400, "got 129 images, expected at most 128"),
    ('{"instances": [' + "[]," * 5000 + "[]]}", 400, "too many values"),
]


@pytest.mark.parametrize(("body", "status", "message"), CASES, ids=[str(index) for index in range(len(CASES))])
def test_requests_that_do_not_fit_are_told_why(client: httpx.Client, body: Any, status: int, message: str) -> None:
    content = body if isinstance(body, str | bytes) else json.dumps(body, ensure_ascii=False)
    answer = client.post("/v1/models/flowers:predict", content=content)
    assert (answer.status_code, list(answer.json())) == (status, ["error"])
    assert message in answer.json()["error"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/page/..%2fapp.py", 404),
        ("PUT", "/v1/models", 405),
        ("GET", "/v1/models/flowers:predict", 405),
        ("GET", "/v1/models/flowers/versions/1:predict", 405),
        ("HEAD", "/v1/models/flowers:classify", 405),
        ("POST", "/v1/models/flowers", 405),
        ("POST", "/v1/models/flowers:regress", 404),
        ("GET", "/v1/models/", 404),
        ("GET", "/health/", 404),
        ("GET", "/v1/models/%00%ff%ed%a0%80", 404),
        ("GET", "/v1/models/flowers/versions/" + "9" * 5000, 400),
        ("POST", "/v1/models/flowers:classify?top_k=0", 400),
        ("POST", "/v1/models/flowers/versions/last:predict", 400),
        ("POST", "/v1/models/half:predict", 404),
        ("POST", "/v1/models/flowers:classify", 415),
    ],
)
def test_every_error_is_json(client: httpx.Client, method: str, path: str, status: int) -> None:
    answer = client.request(method, path, content=b"{}" if method == "POST" else None)
    assert answer.status_code == status
    if method != "HEAD":
        assert list(answer.json()) == ["error"]


def test_refused_method_gets_the_allowed_ones(client: httpx.Client) -> None:
    assert client.put("/v1/models").headers["allow"] == "GET, HEAD"
    assert client.get("/v1/models/flowers:predict").headers["allow"] == "POST"
    assert sorted(client.put("/openapi.json").headers["allow"].split(", ")) == ["GET", "HEAD"]


def test_top_k_in_the_form_is_refused(client: httpx.Client) -> None:
    answer = client.post("/v1/models/flowers:classify", files={"images": b"x"}, data={"top_k": "3"})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("top_k: got a field of the form, expected it in the address")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data:image/jpeg;base64,/9j/4AAQ", "Image 0: got text that is not base64 (':' in it), expected the standard"),
        ("_9j_4AAQ", "Image 0: got text that is not base64 ('_' in it), expected the standard"),
    ],
)
def test_other_base64_is_not_decoded_to_another_image(client: httpx.Client, text: str, message: str) -> None:
    answer = client.post("/v1/models/flowers:predict", json={"instances": [{"b64": text}]})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(message)


def test_head_is_get_without_the_body(client: httpx.Client) -> None:
    for path in ("/", "/health", "/v1/models", "/v1/models/flowers", "/v1/models/flowers/metadata", "/v1/models/half"):
        asked, whole = client.head(path), client.get(path)
        assert (asked.status_code, asked.content) == (whole.status_code, b"")
        assert asked.headers["content-length"] == str(len(whole.content))


def test_multipart_that_does_not_fit(client: httpx.Client) -> None:
    path, kind = "/v1/models/flowers:classify", "multipart/form-data"
    part = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\ntext\r\n--x--\r\n'
    many = {f"{index}": (f"{index}.jpg", b"x") for index in range(129)}
    assert client.post(path, content=b"--x", headers={"content-type": kind}).status_code == 400
    assert client.post(path, content=b"nonsense", headers={"content-type": f"{kind}; boundary=x"}).status_code == 400
    answer = client.post(path, content=part, headers={"content-type": f"{kind}; boundary=x"})
    assert answer.json()["error"].startswith("Request: got no file, expected one or more in the fields of a multipart")
    one, fields = {"b": ("b.jpg", b"x")}, [{f"{i}": "x" for i in range(101)}, {"a": "x" * 2_000_000}]
    for answer in (client.post(path, files=many), *(client.post(path, files=one, data=data) for data in fields)):
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("Request: got too much in one body. ")
    photo = part.replace(b'"a"', b'"a"; filename="a.jpg"').removesuffix(b"--x--\r\n")
    for cut in (photo, photo[:-3]):  # without the boundary that closes it, and within the file
        answer = client.post(path, content=photo + cut, headers={"content-type": f"{kind}; boundary=x"})
        assert "it ends within a part" in answer.json()["error"]


@pytest.mark.parametrize(
    "head",
    [
        b'name="images"',  # as by curl without its @
        b'name="photo"',  # the field of the other photo
        b'name="a"\r\nContent-Type: image/png',
        b'name="a"\r\nContent-Type: application/octet-stream',
        b"name=\"a\"; filename*=UTF-8''r%C3%B6se.png",
    ],
)
def test_a_photo_that_came_without_its_name_is_not_left_out(
    client: httpx.Client, images: list[bytes], head: bytes
) -> None:
    def part(of: bytes, content: bytes) -> bytes:
        return b"--x\r\nContent-Disposition: form-data; " + of + b"\r\n\r\n" + content + b"\r\n"

    photo = part(b'name="photo"; filename="a.jpg"', images[0])
    kind = {"content-type": "multipart/form-data; boundary=x"}
    post = functools.partial(client.post, "/v1/models/flowers:classify", headers=kind)
    answer = post(content=photo + part(head, b"photos/rose.jpg") + b"--x--\r\n")
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("Request: got a part without a file's name, expected one or more in")
    said = part(b'name="note"', b"mine") + part(b'name="more"\r\nContent-Type: application/json', b"{}")
    assert post(content=photo + said + b"--x--\r\n").status_code == 200


def test_names_of_files_come_back_as_they_were(client: httpx.Client, images: list[bytes]) -> None:
    names = ['a"b.png', "line\nbreak.png", "100%.png"]
    answer = client.post("/v1/models/flowers:classify", files=[("a", (name, images[0])) for name in names])
    assert [prediction["name"] for prediction in answer.json()["predictions"]] == names


def test_compressed_body_is_refused(client: httpx.Client) -> None:
    for path in ("/v1/models/flowers:predict", "/v1/models/flowers:classify"):
        headers = {"content-encoding": "GZip", "content-type": "multipart/form-data; boundary=x"}
        answer = client.post(path, content=b"\x1f\x8b", headers=headers)
        assert (answer.status_code, answer.json()["error"]) == (415, "Content-Encoding: got 'gzip', expected none.")


def test_names_of_files_are_text_in_utf_8(client: httpx.Client, images: list[bytes]) -> None:
    def post(name: bytes, charset: str) -> httpx.Response:
        part = b'--x\r\nContent-Disposition: form-data; name="a"; filename="' + name + b'"\r\n\r\n'
        kind = {"content-type": f"multipart/form-data; boundary=x; charset={charset}"}
        return client.post("/v1/models/flowers:classify", content=part + images[0] + b"\r\n--x--\r\n", headers=kind)

    assert post("ü".encode(), "UTF-8").json()["predictions"][0]["name"] == "ü"
    assert post(b"\xff\xed\xa0\x80", "utf-8").status_code == 200  # half a surrogate pair, and invalid UTF-8
    for charset in ("utf-7", "utf-16", "punycode", "bz2", "none"):
        assert post(b"+2AA-", charset).status_code == 415


def test_half_a_surrogate_pair_does_no_harm() -> None:
    assert to_json({"name": "\ud800ü"}) == '{"name":"?ü"}'.encode()
