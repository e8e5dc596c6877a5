"""Files of torch.save: read or refused, with no more bytes in arrays than in the file."""

import contextlib
import pickle
import tempfile
import zipfile
from pathlib import Path

from resnet_tpu.checkpoints.torch_files import options_of, read_state_dict
from resnet_tpu.errors import UserError

_FOLDER = tempfile.TemporaryDirectory()
_FILE = Path(_FOLDER.name) / "weights.pth"
_STORAGES = {"0": bytes(range(96)), "1": bytes(8)}
_HEAD = b"".join(pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}))
_TAIL = pickle.dumps(["0"], 2) + (24).to_bytes(8, "little") + _STORAGES["0"]


def one_input(data: bytes) -> None:
    """`data` as a file, as the pickle in an archive, and as the pickle in the older format."""
    _FILE.write_bytes(data)
    _read()
    with zipfile.ZipFile(_FILE, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        for key, content in _STORAGES.items():
            archive.writestr(f"archive/data/{key}", content)
    _read()
    _FILE.write_bytes(_HEAD + data + _TAIL)
    _read()


def _read() -> None:
    with contextlib.suppress(UserError):
        arrays = read_state_dict(str(_FILE))
        assert all(array.nbytes <= _FILE.stat().st_size for array in arrays.values())
        options_of(arrays, str(_FILE))
