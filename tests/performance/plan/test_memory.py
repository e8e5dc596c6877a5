from types import SimpleNamespace

import pytest

from resnet_tpu.performance.plan.hlo import parse_module
from resnet_tpu.performance.plan.memory import Memory, count_memory, owner_of


def test_every_byte_has_one_owner(program: str) -> None:
    kernel, images = 4 * 3 * 3 * 8 * 128, 8 * 32 * 128 * 3
    stats = SimpleNamespace(
        argument_size_in_bytes=2 * kernel + images + 512, output_size_in_bytes=kernel + 4, alias_size_in_bytes=kernel,
        temp_size_in_bytes=5000, generated_code_size_in_bytes=700,
    )  # fmt: skip
    memory = count_memory(parse_module(program).entry, stats)
    assert memory == Memory(
        parameters=kernel, optimizer=kernel, statistics=0, batch=images, activations=5000, program=700, other=512 + 4
    )
    kept = stats.output_size_in_bytes - stats.alias_size_in_bytes
    assert memory.total == stats.argument_size_in_bytes + kept + 5000 + 700


@pytest.mark.parametrize(
    ("argument", "owner"),
    [
        ("state.params['dense']['bias']", "parameters"),
        ("params['dense']['bias']", "parameters"),
        ("state.opt_state[0].trace['dense']['bias']", "optimizer"),
        ("state.batch_stats['stem']['mean']", "statistics"),
        ("state.ema['params']['dense']['bias']", "statistics"),
        ("batch['image']", "batch"),
        ("state.step", "other"),
        ("", "other"),
    ],
)
def test_arguments_are_told_apart_by_name(argument: str, owner: str) -> None:
    assert owner_of(argument) == owner
