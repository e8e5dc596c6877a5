"""What Schemathesis is told about the server: the model that it serves, and files that are almost images."""

import base64
import io
from typing import Any

import numpy as np
import schemathesis
from hypothesis import strategies as st
from PIL import Image

from tests.fuzz.http_surface import VERSION


def _files() -> list[bytes]:
    """An image in several formats."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8))
    files = []
    for form in ("JPEG", "PNG", "GIF", "BMP", "WEBP"):
        buffer = io.BytesIO()
        image.save(buffer, form)
        files.append(buffer.getvalue())
    return files


@st.composite
def _damaged(draw: st.DrawFn) -> bytes:
    """A file that is an image, or a damaged one."""
    content = bytearray(draw(st.sampled_from(_files())))
    for at, byte in draw(st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)), max_size=4)):
        content[at] = byte
    return bytes(content[: draw(st.sampled_from((len(content), len(content) // 2, 20)))])


schemathesis.openapi.format("byte", _damaged().map(lambda content: base64.b64encode(content).decode()))
schemathesis.openapi.format("binary", _damaged())


@schemathesis.hook
def before_load_schema(context: Any, raw_schema: dict[str, Any]) -> None:
    """Removes the default responses, which allow any answer, so that the schema must list each."""
    for operations in raw_schema["paths"].values():
        for operation in operations.values():
            del operation["responses"]["default"]


@schemathesis.hook
def flatmap_path_parameters(context: Any, path_parameters: Any) -> st.SearchStrategy[Any]:
    """Uses the name of the model that is served half of the time."""
    if not path_parameters:
        return st.just(path_parameters)
    there = {"name": "flowers", "version": VERSION}
    known = {name: there[name] for name in path_parameters if name in there}
    return st.sampled_from([path_parameters, {**path_parameters, **known}])
