"""The parts of a step: they add up, whatever kind of device the trace is from."""

import re
from pathlib import Path

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnet_tpu.errors import UserError
from resnet_tpu.performance.profiling.labels import Label, read_labels
from resnet_tpu.performance.profiling.summary import intersect, own_times, summarize, union
from resnet_tpu.performance.profiling.trace import Event, Span, Trace, find_trace, read_trace

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "traces"
PAGE = " ".join((ROOT / "docs" / "profile.md").read_text().split())

HOST = """planes { id: 1 name: "/host:CPU"
  lines { id: 1 name: "python" timestamp_ns: 0
    %s
  }
  event_metadata { key: 1 value { id: 1 name: "train" } }
  event_metadata { key: 2 value { id: 2 name: "input_wait" } }
}
"""
TPU = """planes { id: 2 name: "/device:TPU:0"
  lines { id: 1 name: "Steps" timestamp_ns: 0 events { metadata_id: 1 offset_ps: 0 duration_ps: 90000000000 } }
  lines { id: 2 name: "XLA Ops" timestamp_ns: 0
    %s
  }
  event_metadata { key: 1 value { id: 1 name: "%%convolution.5 = bf16[8]{0} convolution(%%p)" } }
}
"""
GPU = """planes { id: 2 name: "/device:GPU:0"
  lines { id: 1 name: "Stream #13(Compute)" timestamp_ns: 0
    %s
  }
  event_metadata { key: 1 value { id: 1 name: "sm90_xmma_fprop" } }
  stat_metadata { key: 1 value { id: 1 name: "hlo_op" } }
}
"""
CPU_OPERATIONS = HOST.replace("python", "worker").replace('name: "train"', 'name: "copy.1"')

MS = 10**9  # picoseconds


def event(kind: int, start: int, length: int, *, operation: str = "") -> str:
    """An event in the text form of a trace; times are in ms."""
    stats = f'stats {{ metadata_id: 1 str_value: "{operation}" }}' if operation else ""
    return f"events {{ metadata_id: {kind} offset_ps: {start * MS} duration_ps: {length * MS} {stats} }}"


def write(folder: Path, text: str) -> str:
    """Writes the trace where JAX would leave it in a model_dir, and returns its path."""
    path = folder / "plugins" / "profile" / "2026_01_01_00_00_00" / "host.xplane.pb"
    path.parent.mkdir(parents=True)
    path.write_bytes(jax.profiler.ProfileData.text_proto_to_serialized_xspace(text))
    return str(path)


# Three steps of 10 ms. In each, the host waits for input from 2 to 9 ms, and the device works from 4 to 8 ms.
STEPS = " ".join(event(1, 10 * n, 9) + event(2, 10 * n + 2, 7) for n in range(3))


@pytest.mark.parametrize(
    ("device", "operation", "name"), [(TPU, "", "convolution.5"), (GPU, "cudnn-conv.3", "cudnn-conv.3")]
)
def test_a_trace_of_a_device_is_read(tmp_path: Path, device: str, operation: str, name: str) -> None:
    work = " ".join(event(1, 10 * n + 4, 4, operation=operation) for n in range(3))
    path = write(tmp_path, HOST % STEPS + device % work)
    assert find_trace(str(tmp_path)) == path
    found = summarize(read_trace(path), {name: Label("convolution", "stem", "forward")})
    assert (found.num_steps, found.num_devices) == (2, 1)
    times = (found.mean_ms, found.median_ms, found.compute_ms, found.input_wait_ms, found.other_idle_ms)
    assert times == pytest.approx((10, 10, 4, 3, 3))
    assert (found.host_wait_ms, found.host_work_ms) == pytest.approx((7, 2))
    (only,) = found.operations
    assert (only.name, only.label.layer, only.ms, only.share) == (name, "stem", pytest.approx(4), pytest.approx(1))


def test_without_labels_operation_names_are_used(tmp_path: Path) -> None:
    path = write(tmp_path, HOST % STEPS + TPU % " ".join(event(1, 10 * n, 4) for n in range(3)))
    assert list(summarize(read_trace(path), {}).kinds()) == ["convolution"]


def test_waits_under_a_busy_device_cost_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, HOST % STEPS + TPU % event(1, 0, 30))
    found = summarize(read_trace(path), {})
    assert (found.input_wait_share, found.compute_ms) == (0, pytest.approx(10))


@pytest.mark.parametrize("pipeline", ["basic", "optimized"])
def test_the_examples_show_what_the_docs_say(pipeline: str) -> None:
    path = find_trace(str(EXAMPLES / pipeline))
    found = summarize(read_trace(path), read_labels(str(Path(path).parent)))
    assert {"stem", "group4/block2"} < {operation.label.layer for operation in found.operations}
    assert re.search(rf"`(input_pipeline=)?{pipeline}`[^`]* {100 * found.input_wait_share:.1f} %", PAGE)


def test_what_is_no_trace_of_a_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="plugins/profile"):
        find_trace(str(tmp_path))
    with pytest.raises(UserError, match="without a training step"):
        read_trace(write(tmp_path, HOST % ""))
    single = Trace((Span(0, 1),), (), (), {})
    with pytest.raises(UserError, match="at least two"):
        summarize(single, {})
    (tmp_path / "a.xplane.pb").write_bytes(b"no trace")
    with pytest.raises(UserError, match="a file of JAX's profiler"):
        read_trace(str(tmp_path / "a.xplane.pb"))


def test_time_inside_an_operation_belongs_to_what_runs_there() -> None:
    loop = [Event("while", 0, 10), Event("dot", 1, 4), Event("dot", 5, 6), Event("copy", 12, 13)]
    assert own_times(loop) == {"while": 6, "dot": 4, "copy": 1}


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda pair: Span(pair[0], sum(pair))))


@given(spans, spans)
def test_unions_and_intersections_are_those_of_sets(one: list[Span], other: list[Span]) -> None:
    def points(spans: list[Span]) -> set[int]:
        return {point for span in spans for point in range(int(span.start), int(span.end))}

    joined = union(one), union(other)
    assert points(joined[0]) == points(one)
    assert all(before.end < after.start for before, after in zip(joined[0], joined[0][1:], strict=False))
    assert points(intersect(*joined)) == points(one) & points(other)
