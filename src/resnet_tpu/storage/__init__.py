"""Files on the local disk and in buckets behind one interface. A path is a string, local or `gs://...`."""

from resnet_tpu.storage.files import (
    BLOCK,
    Entry,
    FileState,
    bucket_entries,
    check_reachable,
    exists,
    file_state,
    files_below,
    is_dir,
    is_stream,
    list_dir,
    move,
    open_read,
    read_bytes,
    read_image,
    read_names,
    read_range,
    read_ranges,
    read_text,
    remove,
    remove_dir,
)
from resnet_tpu.storage.paths import absolute, cache_dir, is_remote, join, parent_of, resolved
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
    "BLOCK", "Entry", "FileState", "absolute", "append_text", "bucket_entries", "cache_dir", "check_file",
    "check_reachable", "check_room", "check_writable", "exists", "file_state", "files_below", "folder_aside",
    "is_dir", "is_remote", "is_stream", "join", "list_dir", "make_dir", "move", "open_read", "parent_of",
    "read_bytes", "read_image", "read_names", "read_range", "read_ranges", "read_text", "remove", "remove_dir",
    "reserved", "resolved", "write_bytes", "write_text", "write_whole",
]  # fmt: skip
