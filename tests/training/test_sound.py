"""Programs compute correct results with every compiler version, given the compiler options that this requires."""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import resnet_tpu
from resnet_tpu.data.sources.data_dir import open_source
from resnet_tpu.models.from_options import network_of
from resnet_tpu.options.config import Config
from resnet_tpu.parallel import meshes
from resnet_tpu.training.compiler_options import required_options_for
from resnet_tpu.training.inference.evaluate import evaluate
from resnet_tpu.training.inference.predict import predict_source
from resnet_tpu.training.inference.trained import Trained
from resnet_tpu.training.maths.step import make_eval_step

PACKAGE = Path(resnet_tpu.__file__).parent
BFLOAT16_RTOL = 2.0**-8
"""Half the relative distance between neighbouring bfloat16 numbers."""


def cpu() -> Any:
    return jax.devices("cpu")[0]


@pytest.mark.parametrize(
    ("program", "ones"),
    [
        pytest.param(  # wrong since jaxlib 0.11.2, only in bfloat16
            lambda x: jax.nn.relu(2 * jax.nn.relu(x) - 1).astype(jnp.float32).sum(0),
            jnp.ones((64, 64), jnp.bfloat16),
            id="a constant used twice",
        ),
        pytest.param(  # wrong since jaxlib 0.10.2
            lambda x: (x @ jnp.ones_like(x)).sum(-1) / 64,
            jnp.ones((64, 64), jnp.float32),
            id="a product with a constant",
        ),
    ],
)
def test_smallest_programs_that_the_compiler_gets_wrong(program: Callable[..., jax.Array], ones: jax.Array) -> None:
    """See benchmarks/faults.md."""
    found = jax.jit(program, compiler_options=required_options_for(cpu()))(ones)
    np.testing.assert_array_equal(found, np.full(64, 64))


def test_the_environment_decides_where_it_says_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert required_options_for(cpu())
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_experimental_ynn_fusion_type=dot,reduce")
    assert required_options_for(cpu()) is None


@pytest.mark.long
def test_evaluation_and_prediction_in_bfloat16_are_float32_but_for_rounding() -> None:
    """ResNet-18 with the stem for small images once gave NaN on a CPU, from a sound checkpoint."""
    mesh = meshes.make_mesh(1)
    config = Config().replace(
        data_dir="synthetic", num_label_classes=5, num_eval_images=8, eval_batch_size=8, image_size=32,
        resnet_depth=18, resnet_width=8, num_cores=1,
    )  # fmt: skip
    source = open_source(config.data, "validation")
    losses, probabilities = [], []
    for precision in ("float32", "bfloat16"):
        own = config.replace(precision=precision)
        network = network_of(own)
        params, batch_stats = network.init(0)
        params["dense"]["kernel"] *= 30  # makes the probabilities differ from each other
        eval_step = make_eval_step(network, own.optimizer)
        losses.append(evaluate(eval_step, params, batch_stats, source, own, mesh, step=0)["loss"])
        trained = Trained("", 0, own, list("abcde"), network, params, batch_stats, mesh)
        predictions, _ = predict_source(trained, source, own.data, batch_size=8)
        probabilities.append(predictions.probabilities)
    assert probabilities[0].std() > 0.01
    # each layer rounds its input and its output, up or down
    tolerance = BFLOAT16_RTOL * np.sqrt(2 * 18)
    np.testing.assert_allclose(losses[1], losses[0], rtol=tolerance)
    np.testing.assert_allclose(probabilities[1], probabilities[0], rtol=0, atol=tolerance)


def test_every_program_says_how_it_is_compiled() -> None:
    """Except programs that are only traced, sums of whole numbers, and peers in benchmarks, compiled as users do it."""
    silent = {
        f"{path.relative_to(PACKAGE)}: {ast.unparse(node)}"
        for path in PACKAGE.rglob("*.py")
        if path.parts[-2] != "bench" and "jit(" in path.read_text()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "jax.jit"
        and "compiler_options" not in {keyword.arg for keyword in node.keywords}
    }  # fmt: skip
    assert silent == {
        "parallel/meshes.py: jax.jit(jnp.sum, out_shardings=replicated(mesh))",
        "serving/export/stablehlo.py: jax.jit(apply)",
        "training/compiler_options.py: jax.jit(lambda x: x)",
    }
