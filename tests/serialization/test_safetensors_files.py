"""ampkit.save and ampkit.load of safetensors files."""

from __future__ import annotations

import json
import os
import sys

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from traced_memory import memory_below

import ampkit
from ampkit import Tensor, tensor
from ampkit.base import dtypes
from ampkit.base.errors import DTypeError, FileError
from ampkit.nn import Parameter
from ampkit.serialization import load, save


@pytest.mark.parametrize("dtype", dtypes.NAMES.values(), ids=str)
def test_every_dtype_is_restored_bit_for_bit(tmp_path, dtype):
    values = tensor([[0, 1, 2], [3, 4, 5]], dtype=dtype)
    save({"x": values}, tmp_path / "a.safetensors")
    found = load(tmp_path / "a.safetensors")["x"]
    assert found.dtype == dtype
    assert found.array.tobytes() == values.array.tobytes()
    assert found.shape == (2, 3)


FORMATS = {
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0", "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ", "float4_e2m1fn_x2": "F4",
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_formats_below_16_bits_are_restored(tmp_path, name):
    raw = tensor([[0, 60, 255], [7, 128, 1]], dtype=dtypes.uint8)
    file = tmp_path / "a.safetensors"
    save({"é": raw.view(getattr(ampkit, name)), "wide": tensor([1.0])}, file)
    found = load(file)
    assert found["é"].dtype is getattr(ampkit, name) and found["wide"].item() == 1
    assert found["é"].view(ampkit.uint8).tolist() == raw.tolist()
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    entry = json.loads(data[8 : 8 + length])["é"]
    assert length % 8 == 0
    assert (entry["dtype"], entry["shape"]) == (FORMATS[name], [2, 6 if name == "float4_e2m1fn_x2" else 3])


@pytest.mark.cpu
@pytest.mark.parametrize("name", FORMATS)
def test_formats_below_16_bits_are_read_as_safetensors_writes_them(tmp_path, name):
    torch = pytest.importorskip("torch", reason="needs PyTorch (extra `peers`)")
    writer = pytest.importorskip("safetensors.torch")
    given = torch.arange(0, 240, 20, dtype=torch.uint8).reshape(3, 4).view(getattr(torch, name))
    writer.save_file({"x": given}, tmp_path / "theirs.safetensors")
    found = load(tmp_path / "theirs.safetensors")["x"]
    assert found.dtype is getattr(ampkit, name)
    assert found.view(ampkit.uint8).tolist() == given.view(torch.uint8).tolist()
    save({"x": found}, tmp_path / "ours.safetensors")
    back = writer.load_file(tmp_path / "ours.safetensors")["x"]
    assert back.dtype == given.dtype and torch.equal(back.view(torch.uint8), given.view(torch.uint8))


@pytest.mark.cpu
def test_an_odd_row_of_float4_is_refused(tmp_path):
    header = json.dumps({"x": {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    with pytest.raises(FileError, match="an odd number of values of 4 bits"):
        load(tmp_path / "a.safetensors")


@pytest.mark.cpu
def test_strided_empty_and_0_d_tensors_are_restored(tmp_path):
    state = {"t": Tensor(np.arange(6.0).reshape(2, 3).T), "e": Tensor(np.zeros((0, 3))), "s": Tensor(np.array(3.0))}
    save(state, tmp_path / "a.safetensors")
    found = load(tmp_path / "a.safetensors")
    assert list(found) == list(state)
    for name, value in state.items():
        assert found[name].shape == value.shape
        assert np.array_equal(found[name].array, value.array)


def test_loaded_tensors_can_be_written_to(tmp_path):
    save({"x": tensor([1.0])}, tmp_path / "a.safetensors")
    found = load(tmp_path / "a.safetensors")["x"]
    found.data = np.array([2.0])
    assert found.item() == 2.0


def test_other_readers_of_safetensors_read_a_dict_of_tensors(tmp_path):
    save({"a.weight": tensor([[1.0, 2.0]]), "a.bias": Parameter(np.ones(3, np.float32))}, tmp_path / "a.safetensors")
    found = safetensors.numpy.load_file(tmp_path / "a.safetensors")
    assert found["a.weight"].tolist() == [[1.0, 2.0]]
    assert found["a.bias"].tolist() == [1.0, 1.0, 1.0]


def test_safetensors_files_of_other_writers_load_as_a_dict_of_tensors(tmp_path):
    safetensors.numpy.save_file(
        {"w": np.eye(2, dtype=np.float32), "b": np.ones(2, ml_dtypes.bfloat16)}, tmp_path / "a.safetensors", {"by": "x"}
    )
    found = load(tmp_path / "a.safetensors")
    assert found["w"].tolist() == [[1, 0], [0, 1]]
    assert found["b"].dtype == dtypes.bfloat16


def test_tied_tensors_are_stored_once_and_are_tied_again(tmp_path):
    shared = tensor(np.zeros((100, 100), np.float32))
    save({"a": shared, "b": shared.detach()}, tmp_path / "a.safetensors")
    found = load(tmp_path / "a.safetensors")
    assert found["a"] is found["b"]
    assert (tmp_path / "a.safetensors").stat().st_size < 1.5 * shared.nbytes


def test_nested_objects_are_restored(tmp_path):
    rest = {"epoch": 3, "lr": [0.1, float("inf")], "note": ("x", None, True), "state": {0: {"step": 7}}}
    save({"model": {"w": tensor([1.0])}, "model.w": tensor([2.0]), **rest}, tmp_path / "a.safetensors")
    found = load(tmp_path / "a.safetensors")
    assert found.pop("model")["w"].item() == 1.0
    assert found.pop("model.w").item() == 2.0
    assert found == rest


def test_unsupported_values_are_refused_with_their_path(tmp_path):
    with pytest.raises(DTypeError, match=r"ndarray at 'a\.b'\nhelp: wrap"):
        save({"a": {"b": np.ones(3)}}, tmp_path / "a.safetensors")
    with pytest.raises(DTypeError, match="a tuple in 'the top'"):
        save({(1, 2): tensor([1.0])}, tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "spoil", [lambda d: b"", lambda d: d[:5], lambda d: d[:60], lambda d: d[:-1], lambda d: b"PK\3" + d]
)
def test_a_truncated_or_foreign_file_is_one_clear_error(tmp_path, spoil):
    save({"x": tensor([1.0, 2.0])}, tmp_path / "a.safetensors")
    (tmp_path / "a.safetensors").write_bytes(spoil((tmp_path / "a.safetensors").read_bytes()))
    with pytest.raises(
        FileError,
        match=r"^load: .*/a.safetensors: needs a whole safetensors file, got one that breaks: .*\nhelp: ampkit.save",
    ):
        load(tmp_path / "a.safetensors")


def test_a_structure_that_does_not_match_its_tensors_is_refused(tmp_path):
    safetensors.numpy.save_file({"w": np.ones(1)}, tmp_path / "a.safetensors", {"ampkit": '{"tensor":"v"}'})
    with pytest.raises(FileError, match="a description that does not fit"):
        load(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    "description",
    [
        '{"list": [' * sys.getrecursionlimit() + "1" + "]}" * sys.getrecursionlimit(),
        "[" * 100_000,
        '{"list": [1], "tuple": []}',
        '{"set": [1, 2]}',
        '{"text": "ab"}',
        '{"dict": [[[1], 2]]}',
        '{"dict": [1]}',
        "9" * 5000,
    ],
)
def test_a_malformed_structure_is_one_clear_error(tmp_path, description):
    safetensors.numpy.save_file({"w": np.ones(1)}, tmp_path / "a.safetensors", {"ampkit": description})
    with pytest.raises(
        FileError, match=r"^load: .*/a.safetensors: needs a whole safetensors file, got a description .*"
    ) as caught:
        load(tmp_path / "a.safetensors")
    assert "\n" not in str(caught.value)


def file_of(header, data=b""):
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + data


def entry(shape, size=0, **more):
    return {"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, size], **more}}


@pytest.mark.parametrize(
    "content",
    [
        file_of(entry([0, 2**63])),
        file_of(entry([0, 2**63 - 1])),
        file_of(entry([1] * 65, 4), bytes(4)),
        file_of(entry([2**64], 4), bytes(4)),
        file_of(entry([2**40], 2**42)),
        file_of(b'{"a":' * 100_000),
        file_of(b'{"w":{"dtype":"F32","shape":[0],"data_offsets":[0,0],"x":' + b"9" * 5000 + b"}}"),
        (2**63).to_bytes(8, "little") + b"{}",
    ],
)
def test_a_header_with_impossible_shapes_is_one_clear_error(tmp_path, content):
    (tmp_path / "a.safetensors").write_bytes(content)
    with (
        memory_below(8 * 2**20),
        pytest.raises(FileError, match=r"a.safetensors: needs a whole safetensors file, got "),
    ):
        load(tmp_path / "a.safetensors")


def test_a_fifo_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(FileError, match="load: needs a regular file, got '.*fifo', which is a FIFO"):
        load(tmp_path / "fifo")


def test_a_rust_panic_for_lack_of_memory_is_a_memory_error(tmp_path, monkeypatch):
    def panic(*_):
        raise type("PanicException", (BaseException,), {})("PyObject pointer is null")

    monkeypatch.setattr(safetensors.numpy, "save", panic)
    with pytest.raises(MemoryError, match="writing 1 tensors: PyObject pointer is null"):
        save({"x": tensor([1.0])}, tmp_path / "a.safetensors")


def test_an_object_that_contains_itself_is_refused():
    endless = []
    endless.append(endless)
    with pytest.raises(DTypeError, match="save: needs values that are nested less deeply"):
        save(endless, "never written.safetensors")


def test_missing_and_unwritable_files_are_named(tmp_path):
    with pytest.raises(FileError, match=r"load: needs a file that can be read, got '.*none': No such file"):
        load(tmp_path / "none")
    with pytest.raises(
        FileError, match=r"save: needs a file that can be written, got .*none/a.safetensors: No such file"
    ):
        save({}, tmp_path / "none" / "a.safetensors")


def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    save({"x": tensor([1.0])}, tmp_path / "a.safetensors")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(FileError, match="No space left"):
        save({"x": tensor([2.0])}, tmp_path / "a.safetensors")
    monkeypatch.undo()
    assert load(tmp_path / "a.safetensors")["x"].item() == 1.0
    assert len(list(tmp_path.iterdir())) == 1
