"""What processes agree on before they work together."""

from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from resnet_tpu.data.sources.image_files import FileSource
from resnet_tpu.options.config import Config
from resnet_tpu.training.agreement import agree_on


@pytest.mark.parametrize("failing", ["hosts.wait_for_all", "storage.exists", "hosts.agree"])
def test_the_mark_by_which_processes_find_each_other_is_removed_after_a_failure(
    failing: str, tiny: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = []

    def fail(*_: object) -> None:
        marks.extend(tmp_path.glob(".hosts-*"))
        raise OSError("the network is gone")

    alone = Mock(index=0, count=1, exchange=lambda text: [text])
    monkeypatch.setattr("resnet_tpu.training.agreement.hosts.process_group", lambda: alone)
    monkeypatch.setattr(f"resnet_tpu.training.agreement.{failing}", fail)
    with pytest.raises(OSError, match="the network is gone"):
        agree_on(tiny(tmp_path), {})
    assert len(marks) == 1
    assert not list(tmp_path.iterdir())


def test_a_file_name_that_is_no_text_is_agreed_on_too(
    coloured_photos: Path, tiny: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = FileSource([str(coloured_photos)], ())
    monkeypatch.setattr(source, "where", lambda _: "a/\udcff.jpg")
    exchanged = []
    alone = Mock(index=0, count=1, exchange=lambda text: exchanged.append(text) or [text])
    monkeypatch.setattr("resnet_tpu.training.agreement.hosts.process_group", lambda: alone)
    agree_on(tiny(tmp_path), {"image": source}, writes=False)
    assert exchanged
