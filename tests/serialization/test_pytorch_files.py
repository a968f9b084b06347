"""Files in PyTorch's format: written and read by ampkit, read and written by PyTorch, hostile ones refused."""

from __future__ import annotations

import argparse
import collections
import io
import pathlib
import pickle
import random
import struct
import zipfile

import numpy as np
import pytest
from pytorch_bytes import SIX, legacy, number, numbers, rebuilt, storage, text, zip_of
from traced_memory import memory_below

import ampkit
from ampkit import Tensor, nn, ops, optim, tensor
from ampkit.base import dtypes, public_dtypes
from ampkit.base.errors import ArgumentError, DTypeError, FileError
from ampkit.nn import Parameter
from ampkit.serialization import load, save


def read(data):
    return load(io.BytesIO(data))


def round_trip(obj):
    stream = io.BytesIO()
    save(obj, stream)
    stream.seek(0)
    return load(stream)


@pytest.mark.parametrize("dtype", dtypes.NAMES.values(), ids=str)
def test_every_dtype_is_restored_bit_for_bit(tmp_path, dtype):
    values = tensor([[0, 1, 2], [3, 4, 5]], dtype=dtype)
    save({"x": values}, tmp_path / "file.pt")
    found = load(tmp_path / "file.pt")["x"]
    assert found.dtype == dtype
    assert found.tolist() == values.tolist()


@pytest.mark.cpu
def test_strided_empty_and_0_d_tensors_are_restored():
    state = {"t": Tensor(np.arange(6.0).reshape(2, 3).T), "e": Tensor(np.zeros((0, 3))), "s": Tensor(np.array(3.0))}
    found = round_trip(state)
    assert list(found) == list(state)
    for name, value in state.items():
        assert found[name].shape == value.shape
        assert np.array_equal(found[name].array, value.array)


def test_values_beside_tensors_come_back_with_their_types():
    state = {
        "args": argparse.Namespace(lr=0.1, path=pathlib.Path("/a/b"), sizes=[1, 2]),
        "numbers": [None, True, 0, -5, 2**31, 2**70, -(2**70), 1.5, float("inf"), 1j],
        "words": ("é\ud800", b"\xff\0", ""),
        "sets": ({1, 2}, collections.Counter("abb"), collections.OrderedDict(b=1, a=2)),
        ("a", 1): {3: ((), [[]])},
        "dtype": dtypes.bfloat16,
        "devices": [ampkit.device("cpu"), ampkit.device("cuda", 1)],
        "size": ampkit.Size((2, 3)),
        "random": random.Random(0).getstate(),
    }
    found = round_trip(state)
    assert found == state
    for a, b in zip(found["sets"] + (found["size"],), state["sets"] + (state["size"],), strict=True):
        assert type(a) is type(b)
    assert [type(d) for d in found["devices"]] == [ampkit.device] * 2
    others = [
        np.float32(1.5),
        np.int64(3),
        np.bool_(True),
        np.dtype("float32"),
        frozenset({1}),
        range(9, 1, -2),
    ]
    others += [
        collections.defaultdict(list, {"a": [1]}),
        collections.defaultdict(None, {1: 2}),
        collections.deque([1, 2], 4),
    ]
    others += [bytearray(b"a\0"), slice(1, None), collections.defaultdict(dict, {"a": {"b": 1}}), np.float64("nan")]
    for value in others:
        again = round_trip([value])[0]
        assert type(again) is type(value) and repr(again) == repr(value)
    again, same = round_trip([collections.deque([1], 4)] * 2)
    assert again is same
    assert again.maxlen == 4


def test_arrays_of_numpy_come_back_as_such():
    many = np.arange(6.0).reshape(2, 3), np.float32([1, 2]), np.zeros((0, 3), np.int8), np.array(True), np.arange(4).T
    many += np.uint32([1, 2**32 - 1]), np.complex64([1j])
    for values in (*many, np.arange(6, dtype=np.int64).reshape(2, 3).T, np.ones(2, np.float16)):
        again, twice = round_trip([values, values])
        assert type(again) is np.ndarray and again is twice and again.dtype == values.dtype
        np.testing.assert_array_equal(again, values)


def test_parameters_and_leaves_that_require_grad_do_so_again():
    found = round_trip([Parameter(np.ones(2)), tensor([1.0]).requires_grad_(), tensor([1.0])])
    assert [type(t) for t in found] == [Parameter, Tensor, Tensor]
    assert [t.requires_grad for t in found] == [True, True, False]


def test_tied_tensors_are_stored_once_and_share_memory_again(tmp_path):
    shared = tensor(np.zeros((100, 100), np.float32))
    save({"a": shared, "b": shared.detach(), "c": shared}, tmp_path / "file.pt")
    found = load(tmp_path / "file.pt")
    found["a"][0, 0] = 7
    assert found["b"][0, 0].item() == 7
    assert found["a"] is found["c"]
    assert (tmp_path / "file.pt").stat().st_size < 1.5 * shared.nbytes


def test_lists_that_stand_twice_or_contain_themselves_do_so_again():
    one = [1]
    endless = [one, one]
    endless.append(endless)
    found = round_trip(endless)
    assert found[0] is found[1]
    assert found[2] is found


def test_equal_objects_give_equal_files(tmp_path):
    for name in ("a", "b"):
        save({"x": tensor([1.0])}, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_training_state_is_restored_from_a_stream():
    def parts():
        model = nn.Linear(3, 2)
        optimizer = optim.AdamW(model.parameters())
        return model, optimizer, optim.lr_scheduler.StepLR(optimizer, 2), ampkit.GradScaler()

    first, second = parts(), parts()
    first[0](ampkit.ones(4, 3)).sum().backward()
    first[1].step()
    first[2].step()
    for part, state in zip(second, round_trip([part.state_dict() for part in first]), strict=True):
        part.load_state_dict(state)
    assert first[0].weight.tolist() == second[0].weight.tolist()
    assert (
        first[1].state_dict()["state"][0]["exp_avg"].tolist() == second[1].state_dict()["state"][0]["exp_avg"].tolist()
    )
    assert second[2].last_epoch == 1


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": {"b": np.array(["x"])}}, r"a ndarray at 'a\.b'\nhelp: wrap arrays"),
        ({"o": optim.SGD([Parameter(ampkit.ones(1))], lr=0.1)}, r"a SGD at 'o'\nhelp: save its state_dict\(\)"),
        ([lambda: 0], "a function at '0'"),
        (np.dtype("U3"), "at 'the top'"),
        (np.dtype(">i4"), "at 'the top'"),
        (collections.defaultdict(lambda: 0), r"one of <lambda>\nhelp: save dict\(values\)"),
        (collections.defaultdict(dict, a=collections.deque()), "one of deques or defaultdicts"),
        (collections.deque([collections.deque()]), "one of deques or defaultdicts"),
        ({"n": 1 << 3000}, "integers of at most 255 bytes, got one of 376 bytes at 'n'"),
    ],
)
def test_values_that_are_no_data_are_refused_with_their_path(tmp_path, value, said):
    with pytest.raises(DTypeError, match=said):
        save(value, tmp_path / "file.pt")
    assert not list(tmp_path.iterdir())


def test_an_object_nested_too_deeply_is_refused():
    deep = []
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(DTypeError, match="save: needs values that are nested less deeply"):
        save(deep, io.BytesIO())


# where tensors go


@pytest.mark.cpu
@pytest.mark.parametrize(
    "place",
    ["cpu", ampkit.device("cpu"), {"cuda:0": "cpu"}, lambda storage, saved: storage, lambda storage, saved: None, None],
)
def test_a_file_of_another_device_is_read_to_where_map_location_says(place):
    data = zip_of(rebuilt(storage(place="cuda:7")), data_0=SIX)
    found = load(io.BytesIO(data), place, weights_only=False, mmap=False)
    assert found.device == "cpu"
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_function_of_map_location_is_given_storage_and_saved_device():
    seen = []
    load(io.BytesIO(zip_of(rebuilt(storage(place="cuda:7")), data_0=SIX)), lambda *given: seen.append(given))
    assert [(given[0].nbytes, given[1]) for given in seen] == [(24, "cuda:7")]


def test_a_map_location_of_another_kind_is_refused():
    with pytest.raises(ArgumentError, match="load: needs map_location as a device, a dict of devices or a function"):
        load(io.BytesIO(b""), 1.5)


# files of other writers


def test_views_of_a_storage_are_read_and_share_memory():
    whole, part = rebuilt(storage()), rebuilt(storage(), 1, (2, 2), (1, 3))
    found = read(zip_of(b"(" + whole + part + b"t", data_0=SIX, version="3\n", folder="model"))
    assert found[1].tolist() == [[1, 4], [2, 5]]
    found[0][0, 1] = 9
    assert found[1][0, 0].item() == 9


def test_bytes_in_the_other_order_are_swapped():
    big = np.arange(6, dtype=">f4").tobytes()
    assert read(zip_of(rebuilt(storage()), data_0=big, byteorder="big")).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_file_from_before_the_zip_format_is_read():
    assert read(legacy()).tolist() == [[0, 1, 2], [3, 4, 5]]


HOSTILE = {
    "a function": b"cos\nsystem\n" + text("exit 1") + b"\x85R",
    "a function of numpy": b"cnumpy\nload\n" + text("/etc/passwd") + b"\x85R",
    "a class": b"cmodels.net\nNet\n)\x81}b",
    "a name by its text": text("builtins") + text("eval") + b"\x93" + text("1") + b"\x85R",
    "a storage that is called": b"ctorch\nFloatStorage\n" + number(3) + b"\x85R",
}


@pytest.mark.parametrize("opcodes", HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_data_is_refused_by_its_name(opcodes):
    data = zip_of(opcodes)
    with pytest.raises(FileError) as caught:
        read(data)
    first, second = str(caught.value).splitlines()
    assert first.startswith("load: a stream: needs tensors, numbers, strings and plain containers, got an object of ")
    assert second == "help: load it in PyTorch, with its classes, and save its state_dict()"
    with pytest.raises(FileError, match="got an object of"):
        read(legacy(opcodes, (), b""))


DAMAGED = {
    "no storage": zip_of(rebuilt(storage())),
    "a storage cut short": zip_of(rebuilt(storage()), data_0=SIX[:-1]),
    "a view outside": zip_of(rebuilt(storage(), 1), data_0=SIX),
    "a negative stride": zip_of(rebuilt(storage(), 0, (2, 3), (-3, 1)), data_0=SIX),
    "a negative offset": zip_of(rebuilt(storage(), -1, (2,), (1,)), data_0=SIX),
    "a size without stride": zip_of(rebuilt(storage(), 0, (2, 3), (3,)), data_0=SIX),
    "a huge size": zip_of(rebuilt(storage(), 0, (2**31 - 1,) * 3, (0, 0, 0)), data_0=SIX),
    "an unknown opcode": zip_of(b"\xff"),
    "an empty stack": zip_of(b"R"),
    "no mark": zip_of(b"t"),
    "a memo without an entry": zip_of(b"h\x05"),
    "a list as a key": zip_of(b"}]Ns"),
    "a nested tuple as a key": zip_of(b"})" + b"\x85" * 20_000 + b"Ns"),
    "items of a number": zip_of(number(1), b"(", number(1), b"e"),
    "the state of a function": zip_of(b"ctorch._utils\n_rebuild_tensor_v2\n}b"),
    "the state of a class": zip_of(b"cargparse\nNamespace\n}", text("__init__"), b"Nsb"),
    "objects of NumPy": zip_of(b"cnumpy\ndtype\n", text("O8"), b"\x89\x88\x87R"),
    "an integer of many digits": zip_of(b"I" + b"9" * 5000 + b"\n"),
    "bytes of a length": zip_of(b"cbuiltins\nbytearray\n", number(2**31 - 1), b"\x85R"),
    "no pickle": zip_of().replace(b"data.pkl", b"dath.pkl"),
    "another zip file": zip_of(folder=""),
    "cut": zip_of(rebuilt(storage()), data_0=SIX)[:-7],
    "with a bit turned": zip_of(rebuilt(storage()), data_0=SIX).replace(SIX, SIX[:-1] + b"\1"),
    "legacy, cut": legacy()[:-1],
    "legacy, without storages": legacy(keys=(), data=b""),
    "legacy, of another storage": legacy(keys=("1",)),
    "legacy, of a huge storage": legacy(rebuilt(storage(elements=2**31 - 1))),
    "legacy, of negative length": legacy(rebuilt(storage(elements=-6))),
    "legacy, another number": pickle.dumps(0x2950A86A20F9469CFC6C, 2),
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_one_clear_error(tmp_path, data):
    (tmp_path / "file.pt").write_bytes(data)
    with memory_below(64 * 2**20), pytest.raises(FileError, match=r"^load: .*file\.pt: needs ") as caught:
        load(tmp_path / "file.pt")
    assert len(str(caught.value).splitlines()) <= 2


def test_a_compressed_file_is_refused_before_it_is_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", bytes(2**24))
    with memory_below(2**20), pytest.raises(FileError, match="a file of torch.save, got another zip file"):
        load(tmp_path / "bomb.pt")


def test_a_hostile_file_changes_nothing_of_the_library():
    before = dict(vars(argparse.Namespace)), dict(vars(collections.OrderedDict))
    shadow = zip_of(b"ccollections\nOrderedDict\n)R}", text("items"), b"Nsb")
    assert read(shadow).items() == collections.OrderedDict().items()
    assert (dict(vars(argparse.Namespace)), dict(vars(collections.OrderedDict))) == before


def test_storages_of_other_kinds_are_refused_by_name():
    with pytest.raises(DTypeError, match=r"needs tensors of float64, .*, got torch.QUInt4x2Storage"):
        read(zip_of(rebuilt(storage("QUInt4x2Storage"))))


def _called(name, *arguments):
    module, _, function = name.rpartition(".")
    return f"c{module}\n{function}\n".encode() + b"(" + b"".join(arguments) + b"tR"


_SIZE = _called("torch.Size", numbers(2, 3))
_AFFINE = b"(" + b"ctorch\nper_tensor_affine\n" + b"G" + struct.pack(">d", 0.1) + number(0) + b"t"
_COO = _called("torch.serialization._get_layout", text("torch.sparse_coo"))
_PARTS = b"(" + rebuilt(storage(), size=(2, 1)) + rebuilt(storage(), size=(1,), stride=(1,)) + _SIZE + b"\x88t"
_QINT8 = (storage("QInt8Storage"), number(0), numbers(2, 3), numbers(3, 1), _AFFINE, b"\x89", b"N")
_META = (b"ctorch\nfloat32\n", numbers(2, 3), numbers(3, 1), b"\x89")
LAYOUTS = {
    "sparse_coo": (_called("torch._utils._rebuild_sparse_tensor", _COO, _PARTS), r"save x\.to_dense\(\)"),
    "quantized": (_called("torch._utils._rebuild_qtensor", *_QINT8), r"save x\.dequantize\(\)"),
    "meta": (_called("torch._utils._rebuild_meta_tensor_no_storage", *_META), "it has no values"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_of_other_layouts_stand_beside_those_that_are_read(layout):
    opcodes, cure = LAYOUTS[layout]
    both = b"(" + rebuilt(storage("FloatStorage", "1")) + opcodes + b"t"
    data = SIX[:6] if layout == "quantized" else SIX
    tensor, foreign = read(zip_of(both, data_0=data, data_1=SIX))
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (foreign.format, foreign.shape) == (layout, (2, 3))
    for use in (foreign.numpy, lambda: foreign.to("float32"), lambda: foreign + 1, lambda: foreign.mean()):
        with pytest.raises(DTypeError, match=cure):
            use()


@pytest.mark.parametrize(
    ("opcodes", "value"),
    [
        (b"c__builtin__\nxrange\n" + numbers(1, 7, 2) + b"R", range(1, 7, 2)),
        (b"ccollections\ndefaultdict\nc__builtin__\nlong\n\x85R", collections.defaultdict(int)),
        (b"ccollections\ndefaultdict\nc__builtin__\nunicode\n\x85R", collections.defaultdict(str)),
    ],
)
def test_names_of_python_2_which_protocol_2_writes_are_those_of_python_3(opcodes, value):
    found = read(zip_of(opcodes))
    assert found == value and getattr(found, "default_factory", None) is getattr(value, "default_factory", None)


def test_a_torchscript_program_is_refused_with_the_cure():
    with pytest.raises(FileError, match=r"got a TorchScript program\nhelp: load it in PyTorch and save its state_dict"):
        read(zip_of(**{"constants.pkl": b""}))


def test_a_program_of_torch_export_is_refused_with_the_cure():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("model/models/model.json", b"{}")
        archive.writestr("model/archive_format", b"pt2")
    with pytest.raises(
        FileError, match=r"got a program of torch\.export\nhelp: load it in PyTorch and save its state_"
    ):
        read(out.getvalue())


# whole modules


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)
        self.block = nn.TransformerEncoderLayer(4, 2, activation=ops.gelu, batch_first=True)
        self.tied, self.activation, self.loss, self.owner = self.first, ops.relu, ops.cross_entropy, [self]

    def forward(self, x):
        return self.block(self.activation(self.norm(self.first(x)))[None])


def written(model, old, new):
    """The file of `model`, with other bytes in its pickle."""
    stream, changed = io.BytesIO(), io.BytesIO()
    ampkit.save(model, stream)
    with zipfile.ZipFile(stream) as source, zipfile.ZipFile(changed, "w") as target:
        for entry in source.infolist():
            data = source.read(entry)
            target.writestr(entry, data.replace(old, new) if entry.filename.endswith("data.pkl") else data)
    changed.seek(0)
    return changed


def test_a_whole_module_comes_back_with_all_its_attributes_and_trains_on():
    model, stream = Net(), io.BytesIO()
    x = ampkit.randn(5, 3)
    model(x)  # which moves the running statistics
    ampkit.save({"model": model.eval(), "epoch": 3}, stream)
    again = ampkit.load(io.BytesIO(stream.getvalue()))["model"]
    assert type(again) is Net and again.tied is again.first and again.owner[0] is again and not again.training
    assert again.activation is ops.relu and again.loss is ops.cross_entropy
    assert again(x).tolist() == model(x).tolist()
    again.train()(x).sum().backward()
    assert again.first.weight.grad is not None and model.first.weight.grad is None


def test_a_whole_module_is_none_of_the_weights_and_needs_a_class_of_the_program():
    stream = io.BytesIO()
    ampkit.save(Net(), stream)
    with pytest.raises(FileError, match="pass weights_only=False"):
        ampkit.load(io.BytesIO(stream.getvalue()), weights_only=True)
    with pytest.raises(FileError, match=r"an object of .*\.Not"):
        ampkit.load(written(Net(), b"Net", b"Not"))


@pytest.mark.parametrize("table", ["_non_persistent_buffers_set", "_computed_attributes", "_forward_hooks"])
def test_a_whole_module_with_other_attributes_is_one_of_pytorch_and_refused(table):
    said = "a whole module that ampkit.save wrote, got a whole Linear that PyTorch pickled\nhelp: save its state_dict"
    with pytest.raises(FileError, match=said):
        ampkit.load(written(Net(), table.encode(), table.upper().encode()))


def test_a_whole_module_in_a_file_from_before_the_zip_format_is_refused_too():
    data = legacy(f"c{Net.__module__}\nNet\n)\x81}}b".encode("latin1"), (), b"")
    with pytest.raises(FileError, match="a whole Net that PyTorch pickled"):
        ampkit.load(io.BytesIO(data))
    with pytest.raises(FileError, match="pass weights_only=False"):
        ampkit.load(io.BytesIO(data), weights_only=True)


def test_modules_that_no_name_finds_and_their_functions_are_refused():
    class Local(nn.Module):
        pass

    hooked = nn.Linear(2, 2)
    hooked.register_forward_hook(lambda *given: None)
    for module, said in ((Local(), "one of .*Local"), (hooked, "a function at '_forward_hooks")):
        with pytest.raises(DTypeError, match=said):
            ampkit.save(module, io.BytesIO())


@pytest.mark.parametrize("name", ["os.system", "ampkit.load", "builtins.eval", "ampkit.ops.Tensor", "subprocess.Popen"])
def test_no_function_but_an_op_is_found_by_the_name_in_a_file(name):
    place, _, function = name.rpartition(".")
    for opcodes in (b")R", b"", b")\x81"):
        data = zip_of(f"c{place}\n{function}\n".encode() + opcodes)
        with pytest.raises(FileError, match=f"an object of {name}"):
            ampkit.load(io.BytesIO(data))


# PyTorch itself


def pytorch():
    return pytest.importorskip("torch", reason="needs PyTorch (extra `peers`)")


def values(torch):
    """An object of torch.save, and the tensors of ampkit that it should load as."""
    base = torch.arange(20.0).reshape(4, 5)
    state = {name: torch.tensor([0, 1, 2], dtype=getattr(torch, name)) for name in dtypes.NAMES}
    state |= {"base": base, "part": base[1:3, ::2], "t": base.t(), "wide": torch.ones(1).expand(3, 4)}
    state |= {"empty": torch.zeros(0, 3), "number": torch.tensor(3.0), "leaf": torch.ones(2, requires_grad=True)}
    state |= {"last": torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)}
    return state | {"weight": torch.nn.Parameter(torch.ones(2, 2))}


@pytest.mark.cpu
@pytest.mark.parametrize("name", public_dtypes.STORED)
def test_formats_below_16_bits_are_exchanged(tmp_path, name):
    torch = pytorch()
    given = torch.arange(0, 240, 20, dtype=torch.uint8).reshape(3, 4).view(getattr(torch, name))
    torch.save({"x": given, "t": given.t(), "part": given[1:, ::2]}, tmp_path / "theirs.pt")
    found = load(tmp_path / "theirs.pt")
    assert found["x"].dtype is getattr(ampkit, name)
    assert found["x"].view(ampkit.uint8).tolist() == given.view(torch.uint8).tolist()
    assert found["t"].stride() == (1, 4) and found["part"].view(ampkit.uint8).tolist() == [[80, 120], [160, 200]]
    save(found, tmp_path / "ours.pt")
    back = torch.load(tmp_path / "ours.pt", weights_only=True)
    assert back["x"].dtype == given.dtype and torch.equal(back["x"].view(torch.uint8), given.view(torch.uint8))
    assert round_trip(found)["t"].view(ampkit.uint8).tolist() == given.view(torch.uint8).t().tolist()


@pytest.mark.cpu
@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_that_pytorch_wrote_are_read(tmp_path, zipped):
    torch = pytorch()
    state = values(torch)
    torch.save(state, tmp_path / "file.pt", _use_new_zipfile_serialization=zipped)
    found = load(tmp_path / "file.pt")
    for name, value in state.items():
        assert found[name].dtype.name == str(value.dtype).removeprefix("torch.")
        assert (tuple(found[name].shape), found[name].requires_grad) == (tuple(value.shape), value.requires_grad)
        assert found[name].stride() == value.stride()
        assert found[name].tolist() == value.tolist()
    found["base"][1, 0] = 99
    assert found["part"][0, 0].item() == found["t"][0, 1].item() == 99


@pytest.mark.parametrize("zipped", [True, False])
def test_values_that_pytorch_wrote_are_read(tmp_path, zipped):
    torch = pytorch()
    state = {
        "args": argparse.Namespace(lr=0.1, path=pathlib.Path("a")), "count": collections.Counter("ab"), "none": None,
        "bytes": b"\xff", "set": {1, 2}, "complex": 1j, "numbers": [2**70, -5, 1.5], "random": random.getstate(),
        "numpy": np.random.get_state()[1], "scalar": np.float32(1.5),
    }  # fmt: skip
    more = {"dtype": torch.float16, "device": torch.device("cuda", 1), "size": torch.Size([2, 3])}
    torch.save(state | more, tmp_path / "file.pt", _use_new_zipfile_serialization=zipped)
    found = load(tmp_path / "file.pt")
    assert found.pop("numpy").tolist() == state.pop("numpy").tolist()
    assert found == state | {"dtype": dtypes.float16, "device": "cuda:1", "size": (2, 3)}


def test_a_training_state_goes_from_pytorch_to_ampkit_and_back(tmp_path):
    torch = pytorch()

    def parts(lib, adam):
        model = lib.nn.Sequential(lib.nn.Conv2d(3, 4, 3), lib.nn.BatchNorm2d(4))
        return model, adam(model.parameters(), lr=0.01)

    theirs, ours = parts(torch, torch.optim.Adam), parts(ampkit, optim.Adam)
    theirs[0](torch.ones(1, 3, 8, 8)).sum().backward()
    theirs[1].step()
    torch.save([part.state_dict() for part in theirs], tmp_path / "theirs.pt")
    for part, state in zip(ours, load(tmp_path / "theirs.pt"), strict=True):
        part.load_state_dict(state)
    save([part.state_dict() for part in ours], tmp_path / "ours.pt")
    back = parts(torch, torch.optim.Adam)
    for part, state in zip(back, torch.load(tmp_path / "ours.pt", weights_only=True), strict=True):
        part.load_state_dict(state)
    for a, b in zip(theirs[0].state_dict().values(), back[0].state_dict().values(), strict=True):
        assert torch.equal(a, b)
    moments = [part[1].state_dict()["state"][0]["exp_avg_sq"] for part in (theirs, back)]
    assert torch.equal(*moments)


@pytest.mark.parametrize("mapped", [False, True])
def test_pytorch_reads_what_ampkit_wrote(tmp_path, mapped):
    torch = pytorch()
    state = {name: tensor([[0, 1, 2]], dtype=dtype) for name, dtype in dtypes.NAMES.items()}
    more = {"n": [1, -5, 2**40, 2.5, None, True], "w": "é", "b": b"\xff", "s": {1}, "o": collections.OrderedDict(a=1)}
    save(state | more | {"d": ampkit.int8, "z": ampkit.Size((2,)), "c": ampkit.device("cpu")}, tmp_path / "file.pt")
    found = torch.load(tmp_path / "file.pt", weights_only=True, mmap=mapped)
    assert {name: found.pop(name).tolist() for name in state} == {name: t.tolist() for name, t in state.items()}
    assert found == more | {"d": torch.int8, "z": torch.Size([2]), "c": torch.device("cpu")}
