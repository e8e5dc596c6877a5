"""Descriptions in `/openapi.json` of bodies that the routes parse themselves, and the page `/docs` made from it."""

import html
import json
import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI

_TEXT, _INTEGER, _NUMBER, _FLAG = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
_LABEL = {**_INTEGER, "description": "The most probable class, counted from 0."}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(items: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


def _object(*optional: str, **properties: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an object; all properties but the `optional` ones are required."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", **({"required": required} if required else {}), "properties": properties}


def _content(name: str, kind: str = "application/json") -> dict[str, Any]:
    return {"content": {kind: {"schema": _ref(name)}}}


_SCHEMAS = {
    "Error": _object(error=_TEXT),
    "Health": _object(live=_FLAG, ready=_FLAG),
    "Models": _object(models=_list(_ref("Model")), limits=_ref("Limits")),
    "Model": _object(name=_TEXT, version=_INTEGER),
    "Limits": _object(body_bytes=_INTEGER, images=_INTEGER, request_seconds=_NUMBER),
    "Status": _object(model_version_status=_list(_ref("VersionStatus"))),
    "VersionStatus": _object(version=_TEXT, state=_TEXT, status=_object(error_code=_TEXT, error_message=_TEXT)),
    "Metadata": _object(
        model_spec=_object(name=_TEXT, signature_name=_TEXT, version=_TEXT),
        metadata={"type": "object", "additionalProperties": True},
        model_card=_ref("ModelCard"),
    ),
    "ModelCard": {
        "description": "It may have more keys than these.",
        **_object(name=_TEXT, version=_INTEGER, class_names=_list(_TEXT), image_size=_INTEGER),
        "additionalProperties": True,
    },
    "ImageFile": _object(b64={**_TEXT, "format": "byte", "description": "An image file in base64."}),
    "Pixels": {
        "description": "uint8 [s, s, 3], as the network takes it; the metadata give s.",
        **_list(_list(_list({**_INTEGER, "minimum": 0, "maximum": 255}))),
    },
    "Image": {
        "anyOf": [_ref("ImageFile"), _object(input=_ref("ImageFile")), _ref("Pixels"), _object(images=_ref("Pixels"))]
    },
    "Images": _list(_ref("Image"), minItems=1),
    "PredictRequest": {
        "description": "Either `instances` or `inputs`: image files, or pixels for the signature `pixels`.",
        **_object(
            "signature_name", "instances", "inputs",
            signature_name={"enum": ["", "serving_default", "classify", "pixels", None]},
            instances=_ref("Images"),
            inputs={"anyOf": [_ref("Images"), _object(input=_ref("Images")), _object(images=_ref("Images"))]},
        ),
    },
    "PredictAnswer": {
        "description": "`predictions` for `instances`, `outputs` for `inputs`.",
        **_object("predictions", "outputs", predictions=_list(_ref("Prediction")), outputs=_ref("Outputs")),
    },
    "Prediction": _object("classes", "logits", classes=_LABEL, logits=_list(_NUMBER), probabilities=_list(_NUMBER)),
    "Outputs": _object(
        "classes", "logits",
        classes=_list(_LABEL), logits=_list(_list(_NUMBER)), probabilities=_list(_list(_NUMBER)),
    ),
    "ClassifyRequest": _object("images", images=_list({**_TEXT, "format": "binary"})),
    "ClassifyAnswer": _object(
        model=_TEXT,
        version=_INTEGER,
        predictions=_list(_ref("FilePrediction")),
        ms={**_NUMBER, "description": "Time in the server."},
    ),
    "FilePrediction": _object(
        "classes", "error",
        name={**_TEXT, "description": "Of the file."},
        classes=_list(_ref("NamedClass"), description="The most probable first."),
        error={**_TEXT, "description": "Instead of classes: what is wrong with this file."},
    ),
    "NamedClass": _object(**{"class": _TEXT, "probability": _NUMBER}),
}  # fmt: skip
"""Bodies by name. Programs that generate clients name their types after them."""

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

Answers = dict[int | str, dict[str, Any]]
"""Answers of a route by status code."""

ANY_ERROR: Answers = {"default": {"description": "What went wrong.", **_content("Error")}}
"""The error answer of every route."""


def answers(description: str, body: str, *refusals: int, refused: str = "Error") -> Answers:
    """The answers of a route: `body` with status 200, and `refused` with each of `refusals`. The bodies are named."""
    codes = {code: {"description": _REFUSALS[code], **_content(refused)} for code in refusals}
    return {200: {"description": description, **_content(body)}, **codes}


def image_route(kind: str, request: str, body: str) -> dict[str, Any]:
    """The request, a body of this media type, and the answers of a route that takes images. The bodies are named."""
    return {
        "responses": answers("The predictions.", body, *_REFUSALS),
        "openapi_extra": {"requestBody": {"required": True, **_content(request, kind)}},
    }


def schema_of(app: FastAPI) -> dict[str, Any]:
    """The description of the routes, with the bodies that they name."""
    return {**app.openapi(), "components": {"schemas": _SCHEMAS}}


def docs_page(schema: Mapping[str, Any]) -> str:
    """The schema as a plain HTML page, without scripts."""
    info = schema["info"]
    parts = []
    for path, methods in schema["paths"].items():
        for method, route in methods.items():
            parts.append(f"<section><h2><code>{method.upper()} {html.escape(path)}</code></h2>")
            parts.append(f"<p>{html.escape(route['description'])}</p>")
            if "requestBody" in route:
                parts.append(f"<p>{_bodies('Body', route['requestBody'])}</p>")
            for code, answer in sorted(route["responses"].items()):
                body = _bodies("Answer", answer) if code in ("200", "default") else ""
                parts.append(f"<p><b>{code}</b> {html.escape(answer['description'])} {body}</p>")
            parts.append("</section>")
    for name, body in schema["components"]["schemas"].items():
        parts.append(
            f'<section id="{name}"><h2>{name}</h2><pre>{_with_links(json.dumps(body, indent=2))}</pre></section>'
        )
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


def _bodies(title: str, described: Mapping[str, Any]) -> str:
    contents = described.get("content", {}).items()
    return "".join(f"{title}, {kind}: {_with_links(_name_of(content['schema']))}." for kind, content in contents)


def _name_of(schema: Mapping[str, str]) -> str:
    return schema.get("$ref") or schema["type"]


def _with_links(text: str) -> str:
    return re.sub(r"#/components/schemas/(\w+)", r'<a href="#\1">\1</a>', html.escape(text))
