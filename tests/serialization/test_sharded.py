"""Checkpoints in several files, and tensors of dtypes that ampkit has not."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

import ampkit
from ampkit import nn, tensor
from ampkit.base.errors import DTypeError, FileError
from ampkit.serialization.foreign_tensor import ForeignTensor

SAFETENSORS, BIN = "model.safetensors.index.json", "pytorch_model.bin.index.json"


def sharded(folder, index=SAFETENSORS, first="a.safetensors", second="b.safetensors"):
    ampkit.save({"w": tensor([1.0]), "b": tensor([2])}, folder / first)
    ampkit.save({"x": tensor([3.0])}, folder / second)
    files = {"w": first, "b": first, "x": second}
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return folder / index


@pytest.mark.parametrize(("index", "end"), [(SAFETENSORS, "safetensors"), (BIN, "bin")])
def test_an_index_and_its_folder_load_as_the_tensors_of_all_files(tmp_path, index, end):
    path = sharded(tmp_path, index, f"a.{end}", f"b.{end}")
    for given in (path, tmp_path, str(path)):
        assert {name: value.item() for name, value in ampkit.load(given).items()} == {"w": 1, "b": 2, "x": 3}


@pytest.mark.parametrize(
    "file", ["../a.safetensors", "/etc/passwd", "..", "", "c/a", "a\\b", "a\0", 3, None, SAFETENSORS]
)
def test_an_index_names_files_beside_it_alone(tmp_path, file):
    sharded(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / SAFETENSORS).write_text(json.dumps({"weight_map": {"w": file}}))
    with pytest.raises(FileError, match="needs the index of a sharded checkpoint with names of files beside it"):
        ampkit.load(tmp_path / "in" / SAFETENSORS)


def test_a_missing_file_a_missing_tensor_and_what_is_no_index_are_named(tmp_path):
    path = sharded(tmp_path)
    for text, said in (
        ({"weight_map": {"w": "none"}}, "none.*No such file"),
        ({"weight_map": {"y": "a.safetensors"}}, "got 'a.safetensors' without 'y'"),
        ([], "JSON without a weight_map"),
        ({"weight_map": []}, "JSON without a weight_map"),
    ):
        path.write_text(json.dumps(text))
        with pytest.raises(FileError, match=said):
            ampkit.load(path)


def test_a_folder_without_such_files_is_refused(tmp_path):
    with pytest.raises(FileError, match=r"which is a directory\nhelp: a folder is read that holds model.safetensors"):
        ampkit.load(tmp_path)


def test_a_pointer_of_git_lfs_is_named_with_the_cure(tmp_path):
    (tmp_path / "a.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(FileError, match="got a pointer of Git LFS in its place\nhelp: run `git lfs pull`"):
        ampkit.load(tmp_path / "a.safetensors")


def with_foreign_ones(folder):
    # By hand: older versions of safetensors write none of these dtypes.
    values = {
        "b": ("F32", np.ones(2, np.float32)),
        "u": ("U16", np.array([1, 65535], np.uint16)),
        "c": ("C64", np.array([1 + 2j], np.complex64)),
        "f": ("F8_E4M3", np.array([0.5, 2], ml_dtypes.float8_e4m3fn)),
    }
    header, data = {}, b""
    for name, (dtype, array) in values.items():
        begin, data = len(data), data + array.tobytes()
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    (folder / "a.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return ampkit.load(folder / "a.safetensors")


def test_a_tensor_of_another_dtype_leaves_the_rest_of_the_file_readable(tmp_path):
    found = with_foreign_ones(tmp_path)
    assert found["b"].tolist() == [1, 1]
    assert {name: found[name].format for name in "uc"} == {"u": "uint16", "c": "complex64"}
    assert found["u"].to(ampkit.int32).tolist() == [1, 65535]
    assert found["f"].dtype is ampkit.float8_e4m3fn and found["f"].tolist() == [0.5, 2]
    assert found["c"].numpy().tolist() == [1 + 2j]


def test_it_is_converted_by_name_and_refused_in_any_other_use(tmp_path):
    found = with_foreign_ones(tmp_path)["u"]
    assert repr(found) == "ForeignTensor(uint16, [2])"
    for use in (lambda: found + 1, lambda: found.float(), lambda: found[0], lambda: len(found), lambda: 2 * found):
        with pytest.raises(DTypeError, match=r"uint16 of shape \[2\] as 'u'\nhelp: convert it: x.to\("):
            use()
    with pytest.raises(DTypeError, match="needs a tensor of real numbers, got one of complex64"):
        with_foreign_ones(tmp_path)["c"].to(ampkit.float32)
    with pytest.raises(DTypeError):
        nn.Linear(1, 2, bias=False).load_state_dict({"weight": found})
    with pytest.raises(DTypeError):
        ampkit.save({"f": found}, tmp_path / "b.pt")
    assert isinstance(found, ForeignTensor)
