"""The record of a measurement."""

import json
from pathlib import Path

from resnet_tpu.performance.bench import record
from resnet_tpu.system.machine import num_cores


def test_a_record_says_where_the_figures_come_from(tmp_path: Path) -> None:
    record.write(str(tmp_path / "new" / "r.json"), ["resnet-tpu", "bench", "my photos"], {"speed": 1})
    read = json.loads((tmp_path / "new" / "r.json").read_text())
    assert read["command"] == "resnet-tpu bench 'my photos'"
    assert read["figures"] == {"speed": 1}
    assert read["machine"]["cores"] == num_cores()
    assert {"jax", "grain", "numpy", "resnet-tpu"} <= read["machine"]["versions"].keys()
