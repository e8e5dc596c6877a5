"""Checks, before the first step, that all processes have the same options, data and model_dir."""

import hashlib
import uuid
from collections.abc import Mapping

from resnet_tpu import __version__, storage
from resnet_tpu.checkpoints import folders
from resnet_tpu.data.sources.source import Source
from resnet_tpu.options.config import Config
from resnet_tpu.parallel import hosts

_OWN = ("process_id", "data_dir", "num_parallel_calls", "input_workers", "cache_memory", "cache_folder")
"""Options that may differ between hosts without changing any result."""

_MOST_LOOKED_AT = 10_000


def agree_on(
    config: Config, sources: Mapping[str, Source | None], *, trains: bool = False, writes: bool = True
) -> None:
    """Raises UserError in every process unless all have the same options, data and model_dir.

    sources: the data by their names in messages, such as the split. Data count as the same if the number of examples,
    the files of a sample of the examples, and the classes are the same.
    `trains`: whether the processes resume from a checkpoint, so that all must see the same newest one; other work may
    run while training adds checkpoints. `writes`: False for work that leaves nothing in model_dir.
    """
    if hosts.process_group() is None:
        return
    values = {name: value for name, value in config.flat().items() if name not in _OWN}
    values["version of resnet_tpu"] = __version__
    for name, source in sources.items():
        if source is not None:
            values |= _describe(name, source, config.data.location)
    if trains:
        values["newest checkpoint"] = max(folders.steps_of_run(config.run.model_dir), default="none")
    mark = _choose_mark(config.run.model_dir) if writes else None
    try:
        if mark and not _sees_mark(mark, config.run.model_dir):
            values["model_dir"] = f"{config.run.model_dir} that process 0 does not write to"
        hosts.agree(values, "Start all with the same options and data, and a model_dir that all share.")
    finally:
        if mark and hosts.is_first():
            storage.remove(mark)


def _describe(name: str, source: Source, location: str) -> dict[str, object]:
    step = max(1, len(source) // _MOST_LOOKED_AT)
    where = "\n".join(source.where(i).replace(location, "") for i in range(0, len(source), step))
    names = source.class_names
    return {
        f"{name} examples": len(source),
        f"{name} files (checksum)": _checksum(where),
        f"{name} classes": f"{source.num_classes} ({_checksum(str(names))})",
    }


def _choose_mark(model_dir: str) -> str:
    """The path of a marker file in this process's model_dir; its name is the same in all processes."""
    return storage.join(model_dir, hosts.from_first(lambda: f".hosts-{uuid.uuid4().hex}"))


def _sees_mark(mark: str, model_dir: str) -> bool:
    """Whether this process sees the marker file that process 0 writes into its model_dir."""
    if hosts.is_first():
        storage.make_dir(model_dir)
        storage.write_text(mark, "")
    hosts.wait_for_all()
    return storage.exists(mark)


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:12]
