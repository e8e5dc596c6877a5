"""Labels of operations: taken from the compiled program, guessed from a name, and saved on disk."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from resnet_tpu.errors import UserError
from resnet_tpu.performance.profiling.labels import Label, guess_label, labels_of, read_labels, write_labels


def test_a_compiled_program_says_what_its_operations_are() -> None:
    def loss(kernel: jax.Array, images: jax.Array) -> jax.Array:
        layout = ("NHWC", "HWIO", "NHWC")
        return jnp.square(jax.lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=layout)).sum()

    program = jax.jit(jax.value_and_grad(loss)).lower(jnp.ones((3, 3, 4, 8)), jnp.ones((2, 16, 16, 4))).compile()
    kinds = {(label.kind, label.direction) for label in labels_of(program.as_text() or "").values()}
    assert {("convolution", "forward"), ("convolution", "backward")} <= kinds


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("convolution.5", "convolution"),
        ("cudnn-conv-bw-filter.2", "convolution"),
        ("dot.1", "matrix product"),
        ("ffi_call.256", "library call"),
        ("select-and-scatter.1", "pooling"),
        ("all-reduce-start.3", "all-reduce"),
        ("multiply_reduce_fusion.14", "reduction"),
        ("copy.350", "layout"),
        ("MemcpyH2D", "transfer"),
        ("broadcast_subtract_fusion.46", "elementwise"),
        ("wrapped_add", "elementwise"),
        ("fusion.12", "other"),
        ("ynn_fusion.463", "other"),
        ("transpose_copy_fusion.61", "other"),
    ],
)
def test_names_tell_something(name: str, kind: str) -> None:
    assert guess_label(name) == Label(kind)


def test_labels_lie_beside_the_trace(tmp_path: Path) -> None:
    labels = {"a": Label("convolution", "stem", "forward"), "b": Label("layout")}
    assert read_labels(str(tmp_path)) == {}
    write_labels(str(tmp_path), labels, ["a", "a", "unknown"])
    assert read_labels(str(tmp_path)) == {"a": labels["a"]}


@pytest.mark.parametrize(
    "text", ["[", "[1]", '{"a": 1}', '{"a": [1]}', '{"a": []}', '{"a": ["", "", "", ""]}', "[" * 5_000]
)
def test_damaged_labels(tmp_path: Path, text: str) -> None:
    (tmp_path / "operations.json").write_text(text)
    with pytest.raises(UserError, match=r"operations\.json: got .*, expected what `profile` wrote"):
        read_labels(str(tmp_path))
