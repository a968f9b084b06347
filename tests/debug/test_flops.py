"""Floating-point operations are those of the formulas, and of PyTorch's counter."""

from __future__ import annotations

import pytest

import ampkit
from ampkit import autocast, bfloat16, nn, ops
from ampkit.debug import FlopCounter


def leaf(*shape):
    return ampkit.randn(*shape, requires_grad=True)


# Of each: the call, the operations of its forward, and how many times as many its backward takes.
CASES = {
    "linear": (lambda: ops.linear(leaf(3, 5, 7), leaf(11, 7), leaf(11)), 2 * 15 * 7 * 11, 2),
    "linear of data": (lambda: ops.linear(ampkit.randn(15, 7), leaf(11, 7)), 2 * 15 * 7 * 11, 1),
    "matmul": (lambda: leaf(2, 3, 4) @ leaf(4, 5), 2 * 2 * 3 * 4 * 5, 2),
    "vectors": (lambda: leaf(4) @ leaf(4), 2 * 4, 2),
    "bmm": (lambda: ops.bmm(leaf(2, 3, 4), leaf(2, 4, 5)), 2 * 2 * 3 * 4 * 5, 2),
    "addmm": (lambda: ops.addmm(leaf(5), leaf(3, 4), leaf(4, 5)), 2 * 3 * 4 * 5, 2),
    "einsum": (lambda: ops.einsum("bij,bkj->bik", leaf(2, 3, 4), leaf(2, 5, 4)), 2 * 2 * 3 * 4 * 5, 2),
    "einsum of batches": (lambda: ops.einsum("...ij,jk", leaf(2, 3, 4), leaf(4, 5)), 2 * 2 * 3 * 4 * 5, 2),
    "conv2d": (lambda: ops.conv2d(leaf(2, 4, 8, 8), leaf(6, 2, 3, 3), groups=2), 2 * 2 * 6 * 36 * 2 * 9, 2),
    "conv_transpose1d": (lambda: ops.conv_transpose1d(leaf(2, 4, 8), leaf(4, 6, 3)), 2 * 2 * 4 * 8 * 6 * 3, 2),
    "attention": (
        lambda: ops.scaled_dot_product_attention(leaf(2, 3, 5, 8), leaf(2, 3, 7, 8), leaf(2, 3, 7, 8)),
        4 * 2 * 3 * 5 * 7 * 8,
        2.5,
    ),
    "lstm": (lambda: nn.LSTM(3, 4)(leaf(6, 2, 3))[0], 2 * 6 * 2 * (16 * 3 + 16 * 4), 2),
    "gru": (lambda: nn.GRUCell(3, 4)(leaf(2, 3), leaf(2, 4)), 2 * 2 * (12 * 3 + 12 * 4), 2),
    "no product": (lambda: ops.gelu(leaf(4)) * leaf(4) + leaf(4).sum(), 0, 0),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("low", [False, True])
def test_operations_are_those_of_the_formula(name, low):
    call, forward, times = CASES[name]
    with FlopCounter() as counted, autocast(dtype=bfloat16, enabled=low):
        out = call()
        out.sum().backward()
    assert (counted.forward, counted.backward) == (forward, int(times * forward))
    assert counted.total == sum(counted.by_op.values()) == sum(counted.by_module.values())


def test_they_are_told_apart_by_module():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 2)))
    with FlopCounter() as counted:
        model(ampkit.randn(3, 4)).sum().backward()
    assert counted.by_module == {"0": 2 * 3 * 4 * 8 * 2, "2.0": 2 * 3 * 8 * 2 * 3}
    assert counted.by_op == {"linear": counted.total}


def test_the_first_layer_computes_no_gradient_of_data_and_recomputation_counts():
    layer = nn.Linear(4, 8)
    with FlopCounter() as counted:
        ampkit.recompute(layer, leaf(3, 4)).sum().backward()
    assert (counted.forward, counted.backward) == (2 * 2 * 3 * 4 * 8, 2 * 2 * 3 * 4 * 8)


def test_a_known_model_has_the_operations_that_its_paper_says():
    from ampkit.models import resnet18

    with FlopCounter() as counted, ampkit.no_grad():
        resnet18()(ampkit.zeros(1, 3, 224, 224))
    assert counted.forward == 3_628_146_688  # He et al. 2016, table 1: 1.8 x 10^9 multiply-adds; PyTorch's counter
    assert counted.backward == 0
