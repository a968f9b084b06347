"""Parameters as a vector, and norms of what one has at hand."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, optim, tensor
from ampkit.base.errors import ArgumentError, DTypeError, NonFiniteError, ShapeError, StateError
from ampkit.nn import utils


def test_parameters_become_a_vector_on_the_tape_and_come_back():
    layer = nn.Linear(3, 2)
    vector = utils.parameters_to_vector(layer.parameters())
    assert vector.tolist() == [*layer.weight.flatten().tolist(), *layer.bias.tolist()]
    (vector * ops.arange(8.0)).sum().backward()
    assert layer.bias.grad.tolist() == [6.0, 7.0]
    optimizer = optim.SGD(layer.parameters(), lr=1.0)
    utils.vector_to_parameters(ops.arange(8.0), layer.parameters())
    optimizer.step()
    assert layer.weight.tolist() == [[0.0] * 3] * 2
    assert layer.bias.tolist() == [0.0, 0.0]


def test_a_vector_is_rounded_to_the_dtypes_of_the_parameters():
    wide, narrow = nn.Parameter(tensor([1.0])), nn.Parameter(tensor([1.0], dtype=ampkit.float16))
    assert utils.parameters_to_vector([wide, narrow]).dtype == ampkit.float32
    utils.vector_to_parameters(tensor([0.1, 0.1]), [wide, narrow])
    assert (wide.dtype, narrow.dtype) == (ampkit.float32, ampkit.float16)
    assert narrow.item() == float(np.float16(0.1))


def test_a_misfit_vector_writes_nothing():
    layer = nn.Linear(3, 2)
    before = utils.parameters_to_vector(layer.parameters()).tolist()
    with pytest.raises(ShapeError, match=r"vector_to_parameters: needs a vector of shape \(8,\), got \(7,\)"):
        utils.vector_to_parameters(ops.ones(7), layer.parameters())
    with pytest.raises(DTypeError, match="a Tensor for `vec`, got list"):
        utils.vector_to_parameters([1.0] * 8, layer.parameters())
    with pytest.raises(DTypeError, match="parameters_to_vector: needs parameters as an iterable"):
        utils.parameters_to_vector([3])
    with pytest.raises(ShapeError, match="at least one Tensor"):
        utils.parameters_to_vector([])
    assert utils.parameters_to_vector(layer.parameters()).tolist() == before


@pytest.mark.parametrize("order", [1.0, 2.0, float("inf")])
def test_the_total_norm_is_that_of_all_values_together(order):
    values = [np.arange(6.0).reshape(2, 3), np.array(-7.0), np.ones((0, 3))]
    expected = np.linalg.norm(np.concatenate([v.ravel() for v in values]), order)
    norm = utils.get_total_norm([tensor(v.astype(np.float32)) for v in values], order)
    assert (norm.shape, norm.dtype) == ((), ampkit.float32)
    assert norm.item() == pytest.approx(expected, rel=1e-6)
    assert utils.get_total_norm(tensor(values[0].T), order).dtype == ampkit.float64
    assert utils.get_total_norm([]).item() == 0


def test_clipping_by_a_norm_that_is_known_is_clipping_by_the_norm():
    def layer():
        made = nn.Linear(2, 1)
        for p in made.parameters():
            p.grad = ops.full(p.shape, 3.0)
        return made

    one, other = layer(), layer()
    norm = utils.get_total_norm([p.grad for p in one.parameters()])
    utils.clip_grads_with_norm_(one.parameters(), 1.0, norm)
    assert optim.clip_grad_norm_(other.parameters(), 1.0).item() == norm.item()
    assert one.weight.grad.tolist()[0] == pytest.approx(other.weight.grad.tolist()[0], rel=1e-6)
    assert utils.get_total_norm([p.grad for p in one.parameters()]).item() == pytest.approx(1.0, rel=1e-6)
    utils.clip_grads_with_norm_(one.parameters(), 1.0, tensor([float("inf")]))
    assert one.weight.grad.tolist() == [[0.0, 0.0]]


def test_norms_that_mean_nothing_are_refused():
    p = nn.Parameter(ops.ones(2))
    ampkit.GradScaler(init_scale=4.0).scale(p.sum()).backward()
    with pytest.raises(StateError, match="get_total_norm: needs unscaled gradients"):
        utils.get_total_norm([p.grad])
    with pytest.raises(StateError, match="clip_grads_with_norm_: needs unscaled gradients"):
        utils.clip_grads_with_norm_([p], 1.0, tensor(1.0))
    with pytest.raises(NonFiniteError, match="get_total_norm: needs a finite norm"):
        utils.get_total_norm(tensor([1.0, float("nan")]), error_if_nonfinite=True)
    with pytest.raises(ArgumentError, match="norm_type"):
        utils.get_total_norm(tensor([1.0]), -1)
    with pytest.raises(DTypeError, match="a Tensor for `total_norm`, got float"):
        utils.clip_grads_with_norm_([p], 1.0, 2.0)
