"""Files that lie about sizes, use values before they are there, or build them twice: nothing outside is read or run."""

from __future__ import annotations

import collections
import io
import struct
import zipfile

import numpy as np
import pytest
from pytorch_bytes import DATA, SIX, legacy, number, numbers, rebuilt, storage, text, zip_of
from traced_memory import memory_below

import ampkit
from ampkit import tensor
from ampkit.base.errors import ArgumentError, FileError


def read(data):
    return ampkit.load(io.BytesIO(data))


def big(value):
    digits = value.to_bytes(9, "little", signed=True)
    return b"\x8a" + bytes([len(digits)]) + digits


def view(size, stride, offset=0):
    name = b"ctorch._utils\n_rebuild_tensor_v2\n("
    return name + storage() + big(offset) + b"(" + big(size) + b"t(" + big(stride) + b"t\x89NtR"


ARRAY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85U\x01b\x87R"


def state(values, dtype="f8"):
    kind = b"cnumpy\ndtype\n" + text(dtype) + b"\x89\x88\x87R"
    return (
        b"(K\1" + numbers(len(values)) + kind + b"\x89B" + struct.pack("<I", values.nbytes) + values.tobytes() + b"tb"
    )


SEVENS = np.full(100, 7.0)
LARGE = 2**32
HOSTILE = {
    "sizes times strides of 2^64": zip_of(view(LARGE + 1, LARGE), data_0=SIX),
    "sizes times strides of -2^31": zip_of(view(2 * LARGE + 1, LARGE // 2), data_0=SIX),
    "a size above 2^63": zip_of(view(2**63, 0), data_0=SIX),
    "an offset above 2^63": zip_of(view(1, 1, 2**63), data_0=SIX),
    "an array built twice": zip_of(b"]", ARRAY, state(SEVENS), b"q\1(h\1", state(SEVENS[:2]), b"e"),
    "an array before its values": zip_of(ARRAY, b"q\1(h\1", state(SEVENS), b"t"),
    "an array without values": zip_of(b"]", ARRAY, b"a"),
    "an array of more values": zip_of(ARRAY, state(SEVENS).replace(numbers(100), numbers(101))),
    "a parameter of sizes": zip_of(b"ctorch._utils\n_rebuild_parameter\n(", number(2**30), b"\x89Nt", b"R"),
    "a tensor of a file's function": zip_of(
        b"ctorch._tensor\n_rebuild_from_type_v2\n(cargparse\nNamespace\n)R}",
        text("build"),
        b"\x88sbctorch\nTensor\n)}tR",
    ),
    "a storage of another length": zip_of(rebuilt(storage(elements=5)), data_0=SIX),
    "a storage of no length": zip_of(rebuilt(storage(elements=-6)), data_0=SIX),
    "legacy, a storage filled twice": legacy(
        b"(" + rebuilt(storage()) + rebuilt(storage(key="1")) + b"t", ("0", "0"), 2 * DATA
    ),
    "deques in deques": zip_of(b"ccollections\ndeque\nq\1)R" + b"q\2h\1)Rh\2a" * 9),
    "a defaultdict that calls": zip_of(b"ccollections\ndefaultdict\ncos\nsystem\n\x85R"),
    "texts that double": zip_of(b"ctorch\ndevice\nN" + b"q\1h\1\x86" * 99 + b"\x85R"),
    "a function as a value": zip_of(b"cnumpy\nndarray\n\x85"),
    "copies of a list": zip_of(
        b"cbuiltins\nset\nq\1(" + b"J\1\0\0\0" * 20_000 + b"l\x85q\x020" + b"h\1h\2R0" * 40_000 + b"N"
    ),
}  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_it_is_refused_in_one_line(data):
    with memory_below(64 * 2**20), pytest.raises(FileError, match=r"^load: a stream: needs ") as caught:
        read(data)
    assert len(str(caught.value).splitlines()) <= 2


def test_an_entry_that_has_fewer_bytes_than_it_says_shows_no_memory_of_others():
    data = bytearray(zip_of(rebuilt(storage(elements=6)), data_0=SIX))
    with zipfile.ZipFile(io.BytesIO(bytes(data))) as archive:
        entry = archive.getinfo("archive/data/0")
    table = data.rindex(b"archive/data/0") - 46
    data[table + 20 : table + 24] = struct.pack("<I", 0)  # what it has; table + 24: what it says
    assert entry.file_size == 24
    with pytest.raises(FileError, match="needs a whole file of torch.save"):
        read(bytes(data))


def test_two_entries_of_one_name_are_refused():
    stream = io.BytesIO(zip_of(rebuilt(storage()), data_0=SIX))
    with zipfile.ZipFile(stream, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("archive/data/0", SIX)
    with pytest.raises(FileError, match="two entries of one name"):
        read(stream.getvalue())


def test_an_expanded_tensor_of_any_size_takes_no_memory():
    with memory_below(2**20):
        assert read(zip_of(view(2**40, 0), data_0=SIX)).shape == (2**40,)


@pytest.mark.parametrize("kind", ["zip", "legacy", "array", "safetensors"])
def test_bools_are_0_and_1_whatever_their_bytes(kind):
    seven = bytes([7] * 16)
    held = rebuilt(storage("BoolStorage", elements=16), 0, (4, 4), (4, 1))
    head = b'{"w":{"dtype":"BOOL","shape":[4,4],"data_offsets":[0,16]}}'
    found = {
        "zip": lambda: read(zip_of(held, data_0=seven)),
        "legacy": lambda: read(legacy(held, data=struct.pack("<q", 16) + seven)),
        "array": lambda: tensor(read(zip_of(ARRAY, state(np.frombuffer(seven, bool), "b1")))),
        "safetensors": lambda: read(len(head).to_bytes(8, "little") + head + seven)["w"],
    }[kind]()
    assert found.sum().item() == 16
    assert found.float().sum().item() == 16


@pytest.mark.cpu
def test_bools_of_other_bytes_are_copied_as_true_and_not_shared():
    two = np.frombuffer(bytes([2] * 16), bool)
    assert tensor(two).sum().item() == tensor(two, dtype="float32").sum().item() == 16
    for share in (
        lambda: ampkit.from_numpy(two),
        lambda: ampkit.frombuffer(bytearray([2] * 16), dtype=ampkit.bool),
        lambda: ampkit.from_dlpack(two.copy()),
        lambda: tensor([2], dtype="uint8").view(ampkit.bool),
    ):
        with pytest.raises(ArgumentError, match="needs bools whose bytes are 0 or 1, got a byte of 2 at position 0"):
            share()


def test_containers_of_python_come_back_with_their_kinds():
    made = zip_of(
        b"(ccollections\ndeque\n)K\3\x86R(K\1K\2e",
        b"ccollections\ndefaultdict\nc__builtin__\nlist\n\x85R", text("a"), b"]s",
        b"c__builtin__\nslice\nK\1K\2N\x87R",
        b"c__builtin__\nbytearray\n", text("ab"), text("latin-1"), b"\x86Rt",
    )  # fmt: skip
    queue, table, part, raw = read(made)
    assert queue == collections.deque([1, 2]) and queue.maxlen == 3
    assert (type(table), table.default_factory, table) == (collections.defaultdict, list, {"a": []})
    assert (part, raw) == (slice(1, 2, None), bytearray(b"ab"))
