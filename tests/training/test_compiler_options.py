import logging

import jax
import jax.numpy as jnp
import pytest

from resnet_tpu.training.compiler_options import accepted_options, compiler_options_for, required_options_for


def test_a_training_on_a_cpu_gets_the_options_of_every_program() -> None:
    device = jax.devices("cpu")[0]
    assert compiler_options_for(device) == required_options_for(device) == {"xla_cpu_experimental_ynn_fusion_type": ""}


def test_refused_compiler_option_is_logged_once_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Compiler versions differ in their options, and a step with an unknown one would fail to compile."""
    known = {"xla_backend_optimization_level": "1"}
    unknown = {"xla_no_such_option": "1", "xla_backend_optimization_level ": "1"}
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        jax.jit(jnp.negative, compiler_options=known | unknown)(1.0)
    device = jax.devices("cpu")[0]
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert accepted_options(device, unknown | known) == known
    # asyncio may log complaints about another test's tasks meanwhile
    own = [record for record in caplog.records if record.name.startswith("resnet_tpu")]
    assert len(own) == len(unknown)
    assert "xla_no_such_option=1" in caplog.text
    assert accepted_options(device, {"xla_backend_optimization_level": "much"}) == {}
