"""Options from YAML files, override strings and flags: they give a config that can be saved, or one error."""

import contextlib
import json
import tempfile
from pathlib import Path

from resnet_tpu import resnet_main
from resnet_tpu.data.split import parse_ratios
from resnet_tpu.errors import UserError
from resnet_tpu.models.option_checks import check_options
from resnet_tpu.options.config import OPTIONS, Config, epoch_boundaries
from resnet_tpu.options.overrides import Layer, merge, parse_overrides, read_yaml
from resnet_tpu.performance.plan.prices import read_prices
from resnet_tpu.pruning.methods import find_method

_FOLDER = tempfile.TemporaryDirectory()
_FILE = Path(_FOLDER.name) / "options.yaml"
_NAMES = list(OPTIONS)


def one_input(data: bytes) -> None:
    """`data` as a YAML file, an override string, a flag, and a value of the option that its first byte selects."""
    text = data.decode("utf-8", "replace")
    if "://" in text or "/" in text:  # could be a file of this machine, or a bucket
        return
    _FILE.write_bytes(data)
    name, value = _NAMES[data[0] % len(_NAMES)] if data else "seed", text[1:]
    for values in (
        lambda: read_yaml(str(_FILE)),
        lambda: parse_overrides(text),
        lambda: {name: value},
    ):
        try:
            config = merge(Config(), [Layer("fuzz", values())])
            check_options(config)
            assert Config().replace(**json.loads(json.dumps(config.flat()))) == config
        except UserError as error:
            assert len(str(error)) < 5_000
    for parse in (epoch_boundaries, parse_ratios, find_method, read_prices):
        with contextlib.suppress(UserError):
            parse(text)
    with contextlib.suppress(UserError):
        resnet_main.parse([f"--hparams={text}", "--mode=train"])
