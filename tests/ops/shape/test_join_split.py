"""Turns, differences, windows, blocks and products of everything with everything: worked by hand or NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import manual_seed, ops, tensor
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError, StateError
from ampkit.core.autograd.tape import grad

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
    assert tensor(7.0).unfold(0, 1, 1).tolist() == [7]
    assert tensor(7.0).unfold(0, 0, 1).shape == (0,)


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


@pytest.mark.cpu
def test_a_tensor_off_the_tape_gets_other_axes_in_place():
    x = tensor(GRID)
    view = x[0]
    assert x.transpose_(0, 2).unsqueeze_(0) is x
    assert x.squeeze_(0).shape == (4, 3, 2)
    assert x.swapdims_(0, 1).shape == (3, 4, 2)
    x.zero_()
    assert view.sum().item() == 0  # the memory is the same
    with pytest.raises(StateError, match=r"unsqueeze_: needs a tensor that is no leaf.*\nhelp: use what x.unsqueeze"):
        ops.ones(2, requires_grad=True).unsqueeze_(0)


def test_methods_that_are_functions_by_other_names():
    x = tensor([[1.0, 2.0], [3.0, 4.0]])
    assert x.H.tolist() == x.mH.tolist() == x.adjoint().tolist() == [[1, 3], [2, 4]]
    assert x.real is x.conj() is x
    assert x.sum_to_size(1, 2).tolist() == [[4, 6]]
    assert x.sum_to_size(2).tolist() == [4, 6]
    assert x.narrow_copy(0, 1, 1).tolist() == [[3, 4]]
    assert [p.tolist() for p in tensor([1, 2, 3]).split_with_sizes([1, 2])] == [[1], [2, 3]]
    assert ops.promote_types("float16", int) == np.float16
    assert ops.result_type(x, tensor(1.0, dtype="float64")) == np.float32
    assert (x.polygamma(1) - ops.polygamma(1, x)).sum().item() == 0
    with pytest.raises(ShapeError, match="sum_to_size: needs a size that broadcasts"):
        x.sum_to_size(3)


def test_random_numbers_of_three_more_kinds_are_written_in_place():
    manual_seed(0)
    x = ops.zeros(4000, dtype="float64")
    assert np.median(x.cauchy_(2.0, 0.5).numpy()) == pytest.approx(2, abs=0.05)
    assert np.log(x.log_normal_(1.0, 2.0).numpy()).std() == pytest.approx(2, abs=0.1)
    assert x.geometric_(0.25).mean().item() == pytest.approx(4, abs=0.3)
    for call in (lambda: x.cauchy_(0, 0), lambda: x.log_normal_(0, -1), lambda: x.geometric_(1.0)):
        with pytest.raises(ArgumentError):
            call()


def test_no_differences_are_the_input_alone():
    x = tensor([1.0, 2.0, 4.0])
    assert ops.diff(x, 0, prepend=tensor([9.0]), append=tensor([9.0])).tolist() == [1, 2, 4]
    assert ops.diff(x, prepend=tensor([0.0])).tolist() == [1, 1, 2]


def test_padding_by_an_outer_element_may_cut_all_the_others_away():
    x = tensor([1.0, 2.0, 3.0], requires_grad=True)
    assert ops.pad(x, (-3, 2), "replicate").tolist() == [3, 3]
    assert ops.pad(x, (2, -4), "replicate").tolist() == [1]
    assert ops.pad(x, (-2, 1), "replicate").tolist() == [3, 3]
    assert grad(ops.pad(x, (-4, 3), "replicate").sum(), x)[0].tolist() == [0, 0, 2]
