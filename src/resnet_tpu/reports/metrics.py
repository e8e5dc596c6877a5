"""The metrics of a run: means over an evaluation, and their files, `metrics.jsonl` and TensorBoard's."""

import json
import math
import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeGuard

from resnet_tpu import storage
from resnet_tpu.errors import UserError
from resnet_tpu.reports.events import EventFile
from resnet_tpu.storage import checked_json

MetricsSplit = Literal["train", "eval"]
"""The numbers of training steps, or of evaluations."""

OTHER_IMAGES = "other_images"
"""Marks a row of an evaluation on images, or crops of them, other than those of the run."""

ROW_FIELDS = ("step", "split", "time", OTHER_IMAGES)
"""What a row of `metrics.jsonl` holds besides the numbers measured; no number has such a name."""

_OTHER: dict[MetricsSplit, str] = {"train": '"split": "eval"', "eval": '"split": "train"'}
"""Text that every line of the other split contains."""


def mean_metrics(sums: Iterable[Mapping[str, Any]], *, l2_loss: float = 0.0) -> dict[str, float]:
    """`loss`, `top_1_accuracy` and `top_5_accuracy` per example, from the sums over each batch of an evaluation.

    sums: `examples`, `cross_entropy`, `top_1`, `top_5`, without padding. Each example counts once, however they are
    split into batches. l2_loss: the same for all examples, added to `loss`.
    Raises UserError if there is no example.
    """
    batches = list(sums)
    examples, cross_entropy, top_1, top_5 = (
        math.fsum(float(batch[name]) for batch in batches) for name in ("examples", "cross_entropy", "top_1", "top_5")
    )
    if not examples:
        raise UserError("Evaluation", "no examples", "at least one", "Check data_dir and num_eval_images.")
    return {
        "loss": cross_entropy / examples + l2_loss,
        "top_1_accuracy": top_1 / examples,
        "top_5_accuracy": top_5 / examples,
    }


class MetricsWriter:
    """Adds measurements to `metrics.jsonl`, and to TensorBoard's files in `model_dir` (train) and its `eval/`.

    The step of a training row is the number of updates made before it (0, 1, ...), that of an evaluation row the number
    in its checkpoint. Rows outlive the process once `write` has returned. resume_step: the step of the checkpoint that
    training resumes from. Rows that will be measured again are dropped from both files: training rows from that step
    on, evaluation rows after it. A last line that a killed process left half-written is dropped too.
    """

    def __init__(self, model_dir: str, *, resume_step: int | None = None) -> None:
        self.model_dir = model_dir
        self._path = metrics_path(model_dir)
        self._purge_steps = {} if resume_step is None else {"train": resume_step, "eval": resume_step + 1}
        self._event_files: dict[str, EventFile] = {}
        storage.make_dir(model_dir)
        if "eval" in _mend(self._path, self._purge_steps):
            self._repeat_last_evaluation()
        else:
            self._purge_steps.pop("eval", None)  # later ones may come from an `eval` meanwhile

    def write(
        self, split: MetricsSplit, rows: Mapping[int, Mapping[str, Any]], *, of_other_images: bool = False
    ) -> None:
        """Adds the numbers of each step, by name. The names are also the tags in TensorBoard.

        Numbers may be Python's, NumPy's or JAX's. In `metrics.jsonl`, numbers that are not finite become null.
        of_other_images: marks rows that `own_evaluations` omits. Raises UserError if the folder no longer exists.
        """
        now = time.time()
        numbers = {step: {name: _number(value) for name, value in row.items()} for step, row in rows.items()}
        mark = {OTHER_IMAGES: 1} if of_other_images else {}
        lines = "".join(_line(step, split, row | mark, now) for step, row in numbers.items())
        try:
            storage.append_text(self._path, lines)
        except FileNotFoundError:
            got, do = "a folder that no longer exists", "Restore it, then run the same command again."
            raise UserError(f"model_dir {self.model_dir}", got, "the folder that was there at the start", do) from None
        self._event_file(split).write(numbers, now=now)

    def close(self) -> None:
        """Closes the event files."""
        for file in self._event_files.values():
            file.close()
        self._event_files.clear()

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _repeat_last_evaluation(self) -> None:
        """Writes the last evaluation that is still valid to TensorBoard's file again, at its own step.

        TensorBoard's fast reader drops later points of a tag only when one for an earlier step follows, which otherwise
        would not happen until the next evaluation.
        """
        rows = read_metrics(self.model_dir, "eval")
        if not rows:
            # opening the file writes the step from which earlier events are dropped
            self._event_file("eval").write({}, now=time.time())
            return
        last = max(rows, key=lambda row: row["step"])
        self._purge_steps["eval"] = last["step"]
        self._event_file("eval").write({last["step"]: measured(last)}, now=last["time"])

    def _event_file(self, split: MetricsSplit) -> EventFile:
        if split not in self._event_files:
            folder = self.model_dir if split == "train" else storage.join(self.model_dir, "eval")
            self._event_files[split] = EventFile(folder, purge_step=self._purge_steps.get(split))
        return self._event_files[split]


def metrics_path(model_dir: str) -> str:
    """The path of a run's measurements, one JSON object per line."""
    return storage.join(model_dir, "metrics.jsonl")


def read_metrics(model_dir: str, split: MetricsSplit | None = None) -> list[dict[str, Any]]:
    """The rows of `metrics.jsonl`: `step`, `split`, `time` in unix seconds, and the numbers by name, null as nan.

    split: returns only its rows, and skips lines of the other split, of which there may be a thousand times as many,
    without parsing them. The last row of a split and step counts. A half-written last line is skipped, and so is an
    evaluation whose loss is not finite, because it is meaningless. A run without measurements has no rows.
    Raises UserError, naming the line, for any other line that is not such a row.
    """
    path = metrics_path(model_dir)
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for _, row in _parse(_read(path), path, split):
        key = (row["split"], row["step"])
        rows.pop(key, None)
        if split not in (None, row["split"]) or (row["split"] == "eval" and row.get("loss", 0) is None):
            continue
        rows[key] = {name: math.nan if value is None else value for name, value in row.items()}
    return list(rows.values())


def own_evaluations(model_dir: str) -> list[dict[str, Any]]:
    """The rows of evaluations on the run's own images. Evaluations on other images do not compare with other runs'."""
    return [row for row in read_metrics(model_dir, "eval") if not row.get(OTHER_IMAGES)]


def evaluation_at(model_dir: str, step: int) -> dict[str, float]:
    """The finite numbers, by name, of the run's own evaluation at a step; empty if there was none."""
    rows = [row for row in own_evaluations(model_dir) if row["step"] == step]
    values = measured(rows[-1]) if rows else {}
    return {name: value for name, value in values.items() if isinstance(value, int | float) and math.isfinite(value)}


def measured(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a row of `read_metrics` measured, by name."""
    return {name: value for name, value in row.items() if name not in ROW_FIELDS}


def _read(path: str) -> str:
    """The text of the file, empty if there is none. Invalid UTF-8 is escaped, which makes its row invalid JSON."""
    return storage.read_bytes(path).decode(errors="backslashreplace") if storage.exists(path) else ""


def _number(value: Any) -> float:
    return value if isinstance(value, int) else float(value)


def _line(step: int, split: str, numbers: Mapping[str, float], now: float) -> str:
    finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
    return json.dumps({"step": int(step), "split": split, **finite, "time": round(now, 3)}) + "\n"


def _parse(text: str, path: str, split: MetricsSplit | None = None) -> Iterable[tuple[str, dict[str, Any]]]:
    """(line, row) of each line of `split`, or of both; a last line without a line end counts if it is complete."""
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        if split is not None and _OTHER[split] in line and line.endswith("}\n"):
            continue
        try:
            row = checked_json.parse(line)
        except ValueError:
            row = None
        if _is_row(row):
            yield line.rstrip("\n") + "\n", row
        elif number < len(lines) or line.endswith("\n"):
            got = line.strip()[:80] or "an empty line"
            expected = "a JSON object of step, split, time and numbers"
            raise UserError(f"{path} line {number}", got, expected, "Remove that line and run again.")


def _is_row(row: Any) -> TypeGuard[dict[str, Any]]:
    """Whether parsed JSON is a row as `_line` writes it."""
    if not isinstance(row, dict) or type(row.get("step")) is not int or row.get("split") not in ("train", "eval"):
        return False
    numbers = [value for name, value in row.items() if name != "split"]
    return "time" in row and all(value is None or type(value) in (int, float) for value in numbers)


def _mend(path: str, first_dropped: Mapping[str, int]) -> set[str]:
    """Drops each split's rows from its step on, and a half-written last line. Returns the splits that lost rows."""
    text = _read(path)
    lines, losing = [], set()
    for line, row in _parse(text, path):
        if row["step"] < first_dropped.get(row["split"], math.inf):
            lines.append(line)
        else:
            losing.add(row["split"])
    if (kept := "".join(lines)) != text:
        storage.write_text(path, kept)
    return losing
