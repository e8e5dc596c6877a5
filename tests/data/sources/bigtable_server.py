"""A stand-in for Cloud Bigtable on this machine: rows in memory, behind the service's own gRPC protocol.

In a test: `BigtableServer()`. As a program: `python bigtable_server.py PORT`; Google's client uses it if
BIGTABLE_EMULATOR_HOST=127.0.0.1:PORT.
"""

import bisect
import re
import sys
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
from google.cloud.bigtable_admin_v2 import types as admin
from google.cloud.bigtable_v2 import types as data
from google.protobuf import empty_pb2
from google.rpc import status_pb2

Cells = dict[tuple[str, bytes], list[tuple[int, bytes]]]  # newest first
_SPLITS = 8


class Table:
    """Rows by key, and the allowed column families."""

    def __init__(self, families: list[str]) -> None:
        self.families, self.rows = set(families), dict[bytes, Cells]()
        self.keys: list[bytes] = []

    def cells(self, key: bytes) -> Cells:
        """The cells of a row, which is created if it does not exist."""
        if key not in self.rows:
            bisect.insort(self.keys, key)
        return self.rows.setdefault(key, defaultdict(list))

    def drop(self, key: bytes) -> None:
        """Deletes a row."""
        if self.rows.pop(key, None) is not None:
            self.keys.remove(key)


class BigtableServer:
    """The service at `127.0.0.1:port`: reads, mutates and samples rows, creates tables and families, drops rows."""

    def __init__(self, port: int = 0) -> None:
        self.tables: dict[str, Table] = {}
        self.calls: Counter[str] = Counter()
        self.failures: dict[str, deque[tuple[int, grpc.StatusCode, str]]] = defaultdict(deque)
        """Failures of the next calls, by method: (after how many rows, status, message)."""
        self.on_call: Callable[[str, Any], None] = lambda method, request: None
        self._lock = threading.RLock()
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)]
        self._server = grpc.server(futures.ThreadPoolExecutor(32), options=options)
        self._server.add_generic_rpc_handlers((self._data_handlers(), self._admin_handlers()))
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._server.start()

    def make_table(self, name: str, family: str = "tfexample") -> Table:
        """Creates an empty table in instance `i` of project `p`."""
        return self.tables.setdefault(f"projects/p/instances/i/tables/{name}", Table([family]))

    def put(
        self, table: str, key: str | bytes, value: bytes, column: str = "tfexample:example", time: int = 1000
    ) -> None:
        """Writes a cell directly, without the protocol; `time` is in microseconds."""
        family, qualifier = column.split(":")
        with self._lock:
            self.make_table(table).cells(key.encode() if isinstance(key, str) else key)[
                family, qualifier.encode()
            ].insert(0, (time, value))

    def close(self) -> None:
        """Stops the server and closes all connections."""
        self._server.stop(None).wait()

    def wait(self) -> None:
        """Serves until the program is terminated."""
        self._server.wait_for_termination()

    def _data_handlers(self) -> Any:
        methods = {
            "ReadRows": True,
            "SampleRowKeys": True,
            "MutateRows": True,
            "MutateRow": False,
            "PingAndWarm": False,
        }
        handlers = {
            name: _handler(stream)(
                self._serve(name, stream),
                request_deserializer=getattr(data, f"{name}Request").deserialize,
                response_serializer=getattr(data, f"{name}Response").serialize,
            )
            for name, stream in methods.items()
        }
        return grpc.method_handlers_generic_handler("google.bigtable.v2.Bigtable", handlers)

    def _admin_handlers(self) -> Any:
        answers: dict[str, Any] = {"DropRowRange": empty_pb2.Empty.SerializeToString}
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                self._serve(name, False),
                request_deserializer=getattr(admin, f"{name}Request").deserialize,
                response_serializer=answers.get(name, admin.Table.serialize),
            )
            for name in ("CreateTable", "GetTable", "ModifyColumnFamilies", "DropRowRange")
        }
        return grpc.method_handlers_generic_handler("google.bigtable.admin.v2.BigtableTableAdmin", handlers)

    def _serve(self, method: str, stream: bool) -> Callable[[Any, grpc.ServicerContext], Any]:
        work = getattr(self, f"_{method}")

        def prepare(request: Any, context: grpc.ServicerContext) -> tuple[int, grpc.StatusCode, str] | None:
            with self._lock:
                self.calls[method] += 1
                failure = self.failures[method].popleft() if self.failures[method] else None
            self.on_call(method, request)
            if failure and not failure[0]:
                context.abort(failure[1], failure[2])
            name = getattr(request, "table_name", "") or getattr(request, "name", "")
            if method not in ("CreateTable", "PingAndWarm") and name not in self.tables:
                context.abort(grpc.StatusCode.NOT_FOUND, f"table {name!r} not found")
            return failure

        def one(request: Any, context: grpc.ServicerContext) -> Any:
            prepare(request, context)
            with self._lock:
                return work(request, context)

        def many(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            failure = prepare(request, context)
            for count, answer in enumerate(work(request, context)):
                if failure and count >= failure[0]:
                    context.abort(failure[1], failure[2])
                yield answer

        return many if stream else one

    def _ReadRows(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        table, left = self.tables[request.table_name], request.rows_limit or sys.maxsize
        with self._lock:
            keys = _selected(table.keys, request.rows)
        for key in keys:
            chunks = _chunks(key, table.rows.get(key, {}), request.filter)
            if chunks and left:
                left -= 1
                yield data.ReadRowsResponse(chunks=chunks)

    def _SampleRowKeys(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        with self._lock:
            keys = list(self.tables[request.table_name].keys)
        for k in range(1, _SPLITS if len(keys) >= _SPLITS else 1):
            yield data.SampleRowKeysResponse(row_key=keys[k * len(keys) // _SPLITS], offset_bytes=k)
        yield data.SampleRowKeysResponse(row_key=b"", offset_bytes=_SPLITS)

    def _MutateRows(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        with self._lock:
            statuses = [self._mutate(request.table_name, entry) for entry in request.entries]
        entries = [data.MutateRowsResponse.Entry(index=i, status=status) for i, status in enumerate(statuses)]
        yield data.MutateRowsResponse(entries=entries)

    def _MutateRow(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        status = self._mutate(request.table_name, request)
        if status.code:
            context.abort(grpc.StatusCode.NOT_FOUND, status.message)
        return data.MutateRowResponse()

    def _mutate(self, name: str, entry: Any) -> Any:
        table = self.tables[name]
        for mutation in entry.mutations:
            cell = mutation.set_cell
            if cell.family_name not in table.families:
                return status_pb2.Status(code=5, message=f"unknown family {cell.family_name!r}")
            versions = table.cells(entry.row_key)[cell.family_name, cell.column_qualifier]
            versions.insert(0, (cell.timestamp_micros, cell.value))
            versions.sort(key=lambda version: -version[0])
        return status_pb2.Status()

    def _PingAndWarm(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return data.PingAndWarmResponse()

    def _CreateTable(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        name = f"{request.parent}/tables/{request.table_id}"
        if name in self.tables:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, f"table {name!r} already exists")
        self.tables[name] = Table(list(request.table.column_families))
        return self._describe(name)

    def _GetTable(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return self._describe(request.name)

    def _ModifyColumnFamilies(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self.tables[request.name].families.update(change.id for change in request.modifications)
        return self._describe(request.name)

    def _DropRowRange(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        table = self.tables[request.name]
        for key in [key for key in table.keys if key.startswith(request.row_key_prefix)]:
            table.drop(key)
        return empty_pb2.Empty()

    def _describe(self, name: str) -> Any:
        families = {family: admin.ColumnFamily() for family in self.tables[name].families}
        return admin.Table(name=name, column_families=families)


def _handler(stream: bool) -> Any:
    return grpc.unary_stream_rpc_method_handler if stream else grpc.unary_unary_rpc_method_handler


def _selected(keys: list[bytes], rows: Any) -> list[bytes]:
    """The keys that a request asks for, sorted."""
    if not rows.row_keys and not rows.row_ranges:
        return list(keys)
    found = {*rows.row_keys}
    for part in rows.row_ranges:
        start, end = part._pb.WhichOneof("start_key"), part._pb.WhichOneof("end_key")
        low = bisect.bisect_left(keys, part.start_key_closed) if start != "start_key_open" else None
        low = bisect.bisect_right(keys, part.start_key_open) if low is None else low
        high = bisect.bisect_right(keys, part.end_key_closed) if end == "end_key_closed" else len(keys)
        high = bisect.bisect_left(keys, part.end_key_open) if end == "end_key_open" else high
        found.update(keys[low:high])
    return sorted(found)


def _chunks(key: bytes, cells: Cells, row_filter: Any) -> list[Any]:
    """The cells of a row that pass the filter, as protocol chunks."""
    chain = list(row_filter.chain.filters) or [row_filter]
    kept, strip = [(column, cell) for column in sorted(cells) for cell in cells[column]], False
    for one in chain:
        kind = one._pb.WhichOneof("filter")
        if kind == "family_name_regex_filter":
            kept = [cell for cell in kept if re.fullmatch(one.family_name_regex_filter, cell[0][0])]
        elif kind == "column_qualifier_regex_filter":
            kept = [cell for cell in kept if re.fullmatch(one.column_qualifier_regex_filter, cell[0][1])]
        elif kind == "cells_per_column_limit_filter":
            seen: Counter[tuple[str, bytes]] = Counter()
            kept = [cell for cell in kept if not seen.update([cell[0]]) and seen[cell[0]] <= one.cells_per_column_limit_filter]  # fmt: skip  # noqa: E501
        elif kind == "cells_per_row_limit_filter":
            kept = kept[: one.cells_per_row_limit_filter]
        elif kind == "strip_value_transformer":
            strip = True
        elif kind is not None:
            raise NotImplementedError(kind)
    return [
        data.ReadRowsResponse.CellChunk(
            row_key=key, family_name=family, qualifier=qualifier, timestamp_micros=time,
            value=b"" if strip else value, commit_row=i == len(kept) - 1,
        )
        for i, ((family, qualifier), (time, value)) in enumerate(kept)
    ]  # fmt: skip


if __name__ == "__main__":
    server = BigtableServer(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    print(server.port, flush=True)
    server.wait()
