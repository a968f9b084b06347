"""Arrays without elements behind the first one: a part of the trials, and what they have found."""

from __future__ import annotations

import warnings
from itertools import islice

import pytest

from ampkit import ops, tensor
from ampkit.backends.cpu.native import library as native
from ampkit.base.errors import RangeError
from ampkit.core.dispatch import Kernel
from fuzz import emptied, kernels

pytestmark = pytest.mark.cpu


@pytest.mark.skipif(native.library() is None, reason=native.unavailable_reason())
def test_kernels_answer_as_references_where_one_array_has_no_elements():
    with kernels.kernels_of_any_size(), kernels.poisoned_memory(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [found for trial in islice(emptied.trials(), 0, None, 53) if (found := trial.finding())] == []


def test_one_array_at_a_time_and_all_that_share_a_length_are_emptied():
    case = emptied.Case("linear", emptied.Draw("normal", (2, 3)), emptied.Draw("normal", (4, 3)))
    shapes = {tuple(draw.shape for draw in each.inputs) for each in emptied.emptied(case)}
    assert {((2, 0), (4, 0)), ((2, 3), (4, 0)), ((2, 3), (0, 3)), ((2, 3), (0,)), ((0, 3), (4, 3))} <= shapes


def test_a_kernel_that_fails_where_the_reference_answers_is_found(monkeypatch):
    def fail(*args, **params):
        raise ValueError("of no elements")

    monkeypatch.setattr(ops.linear.forward, "kernels", {"cpu": [Kernel(fail, None)]})
    monkeypatch.setattr(ops.linear.forward, "min_elements", 0)
    assert any(trial.finding().endswith("ValueError: of no elements") for trial in emptied.trials("linear"))


def _zeros(*shape, grad=True):
    return ops.zeros(*shape, requires_grad=grad)


# a call of leaves, and their shapes
CALLS = {
    "images without rows, within padding": (
        lambda x, w: ops.conv2d(x.detach(), w, padding=(2, 1)),
        [(1, 33, 0, 1800), (32, 33, 3, 3)],
    ),
    "linear without features": (lambda x, w: ops.linear(x.detach(), w), [(2, 9, 0), (4, 0)]),
    "attention without query heads": (
        lambda q, k, v: ops.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        [(2, 0, 3, 5), (2, 2, 6, 5), (2, 2, 6, 5)],
    ),
    "no classes": (
        lambda x: ops.multilabel_soft_margin_loss(x, _zeros(2, 3, 0, grad=False), reduction="none"),
        [(2, 3, 0)],
    ),
    "prelu without channels": (ops.prelu, [(2, 0, 4), (0,)]),
}


@pytest.mark.parametrize("name", CALLS)
def test_gradients_where_there_are_no_elements_are_zero(name):
    call, shapes = CALLS[name]
    leaves = [_zeros(*shape) for shape in shapes]
    call(*leaves).sum().backward()
    for leaf in leaves:
        assert leaf.grad is None or (leaf.grad.shape == leaf.shape and not leaf.grad.array.any())
    assert any(leaf.grad is not None for leaf in leaves)


@pytest.mark.parametrize("accumulate", [False, True])
def test_indices_of_index_put_that_do_not_broadcast_are_refused(accumulate):
    rows, columns = tensor([0, 1, 2]), tensor([0, 1])
    with pytest.raises(RangeError, match=r"index_put: needs indices within shape \(4, 5\), got shape mismatch"):
        ops.index_put(ops.zeros(4, 5), (rows, columns), ops.ones(3), accumulate)
