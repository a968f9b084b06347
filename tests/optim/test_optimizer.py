"""What an optimizer takes as parameters."""

from __future__ import annotations

import pytest

import ampkit
from ampkit import nn, optim
from ampkit.base import dtypes
from ampkit.base.errors import DTypeError
from ampkit.nn import Parameter


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16])
def test_a_leaf_that_is_no_parameter_becomes_one_and_its_views_follow(dtype):
    leaf = ampkit.ones(2, dtype=dtype, requires_grad=True)
    view = leaf.view(2, 1)
    optimizer = optim.SGD([leaf], lr=0.5)
    assert isinstance(leaf, Parameter)
    (view * leaf).sum().backward()
    optimizer.step()
    assert (leaf.tolist(), leaf.grad.tolist(), leaf.grad.dtype) == ([-1, -1], [4, 4], dtypes.float32)
    assert leaf.is_leaf


@pytest.mark.parametrize("wrong", [lambda x: x * 2, lambda x: ampkit.ones(2, dtype=dtypes.int64)])
def test_a_tensor_that_is_no_leaf_of_floats_is_refused_and_stays_one(wrong):
    tensor = wrong(ampkit.ones(2, requires_grad=True))
    with pytest.raises(DTypeError, match="needs Parameters, or leaves of floats, got a Tensor of shape"):
        optim.SGD([tensor], lr=0.1)
    assert not isinstance(tensor, Parameter)


def test_a_parameter_of_bools_or_integers_stays_out_of_the_update():
    mask = nn.Parameter(ampkit.tensor([True, False]), requires_grad=False)
    weight = nn.Parameter(ampkit.ones(2))
    optimizer = optim.SGD([{"params": [mask, weight]}], lr=0.5)
    (weight * mask).sum().backward()
    optimizer.step()
    assert weight.tolist() == [0.5, 1.0] and mask.tolist() == [True, False]
    with pytest.raises(DTypeError, match="needs floating-point parameters, got bool"):
        optim.SGD([mask], lr=0.5)
