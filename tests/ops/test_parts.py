"""Turns, differences, windows, blocks and products of everything with everything: worked by hand or NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import ops, tensor
from ampkit.core.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.tape import grad

GRID = np.arange(24).reshape(2, 3, 4)


@pytest.mark.parametrize("k", range(-3, 5))
def test_a_turn_is_numpys(k):
    assert ops.rot90(tensor(GRID), k, (2, 0)).tolist() == np.rot90(GRID, k, (2, 0)).tolist()


def test_kroneckers_product_has_every_product():
    assert ops.kron(tensor([[1, 2]]), tensor([1, 10, 100])).tolist() == [[1, 10, 100, 2, 20, 200]]
    assert ops.kron(tensor(GRID), tensor([[1], [-1]])).tolist() == np.kron(GRID, [[[1], [-1]]]).tolist()


def test_differences_of_neighbours_n_times_over():
    x = tensor([1, 4, 9, 16])
    assert x.diff().tolist() == [3, 5, 7]
    assert x.diff(2).tolist() == [2, 2]
    assert x.diff(prepend=tensor([0])).tolist() == [1, 3, 5, 7]
    assert x.diff(9).tolist() == []
    assert tensor([True, False, False]).diff().tolist() == [True, False]


def test_windows_slide_and_their_gradient_adds_up():
    x = tensor([1.0, 2.0, 3.0, 4.0, 5.0], requires_grad=True)
    assert x.unfold(0, 3, 2).tolist() == [[1, 2, 3], [3, 4, 5]]
    assert grad(x.unfold(0, 3, 1).sum(), x)[0].tolist() == [1, 2, 3, 2, 1]
    assert tensor(GRID).unfold(1, 2, 1).shape == (2, 2, 4, 2)


def test_pieces_of_nearly_equal_length_or_cut_at_places():
    x = tensor([0, 1, 2, 3, 4, 5, 6])
    assert [p.tolist() for p in x.tensor_split(3)] == [[0, 1, 2], [3, 4], [5, 6]]
    assert [p.tolist() for p in x.tensor_split((1, -2, 9))] == [[0], [1, 2, 3, 4], [5, 6], []]
    assert [p.shape for p in tensor(GRID).hsplit(3)] == [(2, 1, 4)] * 3
    assert [p.shape for p in tensor(GRID).dsplit([1])] == [(2, 3, 1), (2, 3, 3)]
    assert [p.shape for p in tensor(GRID).vsplit(2)] == [(1, 3, 4)] * 2


def test_blocks_choices_and_grids():
    blocks = ops.block_diag(tensor([[1, 2]]), tensor(3), tensor([4, 5]))
    assert blocks.tolist() == [[1, 2, 0, 0, 0], [0, 0, 3, 0, 0], [0, 0, 0, 4, 5]]
    assert ops.cartesian_prod(tensor([1, 2]), tensor([3, 4])).tolist() == [[1, 3], [1, 4], [2, 3], [2, 4]]
    assert ops.combinations(tensor([7, 8, 9])).tolist() == [[7, 8], [7, 9], [8, 9]]
    assert ops.combinations(tensor([7, 8]), 2, True).tolist() == [[7, 7], [7, 8], [8, 8]]
    assert ops.diagflat(tensor([[1, 2]]), -1).tolist() == [[0, 0, 0], [1, 0, 0], [0, 2, 0]]
    assert ops.logspace(0, 3, 4, 2).tolist() == [1, 2, 4, 8]


@pytest.mark.cpu
def test_what_cannot_be_parted_is_told_in_a_line():
    x = ops.ones(2, 3)
    for call, error in (
        (lambda: ops.rot90(x, 1, (0, 0)), ShapeError),
        (lambda: ops.rot90(x, 1, (0,)), ShapeError),
        (lambda: x.diff(-1), ArgumentError),
        (lambda: x.tensor_split(0), ArgumentError),
        (lambda: x.hsplit(2), ShapeError),
        (lambda: x.dsplit(1), ShapeError),
        (lambda: x.unfold(0, 3, 1), ShapeError),
        (lambda: x.unfold(0, 1, 0), ArgumentError),
        (lambda: ops.block_diag(ops.ones(1, 1, 1)), ShapeError),
        (lambda: ops.combinations(x), ShapeError),
        (lambda: ops.cartesian_prod(x[0], [1.0]), DTypeError),
    ):
        with pytest.raises(error, match=r"^[a-z_0-9]+: needs .+, got "):
            call()
