import dataclasses

import pytest

from resnet_tpu.performance.plan.hlo import parse_module
from resnet_tpu.performance.plan.operations import by_kind, by_layer, layer_of, list_operations


def test_operations_say_what_they_are_of_which_layer_and_when(program: str) -> None:
    found = {one.name: (one.kind, one.layer, one.direction) for one in list_operations(parse_module(program))}
    assert found == {
        "a": ("convolution", "group1/block1/conv1", "backward"),
        "pool": ("pooling", "", "backward"),
        "sum": ("all-reduce", "", "backward"),
        "view": ("library call", "", ""),
        "y": ("batch norm", "group1/block1/norm", "forward"),
        "update": ("elementwise", "", "update"),
    }


def test_cycles_count_as_often_as_an_operation_runs(program: str) -> None:
    found = {one.name: (one.count, one.cycles) for one in list_operations(parse_module(program))}
    assert found["y"] == (4, 200)
    assert found["pool"] == (1, None)


def test_what_an_all_reduce_sends_is_counted_without_padding(program: str) -> None:
    found = {one.name: one.bytes for one in list_operations(parse_module(program))}
    assert found["sum"] == 2 * 3 * 3 * 8 * 8 + 4
    assert found["view"] == 0


def test_a_program_that_does_not_train_has_only_forward_operations(program: str) -> None:
    text = program.replace("transpose(jvp(group1/block1))", "group1/block1").replace("jvp(group1", "(group1")
    text = text.replace("transpose(jvp())/", "")
    assert {one.direction for one in list_operations(parse_module(text)) if one.layer} == {"forward"}


@pytest.mark.parametrize(
    ("target", "kind"), [("__cudnn$convForward", "convolution"), ("__cublas$gemm", "matrix product")]
)
def test_calls_of_a_librarys_functions_go_by_their_names(program: str, target: str, kind: str) -> None:
    call = f'custom-call(%a, %a), custom_call_target="{target}", '
    text = program.replace("select-and-scatter(%a, %a), ", call)
    assert {one.name: one.kind for one in list_operations(parse_module(text))}["pool"] == kind


def test_groups_come_with_most_cycles_first_and_sum_to_the_same(program: str) -> None:
    operations = list_operations(parse_module(program))
    groups = by_layer([*operations, *operations])
    assert [group.cycles for group in groups] == [2000, 600, 400, None, None, None]
    assert sum(group.count for group in groups) == 2 * sum(one.count for one in operations)


def test_kinds_sum_over_layers(program: str) -> None:
    operations = list_operations(parse_module(program))
    other = [dataclasses.replace(one, layer="group2/block1") for one in operations]
    kinds = by_kind([*operations, *other])
    assert [(one.kind, one.layer, one.cycles) for one in kinds][:2] == [
        ("convolution", "", 2000), ("elementwise", "", 600),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("op_name", "layer"),
    [
        ("jit(train_step)/jvp()/jit(log_softmax)/reduce_sum", ""),
        ("jit(train_step)/transpose(jvp(stem))/conv/conv_general_dilated", "stem/conv"),
        ("jit(train_step)/while/body/closed_call/jvp(group4/block3)/conv2/conv_general_dilated", "group4/block3/conv2"),
        ("jit(eval_step)/dense/dot_general", "dense"),
        ("jit(train_step)/jvp(group1/block1)/gi,io->go/dot_general", "group1/block1"),
        ("jit(train_step)/transpose(jvp(group1/block2))/transpose(jvp(group1/block2))/jvp()/add", "group1/block2"),
        ("", ""),
    ],
)
def test_layers_are_read_from_the_names_of_operations(op_name: str, layer: str) -> None:
    assert layer_of(op_name) == layer
