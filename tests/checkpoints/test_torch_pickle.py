"""Files of torch.save that lie about arrays, hide code or are damaged, in every way. Written here without PyTorch."""

import io
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from resnet_tpu.checkpoints.torch_pickle import read_pickle
from resnet_tpu.errors import UserError

Save = Callable[[Path, Any, Mapping[str, np.ndarray]], None]
_KINDS = {"float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long",
          "int32": "Int", "int16": "Short", "int8": "Char", "uint8": "Byte", "bool": "Bool"}  # fmt: skip


class Global(NamedTuple):
    """A global name that the pickle imports."""

    module: str
    name: str


class Call(NamedTuple):
    """A call of a global, by REDUCE or NEWOBJ."""

    function: Any
    arguments: Any
    opcode: bytes = pickle.REDUCE


class Build(NamedTuple):
    """An object whose state is set."""

    target: Any
    state: Any


class Reference(NamedTuple):
    """A persistent id."""

    pid: Any


class Raw(NamedTuple):
    """Raw opcodes."""

    opcodes: bytes


def opcodes_of(value: Any) -> bytes:
    """The opcodes of a protocol 2 pickle that build `value`."""
    match value:
        case Raw(opcodes):
            return opcodes
        case Global(module, name):
            return b"c" + module.encode() + b"\n" + name.encode() + b"\n"
        case Call(function, arguments, opcode):
            return opcodes_of(function) + opcodes_of(arguments) + opcode
        case Build(target, state):
            return opcodes_of(target) + opcodes_of(state) + pickle.BUILD
        case Reference(pid):
            return opcodes_of(pid) + pickle.BINPERSID
        case tuple() | list():
            end = pickle.TUPLE if isinstance(value, tuple) else pickle.LIST
            return pickle.MARK + b"".join(map(opcodes_of, value)) + end
        case dict():
            pairs = b"".join(opcodes_of(key) + opcodes_of(item) for key, item in value.items())
            return pickle.EMPTY_DICT + pickle.MARK + pairs + pickle.SETITEMS
    return pickle.dumps(value, 2)[2:-1]


def dump(value: Any) -> bytes:
    """A complete pickle of `value`."""
    return b"\x80\x02" + opcodes_of(value) + b"."


def tensor(key: str, storage: np.ndarray, shape: Any = None, strides: Any = None, offset: Any = 0, **odd: Any) -> Call:
    """What torch.save writes for a tensor on `storage`, by default on all of it. `odd`: another kind, size or view."""
    shape = storage.shape if shape is None else shape
    strides = tuple(step // storage.itemsize for step in storage.strides) if strides is None else strides
    kind = odd.get("kind", Global("torch", f"{_KINDS[storage.dtype.name]}Storage"))
    pid = ("storage", kind, key, "cpu", odd.get("size", storage.size), *odd.get("view", ()))
    empty = Call(Global("collections", "OrderedDict"), ())
    return Call(Global("torch._utils", "_rebuild_tensor_v2"), (Reference(pid), offset, shape, strides, False, empty))


def save_zip(path: Path, value: Any, storages: Mapping[str, np.ndarray], *, order: bytes = b"little") -> None:
    """Writes the format used since PyTorch 1.6."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", dump(value))
        archive.writestr("archive/byteorder", order)
        for key, storage in storages.items():
            archive.writestr(f"archive/data/{key}", storage.tobytes())
        archive.writestr("archive/version", b"3\n")


_HEAD = (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True})


def save_stream(path: Path, value: Any, storages: Mapping[str, np.ndarray]) -> None:
    """Writes the format used before."""
    data = [struct.pack("<q", storage.size) + storage.tobytes() for storage in storages.values()]
    path.write_bytes(b"".join([*map(dump, _HEAD), dump(value), dump(list(storages)), *data]))


def save_whole(path: Path, value: Any, storages: Mapping[str, np.ndarray]) -> None:
    """Writes only a pickle, which torch.save never does."""
    path.write_bytes(dump(value))


both = pytest.mark.parametrize("save", [save_zip, save_stream])
# what costs seconds, and is the same code for both
quick = pytest.mark.parametrize("save", [save_zip, pytest.param(save_stream, marks=pytest.mark.long)])
some = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@both
@pytest.mark.parametrize("name", _KINDS)
def test_every_type(save: Save, name: str, tmp_path: Path) -> None:
    array = np.arange(12).reshape(3, 4).astype(jnp.dtype(name))
    content = {"a": tensor("0", array), "scalar": tensor("1", array[0, 1:2], (), ())}
    save(tmp_path / "w.pth", content, {"0": array, "1": array[0, 1:2]})
    found = read_pickle(str(tmp_path / "w.pth"))
    assert found["a"].dtype == array.dtype
    np.testing.assert_array_equal(found["a"], array)
    assert found["scalar"].shape == ()
    assert found["scalar"] == array[0, 1]


@both
def test_parts_of_one_storage(save: Save, tmp_path: Path) -> None:
    content = {
        "whole": tensor("0", some),
        "transposed": tensor("0", some, (4, 3, 2), (1, 4, 12)),
        "row": tensor("0", some, (4,), (1,), 16),
        "every second": tensor("0", some, (2, 3, 2), (12, 4, 2), 1),
        "none": tensor("0", some, (0, 5), (5, 1), 0),
    }  # fmt: skip
    save(tmp_path / "w.pth", content, {"0": some})
    found = read_pickle(str(tmp_path / "w.pth"))
    expected = {"whole": some, "transposed": some.T, "row": some[1, 1], "every second": some[:, :, 1::2]}
    expected["none"] = np.zeros((0, 5))
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
    assert not any(array.flags.writeable for name, array in found.items() if name != "none")


def test_big_endian_archive(tmp_path: Path) -> None:
    halves = some.astype(jnp.bfloat16)
    swapped = {"0": some.byteswap(), "1": halves.view(np.uint16).byteswap()}
    save_zip(tmp_path / "w.pth", {"a": tensor("0", some), "b": tensor("1", halves)}, swapped, order=b"big")
    found = read_pickle(str(tmp_path / "w.pth"))
    np.testing.assert_array_equal(found["a"], some)
    np.testing.assert_array_equal(found["b"], halves)


@both
def test_a_training_s_checkpoint(save: Save, tmp_path: Path) -> None:
    """Only the weights are read; of two sets, the moving average."""
    settings = Build(Call(Global("argparse", "Namespace"), (), pickle.NEWOBJ), {"lr": 0.1})
    content: dict[str, Any] = {
        "epoch": 90,
        "args": settings,
        "lr_scheduler": {"milestones": Call(Global("collections", "Counter"), ({30: 1, 60: 1},))},
        "classes": [{"a"}, frozenset("a"), 1j, bytearray(b"a")],
        "kinds": [Global("torch", kind) for kind in _KINDS],
        "output": Call(Global("pathlib._local", "PosixPath"), ("a",)),
        "input": Call(Global("pathlib", "WindowsPath"), ("a",)),
        "best": {(1, 2): 0.7, None: 0.5, True: 0.2},
        "optimizer": {"state": {0: {"momentum_buffer": tensor("1", some * 3)}}},
        "model": {"a": tensor("0", some), "n": tensor("2", some[0])},
    }  # fmt: skip
    storages = {"1": some * 3, "0": some, "2": some[0]}
    save(tmp_path / "w.pth", content | {"model_ema": None}, storages)
    found = read_pickle(str(tmp_path / "w.pth"))
    assert list(found) == ["a", "n"]
    np.testing.assert_array_equal(found["a"], some)
    save(tmp_path / "w.pth", content | {"model_ema": {"a": tensor("3", some + 1)}}, storages | {"3": some + 1})
    np.testing.assert_array_equal(read_pickle(str(tmp_path / "w.pth"))["a"], some + 1)


@both
def test_formats_of_pytorch_0_are_read(save: Save, tmp_path: Path) -> None:
    """What PyTorch 0.1 to 0.4 wrote, also under Python 2; torchvision's first files are like that."""
    storage = Reference(
        ("storage", Global("torch", "FloatStorage"), "0", "cuda:0", 24, None)[: 6 if save is save_stream else 5]
    )
    plain = Call(Global("torch._utils", "_rebuild_tensor"), (storage, 0, (2, 3, 4), (12, 4, 1)))
    parameter = Build(Call(Global("torch.nn.parameter", "Parameter"), (plain,), pickle.NEWOBJ), (True, False, {}))
    newer = Call(Global("torch._utils", "_rebuild_parameter"), (plain, True, {}))
    short = Raw(b"U\x05short")  # a Python 2 string
    with_state = Call(Global("torch._utils", "_rebuild_parameter_with_state"), (plain, True, {}, {"tag": "a"}))
    pairs = [["old", parameter], ["new", newer], ["with an attribute", with_state], [short, plain]]
    content = Build(Call(Global("collections", "OrderedDict"), (pairs,)), {"_metadata": {"": {"version": 1}}})
    save(tmp_path / "w.pth", content, {"0": some})
    found = read_pickle(str(tmp_path / "w.pth"))
    assert list(found) == ["old", "new", "with an attribute", "short"]
    for array in found.values():
        np.testing.assert_array_equal(array, some)


def _evils(marker: Path) -> dict[str, tuple[str, Any]]:
    """Ways to run a command when a pickle is loaded: the forbidden name, and what to save."""
    command = f"touch {marker}"
    system, popen = Global("os", "system"), Global("subprocess", "Popen")
    run = Call(system, (command,))
    code = f"open({str(marker)!r}, 'w')"
    rebuild = Global("torch._utils", "_rebuild_tensor_v2")
    attribute = Raw(b"\x8c\x0ctorch._utils\x8c\x1e_rebuild_tensor_v2.__globals__\x93")
    graph = Global("torch.fx.graph_module", "reduce_graph_module")
    model = Global("torchvision.models.resnet", "ResNet")
    return {
        "call": ("os.system", run),
        "as a weight": ("os.system", {"a": tensor("0", some), "b": run}),
        "inside a tensor": ("os.system", Call(rebuild, (run, 0, (1,), (1,), False, {}))),
        "as a storage": ("os.system", {"a": tensor("0", some, kind=run)}),
        "in an id": ("os.system", Reference(("storage", run, "0", "cpu", 1))),
        "as a key": ("os.system", {"a": Call(Global("collections", "OrderedDict"), ([[run, 1]],))}),
        "by another module": ("posix.system", Call(Global("posix", "system"), (command,))),
        "eval": ("builtins.eval", Call(Global("builtins", "eval"), (code,))),
        "exec of Python 2": ("__builtin__.execfile", Call(Global("__builtin__", "execfile"), (command,))),
        "new object": ("subprocess.Popen", Call(popen, (["touch", str(marker)],), pickle.NEWOBJ)),
        "instance": ("os.system", Raw(b"(" + opcodes_of(command) + b"ios\nsystem\n")),
        "object": ("subprocess.Popen", Raw(b"(" + opcodes_of(popen) + opcodes_of(["touch", str(marker)]) + b"o")),
        "name from the stack": ("os.system", Raw(b"\x8c\x02os\x8c\x06system\x93" + opcodes_of((command,)) + b"R")),
        "name with dots": ("torch.os.system", Raw(b"\x8c\x05torch\x8c\x09os.system\x93")),
        "attribute of ours": (f"{rebuild.module}.{rebuild.name}.__globals__", attribute),
        "getattr": ("builtins.getattr", Call(Global("builtins", "getattr"), (Global("os", "path"), "os"))),
        "torch.load": ("torch.load", Call(Global("torch", "load"), (str(marker),))),
        "torch.hub": ("torch.hub.load", Call(Global("torch.hub", "load"), ("a", "b"))),
        "torch's own exec": (f"{graph.module}.{graph.name}", Call(graph, ({}, code))),
        "whole model": ("torchvision.models.resnet.ResNet", Call(model, (), pickle.NEWOBJ)),
        "set state": ("os.system", Build(tensor("0", some), run)),
        "not called": ("os.system", {"a": tensor("0", some), "b": system}),
    }


@pytest.mark.parametrize("save", [save_zip, save_stream, save_whole])
@pytest.mark.parametrize("name", _evils(Path()))
def test_nothing_in_a_file_is_run(save: Save, name: str, tmp_path: Path) -> None:
    forbidden, evil = _evils(tmp_path / "marker")[name]
    save(tmp_path / "w.pth", evil, {"0": some})
    with pytest.raises(UserError) as caught:
        read_pickle(str(tmp_path / "w.pth"))
    assert f"asks to run {forbidden}," in str(caught.value)
    assert "Nothing in it was run." in str(caught.value)
    assert str(tmp_path / "w.pth") in str(caught.value)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("name", ["call", "inside a tensor", "instance", "object", "name from the stack"])
def test_the_attacks_work_on_plain_pickle(name: str, tmp_path: Path) -> None:
    """The attacks of the test above work when the pickle is loaded without protection."""
    _, evil = _evils(tmp_path / "marker")[name]
    data = dump(evil).replace(b"ctorch._utils\n_rebuild_tensor_v2\n", b"cbuiltins\nprint\n")
    made = pickle.loads(data)
    if hasattr(made, "wait"):
        made.wait()
    assert (tmp_path / "marker").exists()


@both
@pytest.mark.parametrize(
    "target",
    [
        Global("torch._utils", "_rebuild_tensor_v2"), Global("collections", "OrderedDict"),
        Global("torch", "FloatStorage"), Global("torch.nn.parameter", "Parameter"), Global("argparse", "Namespace"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["_function", "dtype", "__new__", "__call__", "__setstate__", "__class__"])
def test_our_stand_ins_cannot_be_changed(save: Save, target: Global, name: str, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.pth", tmp_path / "bad.pth"
    save(good, {"a": tensor("0", some)}, {"0": some})
    for state in ({name: 1}, (None, {name: Global("argparse", "Namespace")})):
        save(bad, {"a": tensor("0", some), "b": Build(target, state)}, {"0": some})
        with pytest.raises(UserError, match=r"a whole, undamaged torch\.save file"):
            read_pickle(str(bad))
    np.testing.assert_array_equal(read_pickle(str(good))["a"], some)


_ODD = {
    "no arguments": Call(Global("torch._utils", "_rebuild_tensor_v2"), ()),
    "no storage": Call(Global("torch._utils", "_rebuild_tensor_v2"), ("0", 0, (1,), (1,), False, {})),
    "beyond the end": tensor("0", some, (5, 3, 4)),
    "offset beyond the end": tensor("0", some, offset=1),
    "offset before the start": tensor("0", some, (1,), (1,), -1),
    "backwards": tensor("0", some, (4,), (-1,), 3),
    "negative size": tensor("0", some, (-2, -3, 4)),
    "fewer strides": tensor("0", some, (2, 3, 4), (12,)),
    "one element repeated": tensor("0", some, (2**40,), (0,)),
    "product beyond 64 bits": tensor("0", some, (2**33, 2**33), (0, 0)),
    "too many dimensions": tensor("0", some, (1,) * 200, (1,) * 200),
    "shape of text": tensor("0", some, "abc", (1, 1, 1)),
    "shape of numbers with points": tensor("0", some, (2.0, 3.0), (3, 1)),
    "offset of text": tensor("0", some, offset="0"),
    "storage not there": tensor("9", some),
    "storage by a number": tensor(0, some),  # pyright: ignore[reportArgumentType]
    "storage by a list": tensor([], some),  # pyright: ignore[reportArgumentType]
    "storage elsewhere": tensor("../data.pkl", some),
    "storage of another size": tensor("0", some, size=25),
    "storage of a huge size": tensor("0", some, (1,), (1,), size=2**60),
    "storage of negative size": tensor("0", some, (1,), (1,), size=-24),
    "storage of an unknown type": tensor("0", some, kind="FloatStorage"),
    "storage as a part": tensor("0", some, view=(("1", 0, 4),)),
    "other reference": Reference(("module", 1, 2, 3, 4)),
    "short reference": Reference(("storage",)),
    "huge memo": Raw(b"r\xff\xff\xff\x7f".join([b"N", b""])),
    "unhashable key": Raw(b"}]Ns"),
    "deep nesting": Raw(b"(" * 5000 + b"t" * 5000),
}  # fmt: skip


@both
@pytest.mark.parametrize("name", _ODD)
def test_odd_descriptions(save: Save, name: str, tmp_path: Path) -> None:
    save(tmp_path / "w.pth", {"a": _ODD[name]}, {"0": some})
    with pytest.raises(UserError, match=r"w\.pth: got .+, expected "):
        read_pickle(str(tmp_path / "w.pth"))


_DEEP = 100_000
_NESTED = Raw(b")" + b"\x85" * _DEEP)  # (((...),),)
_DOUBLED = Raw(b")" + b"2\x86" * 60)  # t = (t, t), again and again: 2^60 elements for code that visits all
_ORDERED = Global("collections", "OrderedDict")


def _item(key: Any) -> Raw:
    """The opcodes of a dictionary with this key."""
    return Raw(b"}" + opcodes_of(key) + b"Ns")


_HOSTILE = {
    "element of a set": Raw(b"\x8f(" + _DOUBLED.opcodes + b"\x90"),
    "element of a frozen set": Raw(b"(" + _DOUBLED.opcodes + b"\x91"),
    "ordered dictionary of a dictionary": Call(_ORDERED, ({"a": 1},)),
    "storage named by doubled tuples": tensor(_DOUBLED, some),  # pyright: ignore[reportArgumentType]
    "kind of doubled tuples": tensor("0", some, kind=_DOUBLED),
    "reference of doubled tuples": Reference(_DOUBLED),
    "shape of doubled tuples": tensor("0", some, _DOUBLED, (1, 1)),
    "shape of keys": tensor("0", some, {2: 0, 3: 0, 4: 0}, (12, 4, 1)),
    "argument of a tensor nested deeply": tensor("0", some, (_NESTED,), (1,)),
    "module nested deeply": Raw(_NESTED.opcodes + b"\x8c\x01a\x93"),
    "call of what is nested deeply": Raw(_NESTED.opcodes + b")R"),
    "state for what is nested deeply": Build(_NESTED, {}),
    "number of a megabyte": Raw(b"\x8b" + struct.pack("<i", 1_000_000) + bytes(999_999) + b"\1"),
    "number beyond the file": Raw(b"\x8b\xff\xff\xff\x7f"),
    "text beyond the file": Raw(b"X\xff\xff\xff\xff"),
    "text of 2^63 bytes": Raw(b"\x8d" + b"\xff" * 7 + b"\x7f"),
    "bytes of 2^63 bytes": Raw(b"\x8e" + b"\xff" * 7 + b"\x7f"),
    "dimensions of thousands of bits": tensor("0", some, (2**2000,) * 60, (0,) * 60),
    "dimensions of 64 bits": tensor("0", some, (2**63,), (0,)),
    "dictionary copied again and again": Raw(
        b"(" + opcodes_of([["a", 1]] * 2000) + b"q\0" + (opcodes_of(_ORDERED) + b"h\0\x85R") * 3000 + b"l"
    ),
    "item for a tuple": Raw(b")Na"),
    "key without a value": Raw(b"}(X\1\0\0\0au"),
    "nothing on the stack": Raw(b"0" * 20),
    "no mark": Raw(b"t"),
    "from an extension": Raw(b"\x82\1"),
}  # fmt: skip


@quick
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", _HOSTILE)
def test_hostile_pickles_end_soon(save: Save, name: str, tmp_path: Path) -> None:
    save(tmp_path / "w.pth", {"b": tensor("0", some), "a": _HOSTILE[name]}, {"0": some})
    with pytest.raises(UserError, match=r"w\.pth: got .+, expected "):
        read_pickle(str(tmp_path / "w.pth"))


_ODD_KEYS = {
    "nested deeply": _item(_NESTED),
    "of doubled tuples": _item(_DOUBLED),
    "several nested deeply": Raw(b"}(" + _NESTED.opcodes + b"Nu"),
    "of an ordered dictionary": Call(_ORDERED, ([[_DOUBLED, 1]],)),
    "of an ordered dictionary, set later": Raw(opcodes_of(Call(_ORDERED, ())) + _DOUBLED.opcodes + b"Ns"),
    "with a point": _item(0.5),
    "of bytes": _item(Raw(b"C\x01a")),
    "nothing": _item(None),
    "truth": _item(True),
    "of one hash": _item(2**61 - 1),
}  # fmt: skip


@both
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", _ODD_KEYS)
def test_values_under_odd_keys_are_left_out(save: Save, name: str, tmp_path: Path) -> None:
    save(tmp_path / "w.pth", {"b": tensor("0", some), "a": _ODD_KEYS[name]}, {"0": some})
    found = read_pickle(str(tmp_path / "w.pth"))
    assert list(found) == ["b"]
    np.testing.assert_array_equal(found["b"], some)


@quick
@pytest.mark.timeout(120)
def test_unread_values_do_no_harm(save: Save, tmp_path: Path) -> None:
    rebuild = opcodes_of(Global("torch._utils", "_rebuild_tensor_v2")) + b"q\1"
    tensor_of_last = b"q\3" + b"0h\1(h\3NNNtR"
    content = {
        "model": {"a": tensor("0", some)},
        "nested": _NESTED,
        "doubled": _DOUBLED,
        "lists": Raw(b"]" * _DEEP + b"a" * (_DEEP - 1)),
        "dictionaries": Raw(b"}" + b"X\1\0\0\0a}" * _DEEP + b"s" * _DEEP),
        "itself": Raw(b"]q\2h\2a"),
        "tensors": Raw(rebuild + tensor_of_last * (_DEEP // 10)),
    }
    save(tmp_path / "w.pth", content, {"0": some})
    found = read_pickle(str(tmp_path / "w.pth"))
    np.testing.assert_array_equal(found["a"], some)


def test_a_stream_whose_storages_have_no_names(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    save_stream(path, {"a": tensor("0", some)}, {"0": some})
    whole = path.read_bytes()
    for keys in ([_DOUBLED], [_NESTED], [1], {"0": 1}, "0", ["9"], []):
        path.write_bytes(whole.replace(dump(["0"]), dump(keys)))
        with pytest.raises(UserError, match=r"w\.pth: got .+, expected "):
            read_pickle(str(path))


@pytest.mark.parametrize("content", [_DOUBLED, _NESTED, [0x1950A86A20F9469CFC6C], True])
def test_a_stream_with_another_magic(content: Any, tmp_path: Path) -> None:
    (tmp_path / "w.pth").write_bytes(dump(content) + dump(1001))
    with pytest.raises(UserError, match=r"a pickle that torch\.save did not write"):
        read_pickle(str(tmp_path / "w.pth"))


class Entry(NamedTuple):
    """What the directory of an archive says about a file in it."""

    name: bytes
    offset: int  # of the file's header
    crc: int
    size: int
    extra: bytes = b""

    def facts(self) -> bytes:
        """The fields that the file's header and the directory share."""
        numbers = (20, 0, 0, 0, 33, self.crc, self.size, self.size, len(self.name), len(self.extra))
        return struct.pack("<HHHHHIIIHH", *numbers)


def appended(body: bytes, name: str, data: bytes) -> tuple[bytes, Entry]:
    entry = Entry(name.encode(), len(body), zlib.crc32(data), len(data))
    return body + b"PK\3\4" + entry.facts() + entry.name + data, entry


def archive_of(body: bytes, entries: list[Entry]) -> bytes:
    """An archive of the files whose headers and data are in `body`."""
    directory = b"".join(
        b"PK\1\2\x14\0" + entry.facts() + struct.pack("<HHHII", 0, 0, 0, 0, entry.offset) + entry.name + entry.extra
        for entry in entries
    )
    count = len(entries)
    return body + directory + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, count, count, len(directory), len(body), 0)


def test_entries_that_overlap(tmp_path: Path) -> None:
    """Each of 50 storages contains the headers of the following ones, and all share the same 100 kB."""
    body, content, found = bytes(100_000), {}, []
    for number in range(50):
        content[f"a{number}"] = tensor(str(number), np.frombuffer(body, np.uint8))
        longer, entry = appended(b"", f"archive/data/{number}", body)
        shift = len(longer) - len(body)
        body, found = longer, [*(other._replace(offset=other.offset + shift) for other in found), entry]
    body, pickled = appended(body, "archive/data.pkl", dump(content))
    path = tmp_path / "w.pth"
    path.write_bytes(archive_of(body, [*found, pickled]))
    with pytest.raises(UserError, match=r"\d+ bytes of arrays in a file of \d+"):
        read_pickle(str(path))


def test_sizes_beyond_the_archive(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    body, pickled = appended(b"", "archive/data.pkl", dump({"a": tensor("0", some)}))
    body, data = appended(body, "archive/data/0", some.tobytes())
    path.write_bytes(archive_of(body, [pickled, data]))
    np.testing.assert_array_equal(read_pickle(str(path))["a"], some)
    large = {"size": 2**31}, {"size": 2**32 - 1, "extra": struct.pack("<HHQQ", 1, 16, 2**62, 2**62)}
    for lie in large:
        for entries in ([pickled._replace(**lie), data], [pickled, data._replace(**lie)]):
            path.write_bytes(archive_of(body, entries))
            with pytest.raises(UserError, match=r"w\.pth: got .+, expected a whole"):
                read_pickle(str(path))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_entries_of_one_name(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    save_zip(path, {"a": tensor("0", some)}, {"0": some})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/data/0", (some + 1).tobytes())
    with pytest.raises(UserError, match="two entries of one name"):
        read_pickle(str(path))


@both
@pytest.mark.parametrize("content", [{}, [1, 2], None, {"epoch": 3}, {"state_dict": {}}, {"state_dict": {"a": 3}}])
def test_no_arrays(save: Save, content: Any, tmp_path: Path) -> None:
    save(tmp_path / "w.pth", content, {})
    with pytest.raises(UserError, match="without named arrays, expected a state_dict"):
        read_pickle(str(tmp_path / "w.pth"))


def test_every_flipped_byte_of_an_archive_is_noticed_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    save_zip(path, {"a": tensor("0", some)}, {"0": some})
    whole = path.read_bytes()
    noticed = 0
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        try:
            np.testing.assert_array_equal(read_pickle(str(path))["a"], some)
        except UserError:
            noticed += 1
    assert noticed > len(dump({"a": tensor("0", some)})) + some.nbytes


def test_flipped_bytes_of_a_stream_are_noticed_where_they_can_be(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    save_stream(path, {"a": tensor("0", some)}, {"0": some})
    whole = path.read_bytes()
    size = len(whole) - some.nbytes - 8  # where it stands
    unnoticed = []
    for position in range(len(whole) - some.nbytes):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        try:
            found = read_pickle(str(path))
        except UserError as error:
            assert position < size or "elements in storage 0 instead of 24" in str(error)
            continue
        unnoticed.append(position)
        (array,) = found.values()
        assert array.nbytes == some.nbytes
    magic, protocol = len(dump(_HEAD[0])), len(dump(_HEAD[1]))
    outside = [position for position in unnoticed if not magic + protocol <= position < size]
    assert outside == [1, magic + 1]  # the versions of the two pickles


@both
def test_every_truncated_file_is_noticed(save: Save, tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    save(path, {"a": tensor("0", some)}, {"0": some})
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match=r"w\.pth"):
            read_pickle(str(path))


def test_other_archives(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/b.txt", b"")
    with pytest.raises(UserError, match=r"an archive without data\.pkl"):
        read_pickle(str(path))
    save_zip(path, {"a": tensor("0", some)}, {"0": some})
    squeezed = io.BytesIO()
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(squeezed, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    path.write_bytes(squeezed.getvalue())
    with pytest.raises(UserError, match=r"compressed data in archive/data\.pkl"):
        read_pickle(str(path))


def test_a_stream_that_is_not_torch_s(tmp_path: Path) -> None:
    (tmp_path / "w.pth").write_bytes(pickle.dumps({"a": 1}) + pickle.dumps(2))
    with pytest.raises(UserError, match=r"a pickle that torch\.save did not write"):
        read_pickle(str(tmp_path / "w.pth"))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        read_pickle(os.fspath(tmp_path / "w.pth"))
