"""Files on the local disk and in buckets behind one interface. A path is a string, local or `gs://...`."""

from resnet_tpu.storage.files import (
    BLOCK,
    Entry,
    check_reachable,
    entries_in,
    exists,
    file_state,
    files_below,
    is_dir,
    list_dir,
    move,
    open_read,
    read_bytes,
    read_names,
    read_range,
    read_ranges,
    read_text,
    remove,
    remove_dir,
    states_in,
)
from resnet_tpu.storage.paths import absolute, cache_dir, is_remote, join, parent_of
from resnet_tpu.storage.writing import (
    append_text,
    check_file,
    check_room,
    check_writable,
    folder_aside,
    make_dir,
    reserved,
    write_bytes,
    write_text,
    write_whole,
)

__all__ = [
    "BLOCK", "Entry", "absolute", "append_text", "cache_dir", "check_file", "check_reachable", "check_room",
    "check_writable", "entries_in", "exists", "file_state", "files_below", "folder_aside", "is_dir", "is_remote",
    "join", "list_dir", "make_dir", "move", "open_read", "parent_of", "read_bytes", "read_names",
    "read_range", "read_ranges", "read_text", "remove", "remove_dir", "reserved", "states_in", "write_bytes",
    "write_text", "write_whole",
]  # fmt: skip
