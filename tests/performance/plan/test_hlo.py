from resnet_tpu.performance.plan.hlo import array_bytes, bytes_moved, parse_module


def test_operations_are_those_that_run_with_the_cycles_the_compiler_gives(program: str) -> None:
    module = parse_module(program)
    found = {one.name: (one.cycles, times) for one, _, times in module.executed()}
    assert found == {
        "a": (1000, 1), "pool": (None, 1), "sum": (None, 1), "view": (None, 1), "y": (50, 4), "update": (300, 1),
    }  # fmt: skip


def test_a_loop_whose_count_is_not_known_counts_once(program: str) -> None:
    module = parse_module(program.replace("constant(4)", "get-tuple-element(%state.1), index=0"))
    assert {times for _, _, times in module.executed()} == {1}


def test_instructions_know_their_operands_and_what_they_call(program: str) -> None:
    module = parse_module(program)
    convolution = module.entry["a"]
    assert convolution.operands == ("x", "w")
    assert convolution.opcode == "fusion"
    assert [one.opcode for one in module.called(convolution).values()] == ["parameter", "parameter", "convolution"]
    assert module.entry["w"].op_name == "state.params['stem']['kernel']"
    assert module.entry["sum"].collective == "all-reduce"
    assert module.entry["pool"].collective is None


def test_bytes_of_shapes_with_and_without_the_padding_to_tiles() -> None:
    assert array_bytes("f32[3,3,8,8]{3,2,1,0:T(8,128)}", padded=False) == 4 * 3 * 3 * 8 * 8
    assert array_bytes("f32[3,3,8,8]{3,2,1,0:T(8,128)}") == 4 * 3 * 3 * 8 * 128
    assert array_bytes("f32[256,10]{0,1:T(8,128)S(1)}") == 4 * 256 * 16  # the first axis is the inner one
    assert array_bytes("u8[8,64,64,3]{2,1,3,0:T(32,128)(4,1)}") == 8 * 64 * 128 * 3
    assert array_bytes("(bf16[8]{0:T(128)}, /*index=1*/s32[]{:T(128)}, pred[4]{0})") == 2 * 128 + 4 + 4
    assert array_bytes("token[]") == 0


def test_bytes_moved_are_those_read_and_written(program: str) -> None:
    module = parse_module(program)
    one = array_bytes("bf16[8,16,16,8]{3,0,2,1:T(8,128)}")
    assert bytes_moved(module.entry["pool"], module.entry) == 3 * one
