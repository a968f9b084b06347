"""Products with vectors, over batches and in chains: one rounding, the cheapest order, autocast, wrong shapes."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from ampkit import autocast, linalg, observe, ops, tensor
from ampkit.base.dtypes import float16
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, ShapeError

ones = ops.ones


@pytest.mark.parametrize(("sizes", "between"), [((10, 100, 5, 50), (10, 5)), ((50, 5, 100, 10), (5, 10))])
def test_a_chain_is_multiplied_in_the_order_that_costs_least(sizes, between):
    shapes = []
    matrices = [ones(a, b) for a, b in pairwise(sizes)]
    with observe.watch(lambda name, inputs, output: shapes.append(tuple(output.shape))):
        out = ops.chain_matmul(*matrices)
    assert shapes == [between, (sizes[0], sizes[-1])]
    assert out.tolist() == ops.chain_matmul(matrices).tolist() == [[math.prod(sizes[1:-1])] * sizes[-1]] * sizes[0]


def test_the_addend_is_rounded_with_the_product_and_left_out_at_beta_0():
    big, row = tensor([2048.0], dtype=float16), ones(1, 2, dtype=float16)
    small = tensor([1.0, 2.0**-12], dtype=float16)  # their sum rounded first would be 1, and 2049 then 2048
    assert ops.addmv(big, row, small).item() == 2050
    nothing = ops.full((2,), math.nan)
    assert ops.addmv(nothing, ones(2, 3), ones(3), beta=0).tolist() == [3, 3]
    assert ops.addr(nothing, ones(2), ones(2), beta=0, alpha=2).tolist() == [[2, 2], [2, 2]]
    yes, no = tensor([True, False]), tensor([[False, True]])
    assert ops.addr(no, yes, yes, beta=3).tolist() == [[True, True], [False, True]]
    assert ops.addr(no, yes, yes, alpha=0).tolist() == [[False, True], [False, True]]
    assert ops.addr(no, yes, yes, beta=0).tolist() == [[True, False], [False, False]]
    sums = ops.addbmm(ones(2), ones(4096, 2, 1, dtype=float16).float(), ones(4096, 1, 2), beta=4)
    assert sums.tolist() == [[4100, 4100], [4100, 4100]]


@pytest.mark.parametrize("name", ["addmv", "addr", "addbmm", "chain_matmul", "vecdot"])
def test_in_autocast_they_run_in_16_bits(name):
    given = {
        "addmv": (ones(2), ones(2, 3), ones(3)),
        "addr": (ones(2, 3), ones(2), ones(3)),
        "addbmm": (ones(2, 4), ones(5, 2, 3), ones(5, 3, 4)),
        "chain_matmul": (ones(2, 3), ones(3, 4), ones(4, 1)),
        "vecdot": (ones(2, 3), ones(3)),
    }[name]
    with autocast(dtype="float16"):
        assert getattr(ops, name)(*given).dtype == float16


@pytest.mark.cpu
def test_what_does_not_fit_is_told_in_a_line():
    for call, error in (
        (lambda: ops.addmv(ones(2), ones(2, 3), ones(2)), ShapeError),
        (lambda: ops.addmv(ones(3), ones(2, 3), ones(3)), ShapeError),
        (lambda: ops.addr(ones(2), ones(2, 1), ones(2)), ShapeError),
        (lambda: ops.addbmm(ones(2, 4), ones(5, 2, 3), ones(4, 3, 4)), ShapeError),
        (lambda: ops.chain_matmul(ones(2, 3), ones(2, 3)), ShapeError),
        (lambda: ops.chain_matmul(), DTypeError),
        (lambda: ops.chain_matmul(ones(2, 3), np.ones((3, 2))), DTypeError),
        (lambda: ops.vecdot(ones(2), ones(3)), ShapeError),
        (lambda: ops.vecdot(ones(2), ones(2), dim=1), RangeError),
    ):
        with pytest.raises(error, match=r"^[a-z_]+: needs .+, got "):
            call()


def test_a_chain_may_begin_with_a_row_and_end_with_a_column():
    row, middle, column = tensor([1.0, 2.0]), tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]), tensor([1.0, 1.0, 2.0])
    assert linalg.multi_dot([row, middle, column]).tolist() == 9
    assert linalg.multi_dot([row, middle]).tolist() == [1, 2, 3]
    assert ops.linalg_multi_dot([middle, column]).tolist() == [3, 3]
    with pytest.raises(ArgumentError, match="multi_dot: needs at least two tensors, got 1"):
        linalg.multi_dot([middle])


def test_the_names_of_torch_linalg_are_there_with_its_prefix():
    x = tensor([[2.0, 0.0], [0.0, 4.0]])
    assert ops.linalg_inv(A=x).tolist() == [[0.5, 0], [0, 0.25]]
    assert ops.linalg_vecdot(x, x).tolist() == [4, 16]
