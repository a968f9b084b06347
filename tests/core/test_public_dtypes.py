"""dtype: PyTorch's attributes, NumPy's equality, one object for each format."""

from __future__ import annotations

import copy
import json
import pickle

import ml_dtypes
import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, tensor
from ampkit.base.public_dtypes import DTYPES, dtype_named

pytestmark = pytest.mark.cpu

# PyTorch 2.13: name, is_floating_point, is_complex, is_signed, itemsize, to_real(), to_complex() or None, abbr.
PYTORCH = [
    ("float64", True, False, True, 8, "float64", "complex128", "f64"),
    ("float32", True, False, True, 4, "float32", "complex64", "f32"),
    ("float16", True, False, True, 2, "float16", None, "f16"),  # PyTorch's complex32, which NumPy lacks
    ("bfloat16", True, False, True, 2, "bfloat16", "complex64", "bf16"),
    ("int64", False, False, True, 8, "int64", None, "i64"),
    ("int32", False, False, True, 4, "int32", None, "i32"),
    ("int16", False, False, True, 2, "int16", None, "i16"),
    ("int8", False, False, True, 1, "int8", None, "i8"),
    ("uint8", False, False, False, 1, "uint8", None, "u8"),
    ("bool", False, False, False, 1, "bool", None, "b8"),
    ("complex64", False, True, True, 8, "float32", "complex64", "c64"),
    ("complex128", False, True, True, 16, "float64", "complex128", "c128"),
    ("uint16", False, False, False, 2, "uint16", None, "u16"),
    ("uint32", False, False, False, 4, "uint32", None, "u32"),
    ("uint64", False, False, False, 8, "uint64", None, "u64"),
    ("float8_e4m3fn", True, False, True, 1, "float8_e4m3fn", None, "f8e4m3fn"),
    ("float8_e4m3fnuz", True, False, True, 1, "float8_e4m3fnuz", None, "f8e4m3fnuz"),
    ("float8_e5m2", True, False, True, 1, "float8_e5m2", None, "f8e5m2"),
    ("float8_e5m2fnuz", True, False, True, 1, "float8_e5m2fnuz", None, "f8e5m2fnuz"),
    ("float8_e8m0fnu", True, False, False, 1, "float8_e8m0fnu", None, "f8e8m0fnu"),
    ("float4_e2m1fn_x2", True, False, True, 1, "float4_e2m1fn_x2", None, "f4e2m1fnx2"),
]
OF_TENSORS = [row[0] for row in PYTORCH[:10]]


def numpy_dtype(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def complex_or_none(dtype):
    try:
        return dtype.to_complex().name
    except ampkit.DTypeError:
        return None


def test_every_dtype_has_the_attributes_of_pytorch():
    for row in PYTORCH:
        d = dtype_named(row[0])
        real, imaginary = d.to_real(), complex_or_none(d)
        found = d.name, d.is_floating_point, d.is_complex, d.is_signed, d.itemsize, real.name, imaginary, d.abbr
        assert found == row
        assert isinstance(d, ampkit.dtype)
    assert len({*DTYPES.values()}) == len(PYTORCH)


@pytest.mark.parametrize("name", OF_TENSORS)
def test_a_tensor_answers_with_the_public_object_in_every_way_to_make_one(name):
    d = getattr(ampkit, name)
    for asked in (d, name, numpy_dtype(name), numpy_dtype(name).type, numpy_dtype(name).newbyteorder("=")):
        made = ops.zeros(2, dtype=asked)
        found = (made, made.to(asked), made.type(asked), tensor([0, 1], dtype=asked), made.detach(), made.clone())
        assert all(each.dtype is d for each in found)
    assert made.untyped_storage().dtype is ampkit.uint8
    assert type(made.array.dtype) is type(numpy_dtype(name))


def test_other_names_are_the_same_objects():
    pairs = ["half float16", "float float32", "double float64", "short int16", "int int32", "long int64"]
    assert all(getattr(ampkit, old) is getattr(ampkit, new) for old, new in map(str.split, pairs))


@pytest.mark.parametrize("name", OF_TENSORS)
def test_it_equals_numpys_dtype_both_ways_and_hashes_alike(name):
    d, numpy = getattr(ampkit, name), numpy_dtype(name)
    assert d == numpy and numpy == d and d == numpy.type and numpy.type == d and d == d
    assert (d != numpy) is False and (numpy != d) is False
    assert hash(d) == hash(numpy) and {numpy: 1}[d] == 1 and {d: 1}[numpy] == 1 and numpy in {d} and d in {numpy}
    others = [getattr(ampkit, other) for other in OF_TENSORS if other != name]
    assert all(d != other and d != other.dtype and other.dtype != d for other in others)
    assert np.zeros(2, numpy).dtype == d and d in (numpy,)


def test_it_equals_nothing_that_is_no_dtype():
    for other in (None, 3, "auto", tensor([1.0], dtype=ampkit.float64), object(), [], {}):
        assert ampkit.float64 != other and other != ampkit.float64
    assert (ampkit.float64 == None) is False  # noqa: E711  (np.dtype("float64") == None is True)


@pytest.mark.parametrize("name", OF_TENSORS)
def test_copies_and_pickles_are_the_same_object(name):
    d = getattr(ampkit, name)
    assert copy.copy(d) is d and copy.deepcopy({"a": [d]})["a"][0] is d
    assert all(pickle.loads(pickle.dumps(d, protocol)) is d for protocol in range(pickle.HIGHEST_PROTOCOL + 1))


def test_saved_files_give_it_back(tmp_path):
    path = tmp_path / "dtypes.pt"
    ampkit.save({name: getattr(ampkit, name) for name in OF_TENSORS} | {"numpy": np.dtype("float32")}, path)
    loaded = ampkit.load(path)
    assert all(loaded[name] is getattr(ampkit, name) for name in OF_TENSORS)
    assert loaded["numpy"] is np.dtype("float32")  # NumPy's own stays one


def test_its_text_is_its_name_in_ampkit():
    assert [str(getattr(ampkit, name)) for name in OF_TENSORS] == [f"ampkit.{name}" for name in OF_TENSORS]
    assert repr(ampkit.bfloat16) == "ampkit.bfloat16" and f"{ampkit.bool}" == "ampkit.bool"
    assert repr(tensor([1.0], dtype=ampkit.float16, device="cpu")) == "tensor([1.], dtype=ampkit.float16)"
    assert repr(ampkit.Policy(ampkit.bfloat16)) == 'Policy("bfloat16")'


@pytest.mark.parametrize("name", OF_TENSORS)
def test_numpy_takes_it_wherever_it_takes_a_dtype(name):
    d, numpy = getattr(ampkit, name), numpy_dtype(name)
    ones = np.ones((2, 2), np.float32)
    made = [
        np.zeros(3, d), np.ones(3, dtype=d), np.empty(3, d), np.full(3, 1, d), np.zeros_like(ones, d), ones.astype(d),
        np.array([1, 0], d), np.asarray(ones, d), np.frombuffer(bytes(16), d), np.fromiter([1, 0], d),
        np.full_like(ones, 1, d), ones.astype(d).view(d), np.require(ones, d), np.ascontiguousarray(ones, d),
    ]  # fmt: skip
    assert all(array.dtype == numpy for array in made)
    assert np.dtype(d) is numpy
    assert np.promote_types(d, d) == np.result_type(d, d) == np.result_type(np.zeros(2, numpy), d) == numpy
    assert np.can_cast(d, d) and np.issubdtype(d, numpy.type)
    assert np.dtype([("x", d)])["x"] == numpy
    assert np.add.reduce(np.zeros(3, numpy), dtype=d).dtype == numpy


def test_the_attributes_of_numpys_dtype_are_there_too():
    for name in OF_TENSORS:
        d, numpy = getattr(ampkit, name), numpy_dtype(name)
        assert d.dtype is numpy
        for attribute in "kind type itemsize str char num alignment byteorder isnative shape base".split():
            assert getattr(d, attribute) == getattr(numpy, attribute), (name, attribute)
        assert d.newbyteorder(">") == numpy.newbyteorder(">")
    assert ampkit.float16.type(1.5) == np.float16(1.5)
    with pytest.raises(AttributeError, match=r"^'ampkit.dtype' object has no attribute 'no_such'$"):
        _ = ampkit.float32.no_such


def test_it_can_be_neither_made_nor_changed():
    with pytest.raises(ampkit.DTypeError, match="dtype: needs no call"):
        ampkit.dtype("float32")
    for name in ("itemsize", "name", "new", "kind"):
        with pytest.raises(AttributeError, match="takes no attribute"):
            setattr(ampkit.float32, name, 3)
        with pytest.raises(AttributeError, match="takes no attribute"):
            delattr(ampkit.float32, name)
    assert ampkit.float32.itemsize == 4


def test_public_answers_are_the_objects():
    one, layer, lazy = tensor([1.0]), nn.Linear(2, 2, dtype=ampkit.float64), nn.LazyLinear(2, dtype=ampkit.float16)
    with ampkit.autocast(dtype=ampkit.float16):
        inside = ampkit.get_autocast_dtype("cpu")
    answers = {
        "default": (ampkit.get_default_dtype(), ampkit.float32),
        "promoted": (ampkit.promote_types(ampkit.float16, "bfloat16"), ampkit.float32),
        "agreed": (ampkit.result_type(one, 3), ampkit.float32),
        "autocast": (inside, ampkit.float16),
        "outside": (ampkit.get_autocast_dtype("cuda"), ampkit.float16),
        "policy": (ampkit.Policy("bfloat16").dtype, ampkit.bfloat16),
        "parameter": (layer.weight.dtype, ampkit.float64),
        "lazy": (lazy.weight.dtype, ampkit.float16),
        "moved": (layer.to(ampkit.float32).weight.dtype, ampkit.float32),
        "data": (one.double().data.dtype, ampkit.float64),
    }
    assert {name for name, (found, wanted) in answers.items() if found is not wanted} == set()


def test_public_functions_take_it():
    assert ampkit.can_cast(ampkit.int8, ampkit.float16) and not ampkit.can_cast(ampkit.float16, ampkit.int8)
    assert ampkit.finfo(ampkit.bfloat16).eps == 2**-7 and ampkit.finfo(ampkit.float16).dtype == "float16"
    assert ampkit.finfo(dtype_named("float8_e5m2")).max == 57344
    assert ampkit.iinfo(ampkit.int16).max == 32767 and ampkit.iinfo(dtype_named("uint16")).max == 65535
    assert tensor([1.7]).sum(dtype=ampkit.float64).dtype is ampkit.float64
    assert tensor([1.7]).view(ampkit.int32).dtype is ampkit.int32
    assert tensor([1.0]).type() == "torch.FloatTensor"
    ampkit.set_default_dtype(ampkit.float64)
    try:
        assert tensor([1.0]).dtype is ampkit.float64 is ampkit.get_default_dtype()
    finally:
        ampkit.set_default_dtype(ampkit.float32)
    assert json.dumps({"dtype": str(ampkit.float32)}) == '{"dtype": "ampkit.float32"}'


def test_a_dtype_that_no_tensor_has_is_refused_by_its_name():
    with pytest.raises(ampkit.DTypeError, match=r"^dtype: needs one of float64, .*, got ampkit\.complex64"):
        ops.zeros(2, dtype=ampkit.float32.to_complex())


def test_a_format_without_a_complex_one_says_which_have_one():
    with pytest.raises(ampkit.DTypeError) as raised:
        ampkit.int64.to_complex()
    assert str(raised.value) == "to_complex: needs one of float64, float32, bfloat16, got int64"
