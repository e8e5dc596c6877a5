"""Writes shards with an Apache Beam pipeline: in local processes, or on many machines by Dataflow and other runners.

Each element of the pipeline only says where in a file of the output folder its shard is described, because a job
request is limited to a few megabytes. Results come back through the files kept for resumed runs, which works with any
runner.
"""

import contextlib
import io
import json
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rich.console import Console

from resnet_tpu import storage
from resnet_tpu.data.boxes import Box
from resnet_tpu.data.cleaning import Limits
from resnet_tpu.data.manifest import STATE_FOLDER
from resnet_tpu.data.photos import Photo
from resnet_tpu.data.prepare.shards import Shard, ShardResult, finished_shard, write_shard
from resnet_tpu.errors import UserError, missing_extra, nearest
from resnet_tpu.system.terminal import live_line

_DESCRIPTIONS = "shards.jsonl"
_LOOK_SECS = 5.0
_LOCAL = ("", "directrunner", "direct", "fnapirunner", "fnapi")
_DATAFLOW = ("dataflowrunner", "dataflow")
_EXPECTED = "a pipeline that it can run"
_CHANGE = "Change what comes after --."
_AGAIN = "Run the same command again: finished shards are kept."
_USER_ERROR = re.compile(r"UserError: (.+?): got (.+), expected (.+?)\. (.+?)(?: \[while running .*)?$", re.MULTILINE)


class Span(NamedTuple):
    """Where a shard is described: the bytes [start, stop) of a file."""

    path: str
    start: int
    stop: int


def parse_options(arguments: Sequence[str]) -> Any:
    """Beam's options. Raises UserError for a value that it refuses; `--help` prints its help and exits."""
    from apache_beam.options.pipeline_options import PipelineOptions

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            options = PipelineOptions(list(arguments))
            options.get_all_options()
    except SystemExit as end:
        if not end.code:
            raise
        words = said.getvalue().rpartition("error: ")[2].strip()
        raise UserError("Apache Beam", words, _EXPECTED, _CHANGE) from None
    return options


def make_pipeline(
    arguments: Sequence[str], raw_dir: str, out_dir: str, *, workers: int | None, most_workers: int
) -> Any:
    """An empty `apache_beam.Pipeline` with these options.

    Without any, it runs in `workers` local processes, by default `most_workers`. Raises UserError when Beam is missing,
    for options that it refuses or does not know, and for local paths or a number of processes if other machines do
    the work.
    """
    try:
        import apache_beam
        from apache_beam.options.pipeline_options import StandardOptions, TypeOptions
    except ImportError:
        raise missing_extra("--beam", "apache_beam", "beam") from None

    options = parse_options(arguments)
    runner = (options.view_as(StandardOptions).runner or "").lower()
    if workers and runner not in _LOCAL:
        do = "Leave it out; the runner's options come after --, such as Dataflow's --max_num_workers."
        raise UserError("--workers", workers, "nothing, as another runner does the work", do)
    for path in (raw_dir, out_dir):
        if runner in _DATAFLOW and not storage.is_remote(path):
            do = "Copy it there: Dataflow's machines cannot see files on this one."
            raise UserError(f"Path {path}", "a path on this machine", "one in a bucket", do)
    if runner in _LOCAL:
        options.view_as(TypeOptions).allow_unsafe_triggers = True  # else Beam first looks for a program to download
        _set_processes(options, arguments, workers or most_workers)
    with _as_user_errors(_CHANGE):
        pipeline = apache_beam.Pipeline(options=options)
    _check_known(pipeline)
    return pipeline


def _set_processes(options: Any, arguments: Sequence[str], count: int) -> None:
    """Has `count` local processes do the work, unless Beam's own options say otherwise."""
    from apache_beam.options.pipeline_options import DirectOptions, WorkerOptions

    own = options.view_as(WorkerOptions)  # its log would repeat what is raised
    own.default_sdk_harness_log_level = own.default_sdk_harness_log_level or "CRITICAL"
    if not any(argument.startswith(("--direct_num_workers", "--direct_running_mode")) for argument in arguments):
        direct = options.view_as(DirectOptions)
        direct.direct_num_workers = count
        direct.direct_running_mode = "multi_processing" if count > 1 else "in_memory"


def _check_known(pipeline: Any) -> None:
    """Raises UserError for options that Beam would ignore with a warning."""
    from apache_beam.runners.portability.portable_runner import PortableRunner

    known = pipeline.options.get_all_options()
    unknown = sorted(pipeline.options.get_all_options(retain_unknown_options=True).keys() - known.keys())
    if unknown and not isinstance(pipeline.runner, PortableRunner):  # this one asks its server for more options
        expected = "an option of Apache Beam after --"
        raise UserError("Option", f"--{unknown[0]}", expected, f"Change it.{nearest(unknown[0], known)}")


def write_shards(
    pipeline: Any,
    shards: Sequence[Shard],
    missing: Sequence[Shard],
    out_dir: str,
    limits: Limits,
    console: Console,
) -> dict[str, ShardResult]:
    """Writes the `missing` ones of `shards` with the pipeline; returns their results by name.

    Raises UserError when the pipeline fails; finished shards are kept.
    """
    import apache_beam

    spans = describe_shards(shards, storage.join(out_dir, STATE_FOLDER, _DESCRIPTIONS))
    wanted = [spans[shard.name] for shard in missing]
    _ = (
        pipeline
        | "shards" >> apache_beam.Create(wanted)
        | "write" >> apache_beam.Map(_write, out_dir=out_dir, limits=limits)
    )
    with _show_progress(missing, out_dir, console), _as_user_errors(_AGAIN):
        pipeline.run().wait_until_finish()
    results = {shard.name: result for shard in missing if (result := finished_shard(shard, out_dir))}
    if len(results) < len(missing):
        got = f"{len(missing) - len(results)} of {len(missing)} shards not written"
        raise UserError("Apache Beam", got, _EXPECTED, _AGAIN)
    storage.remove(storage.join(out_dir, STATE_FOLDER, _DESCRIPTIONS))
    return results


def _write(span: Span, out_dir: str, limits: Limits) -> None:
    """Writes a shard, on whichever machine this runs."""
    from apache_beam.metrics import Metrics

    shard = described_shard(span)
    if not finished_shard(shard, out_dir):  # an attempt thought lost may have finished it
        write_shard(shard, out_dir, limits, Metrics.counter("resnet_tpu", "images").inc)


def describe_shards(shards: Sequence[Shard], path: str) -> dict[str, Span]:
    """Writes a line for each shard to the file `path`; returns where each is. A resumed run writes the same file."""
    spans: dict[str, Span] = {}
    start = 0
    with storage.write_whole(path) as file:
        for shard in shards:
            photos = [(photo.path, photo.name, photo.class_name, photo.split, photo.boxes) for photo in shard.photos]
            line = json.dumps([shard.name, shard.split, shard.num_bytes, shard.labels, photos]).encode() + b"\n"
            file.write(line)
            spans[shard.name] = Span(path, start, start + len(line))
            start += len(line)
    return spans


def described_shard(span: Span) -> Shard:
    """The shard that a line of `describe_shards` describes."""
    name, split, num_bytes, labels, photos = json.loads(storage.read_range(*span))
    found = [
        Photo(path, name, class_name, of, tuple(Box(*box) for box in boxes))
        for path, name, class_name, of, boxes in photos
    ]
    return Shard(name, split, found, labels, num_bytes)


@contextlib.contextmanager
def _show_progress(shards: Sequence[Shard], out_dir: str, console: Console) -> Iterator[None]:
    """Shows, while the block runs, how many images are in finished shards."""
    ended = threading.Event()
    with live_line(console=console) as progress:
        bar = progress.add_task("images", total=sum(len(shard.photos) for shard in shards))

        def look() -> None:
            while not ended.wait(_LOOK_SECS):
                with contextlib.suppress(UserError, OSError):  # if these last, the work itself will fail
                    there = {*storage.list_dir(storage.join(out_dir, STATE_FOLDER))}
                    done = (len(s.photos) for s in shards if f"{s.name}.json" in there)
                    progress.update(bar, completed=sum(done))

        looking = threading.Thread(target=look)
        looking.start()
        try:
            yield
        finally:
            ended.set()
            looking.join()


@contextlib.contextmanager
def _as_user_errors(do: str) -> Iterator[None]:
    """Turns Beam's errors into UserErrors, with the words of Beam or of the worker; lets UserErrors through."""
    try:
        yield
    except Exception as error:
        words = str(error)
        if ours := _USER_ERROR.search(words):
            raise UserError(*ours.groups()) from None
        if "No module named 'resnet_tpu'" in words:
            do = "Pass an image with it as --sdk_container_image, or --requirements_file with a line resnet-tpu[gcp]."
            raise UserError("The pipeline's machines", "no package resnet_tpu", "it to be installed", do) from None
        if isinstance(error, UserError) or "Traceback (most recent call last)" in words:
            raise
        raise UserError("Apache Beam", " ".join(words.split())[:1000].rstrip("."), _EXPECTED, do) from error
