"""Descriptions in `/openapi.json` of bodies that the routes parse themselves, and the page `/docs` made from it."""

import html
import json
from collections.abc import Mapping
from typing import Any

_IMAGE = {
    "type": "object",
    "required": ["b64"],
    "properties": {"b64": {"type": "string", "format": "byte", "description": "An image file in base64."}},
}
_PIXELS = {
    "type": "array",
    "description": "uint8 [s, s, 3], as the network takes it; the metadata give s.",
    "items": {"type": "array", "items": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 255}}},
}
_NUMBERS = {"type": "array", "items": {"type": "number"}}
_NUMBER = {"type": "integer", "description": "The most probable class, counted from 0."}
_TEXT, _INTEGER, _FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
_ANY = {"type": "object", "additionalProperties": True}
_CARD = {
    "type": "object",
    "description": "The model card; it may have more keys than these.",
    "required": ["name", "version", "class_names", "image_size"],
    "properties": {
        "name": _TEXT, "version": _INTEGER, "class_names": {"type": "array", "items": _TEXT}, "image_size": _INTEGER,
    },
    "additionalProperties": True,
}  # fmt: skip

_REFUSALS = {
    400: "An invalid value or body, or no image.",
    404: "No such model or version.",
    408: "The body took too long to arrive.",
    413: "A body or an image that is too large.",
    415: "Not multipart/form-data in UTF-8, or a compressed body.",
    500: "The model gave no finite probabilities, or the server failed.",
    503: "Too busy, or about to stop: try again after Retry-After seconds.",
    504: "It took too long.",
}


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def _object(**properties: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an object; all of these properties are required."""
    return {"type": "object", "required": list(properties), "properties": properties}


_ERROR = _object(error=_TEXT)


def any_error() -> dict[int | str, dict[str, Any]]:
    """The error answer of every route."""
    return {"default": {"description": "What went wrong.", **_json(_ERROR)}}


def refusals(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The answers of a route with these status codes; each has the key `error`."""
    return {code: {"description": _REFUSALS[code], **_json(_ERROR)} for code in codes}


def health_answer(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The answers of the routes under `/health`: the same body for every status code."""
    body = _object(live=_FLAG, ready=_FLAG)
    return {
        200: {"description": "It answers.", **_json(body)},
        **{code: {"description": _REFUSALS[code], **_json(body)} for code in codes},
    }


def models_answer() -> dict[int | str, dict[str, Any]]:
    """The answers of `/v1/models`."""
    models = {"type": "array", "items": _object(name=_TEXT, version=_INTEGER)}
    limits = _object(body_bytes=_INTEGER, images=_INTEGER, request_seconds={"type": "number"})
    return {200: {"description": "The models.", **_json(_object(models=models, limits=limits))}}


def status_answer() -> dict[int | str, dict[str, Any]]:
    """The answers of a model's status."""
    fine = _object(error_code=_TEXT, error_message=_TEXT)
    versions = {"type": "array", "items": _object(version=_TEXT, state=_TEXT, status=fine)}
    body = _object(model_version_status=versions)
    return {200: {"description": "The version that is served.", **_json(body)}, **refusals(400, 404)}


def metadata_answer() -> dict[int | str, dict[str, Any]]:
    """The answers of a model's metadata."""
    body = _object(model_spec=_object(name=_TEXT, signature_name=_TEXT, version=_TEXT), metadata=_ANY, model_card=_CARD)
    return {200: {"description": "Signatures and model card.", **_json(body)}, **refusals(400, 404)}


def predict_route() -> dict[str, Any]:
    """The request and the answers of `:predict`."""
    row_of = {"anyOf": [_IMAGE, _object(input=_IMAGE), _PIXELS, _object(images=_PIXELS)]}
    images = {"type": "array", "minItems": 1, "items": row_of}
    request = {
        "type": "object",
        "description": "Either `instances` or `inputs`: image files, or pixels for the signature `pixels`.",
        "properties": {
            "signature_name": {"enum": ["", "serving_default", "classify", "pixels", None]},
            "instances": images,
            "inputs": {"anyOf": [images, _object(input=images), _object(images=images)]},
        },
    }
    columns = {"classes": _NUMBER, "logits": _NUMBERS, "probabilities": _NUMBERS}
    row = {"type": "object", "required": ["probabilities"], "properties": columns}
    outputs = {name: {"type": "array", "items": items} for name, items in columns.items()}
    answer = {
        "type": "object",
        "properties": {
            "predictions": {"type": "array", "items": row, "description": "For `instances`."},
            "outputs": {**row, "properties": outputs, "description": "For `inputs`."},
        },
    }
    return {
        "responses": {
            200: {"description": "The predictions.", **_json(answer)},
            **refusals(400, 404, 408, 413, 415, 500, 503, 504),
        },
        "openapi_extra": {"requestBody": {"required": True, **_json(request)}},
    }


def classify_route() -> dict[str, Any]:
    """The request and the answers of `:classify`."""
    file = {"type": "string", "format": "binary"}
    request = {"type": "object", "properties": {"images": {"type": "array", "items": file}}}
    named = _object(**{"class": _TEXT, "probability": {"type": "number"}})
    prediction = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "description": "Of the file."},
            "classes": {"type": "array", "items": named, "description": "The most probable first."},
            "error": {"type": "string", "description": "Instead of classes: what is wrong with this file."},
        },
    }
    answer = _object(
        model=_TEXT,
        version=_INTEGER,
        predictions={"type": "array", "items": prediction},
        ms={"type": "number", "description": "Time in the server."},
    )
    return {
        "responses": {
            200: {"description": "The predictions.", **_json(answer)},
            **refusals(400, 404, 408, 413, 415, 500, 503, 504),
        },
        "openapi_extra": {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": request}}}},
    }


def docs_page(schema: Mapping[str, Any]) -> str:
    """The schema as a plain HTML page, without scripts."""
    info = schema["info"]
    parts = []
    for path, methods in schema["paths"].items():
        for method, route in methods.items():
            parts.append(f"<section><h2><code>{method.upper()} {html.escape(path)}</code></h2>")
            parts.append(f"<p>{html.escape(route['description'])}</p>")
            for kind, content in route.get("requestBody", {}).get("content", {}).items():
                parts.append(_block(f"Body, {kind}", content))
            for code, answer in sorted(route["responses"].items()):
                parts.append(f"<p><b>{code}</b> {html.escape(answer['description'])}</p>")
                if code == "200":
                    parts += [_block(f"Answer, {kind}", content) for kind, content in answer.get("content", {}).items()]
            parts.append("</section>")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{html.escape(info['title'])}: interface</title>"
        '<link rel="icon" href="page/icon.svg" type="image/svg+xml"><link rel="stylesheet" href="page/page.css"></head>'
        f"<body><main><h1>{html.escape(info['title'])} {html.escape(info['version'])}</h1>"
        f'<p>{html.escape(info["description"])} As a schema: <a href="openapi.json">openapi.json</a>.</p>'
        f"{''.join(parts)}</main></body></html>\n"
    )


def _block(title: str, content: Mapping[str, Any]) -> str:
    schema = html.escape(json.dumps(content["schema"], indent=2))
    return f"<details><summary>{html.escape(title)}</summary><pre>{schema}</pre></details>"
