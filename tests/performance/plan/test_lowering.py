import jax
import pytest

from resnet_tpu.options.config import Config
from resnet_tpu.parallel.meshes import mesh_of
from resnet_tpu.performance.plan.lowering import eval_batch_size, lower_eval_step, lower_train_step
from resnet_tpu.performance.plan.plan import resolve_counts

TINY = resolve_counts(
    Config().replace(
        resnet_depth=8, resnet_width=4, image_size=32, num_label_classes=10, train_batch_size=16,
        eval_batch_size=12,
    )
)  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"gradient_accumulation_steps": 2}, marks=pytest.mark.long),
        pytest.param({"batch_norm_scope": "global"}, marks=pytest.mark.long),
        pytest.param({"enable_lars": True}, marks=pytest.mark.long),
    ],
)
def test_the_train_step_is_lowered_for_every_kind_of_training(options: dict[str, object]) -> None:
    lowered = lower_train_step(TINY.replace(**options), mesh_of(jax.devices()[:4]))
    assert "tensor<16x32x32x3xui8>" in lowered.as_text()


def test_the_eval_step_is_lowered_for_a_batch_that_divides() -> None:
    assert eval_batch_size(TINY, 8) == 16
    lowered = lower_eval_step(TINY, mesh_of(jax.devices()))
    assert "tensor<16x32x32x3xui8>" in lowered.as_text()
