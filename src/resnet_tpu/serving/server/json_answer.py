"""Answers in JSON."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response


def to_json(value: Any) -> bytes:
    """JSON in UTF-8, without spaces. A lone surrogate, which UTF-8 cannot encode, becomes a question mark."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An HTTP response with `value` as JSON."""
    return Response(to_json(value), status, headers, "application/json")
