"""Chooses the order of training: the one that `data_order` names, or one that suits where the data are stored."""

import logging
from typing import Literal

from resnet_tpu.data.loader.ahead import MOST_BYTES
from resnet_tpu.data.loader.piece_order import PieceOrder
from resnet_tpu.data.records.pieces import PIECE_BYTES
from resnet_tpu.data.sources.source import Source
from resnet_tpu.data.sources.tfrecords import RecordSource, RemoteRecordSource
from resnet_tpu.errors import UserError
from resnet_tpu.options.config import DataConfig
from resnet_tpu.system.machine import free_memory

log = logging.getLogger(__name__)

_GB = 1e9


def choose_order(source: Source, data: DataConfig, *, rows: int) -> Literal["records", "pieces"]:
    """The order that `data.data_order` names; for `auto`, the one that suits the source and this machine's memory.

    rows: rows of a batch on this host.
    """
    if data.data_order != "auto":
        return data.data_order
    if not isinstance(source, RemoteRecordSource) or source.is_kept or data.cache != "none":
        return "records"
    needed, free = _bytes_waiting(source, rows), free_memory()
    if needed > free // 2:
        log.warning(
            "data_order=records: every image is read with its own request. data_order=pieces would need %.1f GB for "
            "the %d images of a batch on this host, where %.1f GB of memory are free. More hosts need less each.",
            needed / _GB, rows, free / _GB,
        )  # fmt: skip
        return "records"
    log.info(
        "data_order=pieces: the data are not kept, so each epoch reads them in pieces of 4 MB, which wait in "
        "%.1f GB of memory.", needed / _GB,
    )  # fmt: skip
    return "pieces"


def _bytes_waiting(source: RecordSource, rows: int) -> int:
    """About how many bytes wait to be used: half a piece for each row on average, plus what is read ahead."""
    return min(rows * PIECE_BYTES // 2 + MOST_BYTES, source.num_bytes)


def piece_order(source: Source, data: DataConfig, *, batch_size: int, seed: int) -> PieceOrder:
    """The order by pieces. Raises UserError for data that have no pieces."""
    records = require_pieces(source, data)
    return PieceOrder(records.first_records(), num_records=len(records), batch_size=batch_size, seed=seed)


def require_pieces(source: Source, data: DataConfig) -> RecordSource:
    """`source`, if it has pieces. Raises UserError for one that has none."""
    if isinstance(source, RecordSource):
        return source
    do = "Leave data_order out: other data are read in any order at the same cost."
    raise UserError("data_order", f"pieces for {data.location or 'no data'}", "TFRecords", do)
