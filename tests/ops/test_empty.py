"""Tensors without elements and without axes: what PyTorch answers for them."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import linalg, ops, tensor
from ampkit.base.errors import ShapeError
from ampkit.core.autograd.tape import grad
from ampkit.testing import gradcheck


def none(*shape, **words):
    return ops.zeros(*shape, **words)


def point():
    return tensor(0.5)


def row():
    return tensor([1.0, 2.0, 4.0])


SHAPES = {
    "searchsorted of rows without elements": (lambda: ops.searchsorted(none(0, 3), none(0, 3)), (0, 3)),
    "searchsorted in empty sequences": (lambda: ops.searchsorted(none(2, 0), none(2, 3)), (2, 3)),
    "searchsorted of nothing": (lambda: ops.searchsorted(none(2, 3), none(2, 0)), (2, 0)),
    "solve_triangular": (lambda: linalg.solve_triangular(none(0, 0), none(0, 2), upper=True), (0, 2)),
    "solve_triangular with ones": (
        lambda: linalg.solve_triangular(none(3, 0, 0), none(3, 0, 2), upper=False, unitriangular=True),
        (3, 0, 2),
    ),
    "matrix_norm": (lambda: linalg.matrix_norm(none(2, 0, 3), 2), (2,)),
    "batch_norm": (lambda: ops.batch_norm(none(0, 3, 4), None, None, training=True), (0, 3, 4)),
    "batch_norm without channels": (lambda: ops.batch_norm(none(2, 0, 4), None, None, training=True), (2, 0, 4)),
    "bilinear without outputs": (lambda: ops.bilinear(none(2, 3), none(2, 2), none(0, 3, 2)), (2, 0)),
    "attention without features": (lambda: ops.scaled_dot_product_attention(*[none(2, 0)] * 3), (2, 0)),
    "repeat_interleave": (lambda: ops.repeat_interleave(none(0, dtype="int64")), (0,)),
    "combinations of none": (lambda: ops.combinations(row(), 0), (0,)),
    "powers of vectors": (lambda: linalg.vander(none(0, 3), N=2), (0, 3, 2)),
    "floor_divide by 0": (lambda: ops.floor_divide(none(0, dtype="int64"), 0), (0,)),
    "unravel_index of a number": (lambda: ops.unravel_index(tensor(5), (2, 3))[0], ()),
}


@pytest.mark.parametrize("name", SHAPES)
def test_what_has_no_elements_gives_an_answer_of_pytorchs_shape(name):
    call, shape = SHAPES[name]
    assert call().shape == shape


VALUES = {
    "searchsorted in nothing": (lambda: ops.searchsorted(none(0), row()), [0, 0, 0]),
    "multi_margin_loss": (lambda: ops.multi_margin_loss(point(), tensor(0)), 0),
    "multilabel_margin_loss": (lambda: ops.multilabel_margin_loss(point(), tensor(0)), 0),
    "kl_div by the batch": (lambda: ops.kl_div(point(), tensor(1.0), reduction="batchmean"), -0.5),
    "vecdot of numbers": (lambda: linalg.vecdot(point(), point()), 0.25),
    "the last of its places": (lambda: ops.unravel_index(tensor([250], "uint8"), (30, 20))[0], [12]),
    "powers of two vectors": (lambda: linalg.vander(tensor([[2.0, 3.0]])), [[[1, 2], [1, 3]]]),
    "the power 0": (lambda: linalg.matrix_power(tensor([[1.0, 2.0], [3.0, 4.0]]), 0), [[1, 0], [0, 1]]),
    "the median of a number": (lambda: ops.nanquantile(point(), 0.5, 0, True), 0.5),
}


@pytest.mark.parametrize("name", VALUES)
def test_numbers_and_narrow_integers_give_pytorchs_values(name):
    call, want = VALUES[name]
    assert call().tolist() == want


@pytest.mark.cpu
@pytest.mark.parametrize(
    "loss",
    [
        lambda x: ops.multi_margin_loss(x, tensor(0)),
        lambda x: ops.multilabel_margin_loss(x, tensor(0)),
        lambda x: ops.kl_div(x, tensor(np.array(0.7)), reduction="batchmean"),
    ],
)
def test_losses_of_a_number_are_differentiated(loss):
    assert gradcheck(loss, tensor(np.array(0.3), requires_grad=True))


def test_an_empty_batch_leaves_running_statistics_and_gives_parameters_a_gradient_of_0():
    mean, var, weight = ops.zeros(3), ops.ones(3), ops.ones(3, requires_grad=True)
    x = none(0, 3, 4, requires_grad=True)
    out = ops.batch_norm(x, mean, var, weight, None, True)
    assert [g.tolist() for g in grad(out.sum(), (x, weight))] == [[], [0, 0, 0]]
    assert (mean.tolist(), var.tolist()) == ([0, 0, 0], [1, 1, 1])


def test_the_power_0_of_a_matrix_stays_on_the_tape():
    x = tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    assert grad(linalg.matrix_power(x, 0).sum(), x)[0].tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.searchsorted(point(), row()), r"searchsorted: needs a sorted_sequence \[..., n\], got shape"),
        (lambda: ops.searchsorted(none(2, 3), 0.5), r"searchsorted: needs input \[2, m\]"),
        (lambda: ops.bucketize(row(), none(2, 3)), r"bucketize: needs boundaries \[n\], got shape \(2, 3\)"),
        (lambda: ops.multilabel_soft_margin_loss(point(), point()), r"multilabel_soft_margin_loss: needs input"),
        (lambda: ops.cosine_embedding_loss(row(), row(), row()), r"cosine_embedding_loss: needs two inputs \[N, n\]"),
        (lambda: ops.hinge_embedding_loss(none(0), none(0)), "hinge_embedding_loss: needs at least one element"),
        (lambda: ops.soft_margin_loss(none(0), none(0)), "soft_margin_loss: needs at least one element for a mean"),
        (lambda: ops.poisson_nll_loss(none(0), none(0)), "poisson_nll_loss: needs at least one element for a mean"),
        (lambda: ops.gaussian_nll_loss(*[none(0)] * 3), "gaussian_nll_loss: needs at least one element for a mean"),
        (lambda: ops.margin_ranking_loss(*[none(0)] * 3), "margin_ranking_loss: needs at least one element for a mean"),
    ],
)
def test_what_has_no_axis_to_look_along_or_no_mean_is_refused_in_one_line(call, message):
    with pytest.raises(ShapeError, match=message):
        call()
