"""Integers stay integers, become float32 or are refused in a line; NumPy's own promotion to float64 never shows."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import ops, tensor, zeros
from ampkit.base.dtypes import bool_, float16, float32, int64, uint8
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError

X = [[1, -2], [3, 0]]


def test_a_factor_of_integers_is_whole():
    x = tensor(X)
    assert ops.addmm(x, x, x, beta=2.0, alpha=-1.0).dtype == int64
    assert ops.addcmul(x, x, x, value=2.0).tolist() == [[3, 6], [21, 0]]
    assert ops.addbmm(x, tensor([X]), tensor([X]), beta=0, alpha=3.0).dtype == int64
    for call in (
        lambda: ops.addmm(x, x, x, beta=0.5),
        lambda: ops.addmv(x[0], x, x[0], alpha=0.5),
        lambda: ops.addcmul(x, x, x, value=0.5),
        lambda: ops.add(x, x, alpha=0.5),
        lambda: ops.threshold(x, 0.5, 1.5),
    ):
        with pytest.raises(ArgumentError, match=r"needs a whole \w+.* for integers, got [01].5\nhelp: cast first"):
            call()


@pytest.mark.parametrize("name", ["hardsigmoid", "hardswish", "selu", "celu", "softshrink", "glu"])
def test_an_activation_that_pytorch_has_for_floats_alone_refuses_integers(name):
    with pytest.raises(DTypeError, match=f"{name}: needs a floating-point tensor, got int64\nhelp: cast it"):
        getattr(ops, name)(tensor(X))


def test_others_answer_in_float32_or_in_the_dtype_that_came():
    x = tensor(X)
    assert ops.softsign(x).dtype == ops.tanhshrink(x).dtype == float32
    assert ops.threshold(x, 0.5, 7.0).tolist() == [[1, 7], [3, 7]]
    assert ops.threshold(x, 0.5, 7.0).dtype == int64
    assert ops.ldexp(tensor([1.5], dtype=float16), tensor([2])).dtype == float16
    assert ops.einsum("ij->", tensor(np.full((2, 200), 3), dtype=uint8)).item() == 1200
    flags = tensor([True, False])
    assert ops.index_add(flags, 0, tensor([1, 1]), flags, alpha=2).dtype == bool_
    assert ops.scatter_reduce(x, 0, tensor([[0, 0]]), tensor([[4, 5]]), "mean").tolist() == [[2, 1], [3, 0]]


def test_what_bool_cannot_be_divided_by_and_what_has_no_axis_is_told_in_a_line():
    flags = tensor([True, False])
    for function in (ops.floor_divide, ops.remainder, ops.fmod):
        with pytest.raises(DTypeError, match=f"{function.__name__}: needs numbers, got bool"):
            function(flags, flags)
    with pytest.raises(ShapeError, match="cross: needs an axis of length 3"):
        ops.cross(zeros(()), zeros(()), -1)
    assert ops.prelu(tensor(-2.0), tensor(0.25)).shape == ()


@pytest.mark.parametrize("dtype", ["uint8", "bool"])
def test_nextafter_refuses_integers_beside_a_number(dtype):
    with pytest.raises(DTypeError, match="a floating-point tensor"):
        ops.nextafter(zeros(3, dtype=dtype), 0.5)
