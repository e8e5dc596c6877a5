"""The options of a DAWNBench job, and the file that records them. Quick to import."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from resnet_tpu import storage
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import OF_ONE_START, Config
from resnet_tpu.options.fields import FilePath, option
from resnet_tpu.options.overrides import Layer
from resnet_tpu.storage import checked_json

_FILE = "dawnbench.json"
_OF_A_PROCESS = ("model_dir", "mode", *OF_ONE_START)


@dataclass(frozen=True)
class DawnbenchOptions:
    """The job's options in addition to those of training."""

    use_fast_lr: bool = option(
        False,
        "Train 50 epochs at most, on growing images: to epoch 18 at 128 px, to 41 at 224, to 50 at 288; with learning "
        "rates to match.",
    )
    data_dir_small: FilePath = option(
        "", "The same images stored at about 160 px, for the first 18 epochs of use_fast_lr. Default: data_dir."
    )


def read_job(model_dir: str) -> Layer | None:
    """The options with which the job in `model_dir` was last started; None without a job. Raises UserError."""
    path = storage.join(model_dir, _FILE)
    if not model_dir or not storage.exists(path):
        return None
    try:
        return Layer(path, checked_json.as_kind(dict[str, Any], checked_json.parse(storage.read_text(path)), "job"))
    except ValueError as error:
        raise UserError(path, error, "what `dawnbench` wrote", "Remove it, and give all options again.") from None


def write_job(config: Config, options: DawnbenchOptions) -> None:
    """Writes the file that `read_job` reads: all options but `model_dir` and `mode`."""
    values = {name: value for name, value in config.flat().items() if name not in _OF_A_PROCESS}
    text = json.dumps({**dataclasses.asdict(options), **values}, indent=2)
    storage.make_dir(config.run.model_dir)
    storage.write_text(storage.join(config.run.model_dir, _FILE), text + "\n")
