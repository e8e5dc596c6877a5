"""What `/openapi.json` says of bodies that the routes read themselves, and the page `/docs` made from it."""

import html
import json
from collections.abc import Mapping
from typing import Any

_IMAGE = {
    "type": "object",
    "required": ["b64"],
    "properties": {"b64": {"type": "string", "format": "byte", "description": "An image file in base64."}},
}
_NAMED_IMAGE = {"type": "object", "required": ["input"], "properties": {"input": _IMAGE}}
_PROBABILITIES = {"type": "array", "items": {"type": "number"}}
_NUMBER = {"type": "integer", "description": "The most probable class, counted from 0."}
_ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}

_REFUSALS = {
    400: "No image, or a body that does not fit.",
    404: "No such model or version.",
    408: "The body took too long to arrive.",
    413: "A body or an image that is too large.",
    500: "The model gave no finite probabilities, or the server failed.",
    503: "Too much to do, or about to stop: try again after Retry-After seconds.",
    504: "It took too long.",
}


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def any_error() -> dict[int | str, dict[str, Any]]:
    """What every route may answer instead."""
    return {"default": {"description": "What went wrong.", **_json(_ERROR)}}


def refusals(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The answers of a route with these codes; all of them have `error`."""
    return {code: {"description": _REFUSALS[code], **_json(_ERROR)} for code in codes}


def predict_route() -> dict[str, Any]:
    """Request and answers of `:predict`."""
    images = {"type": "array", "items": {"anyOf": [_IMAGE, _NAMED_IMAGE]}}
    column = {"type": "array", "items": _IMAGE}
    columns = {"anyOf": [column, {"type": "object", "required": ["input"], "properties": {"input": column}}]}
    request = {
        "type": "object",
        "description": "Either `instances` or `inputs`.",
        "properties": {
            "signature_name": {"type": "string", "enum": ["", "serving_default", "classify"]},
            "instances": images,
            "inputs": columns,
        },
    }
    row = {"type": "object", "properties": {"classes": _NUMBER, "probabilities": _PROBABILITIES}}
    outputs = {
        "classes": {"type": "array", "items": _NUMBER},
        "probabilities": {"type": "array", "items": _PROBABILITIES},
    }
    answer = {
        "type": "object",
        "properties": {
            "predictions": {"type": "array", "items": row, "description": "For `instances`."},
            "outputs": {"type": "object", "properties": outputs, "description": "For `inputs`."},
        },
    }
    return {
        "responses": {
            200: {"description": "The predictions.", **_json(answer)},
            **refusals(400, 404, 408, 413, 500, 503, 504),
        },
        "openapi_extra": {"requestBody": {"required": True, **_json(request)}},
    }


def classify_route() -> dict[str, Any]:
    """Request and answers of `:classify`."""
    file = {"type": "string", "format": "binary"}
    request = {"type": "object", "properties": {"images": {"type": "array", "items": file}}}
    named = {"type": "object", "properties": {"class": {"type": "string"}, "probability": {"type": "number"}}}
    prediction = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "Of the file."},
            "classes": {"type": "array", "items": named, "description": "The most probable first."},
            "error": {"type": "string", "description": "Instead of classes: what is wrong with this file."},
        },
    }
    answer = {
        "type": "object",
        "properties": {
            "model": {"type": "string"},
            "version": {"type": "integer"},
            "predictions": {"type": "array", "items": prediction},
            "ms": {"type": "number", "description": "Time in the server."},
        },
    }
    return {
        "responses": {
            200: {"description": "The predictions.", **_json(answer)},
            **refusals(400, 404, 408, 413, 500, 503, 504),
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
            parts.append(f"<p>{html.escape(route.get('description') or route['summary'])}</p>")
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
        f'<title>{html.escape(info["title"])}: interface</title><link rel="stylesheet" href="page/page.css"></head>'
        f"<body><main><h1>{html.escape(info['title'])} {html.escape(info['version'])}</h1>"
        f'<p>{html.escape(info.get("description", ""))} As a schema: <a href="openapi.json">openapi.json</a>.</p>'
        f"{''.join(parts)}</main></body></html>\n"
    )


def _block(title: str, content: Mapping[str, Any]) -> str:
    if not content.get("schema"):
        return ""
    schema = html.escape(json.dumps(content["schema"], indent=2))
    return f"<details><summary>{html.escape(title)}</summary><pre>{schema}</pre></details>"
