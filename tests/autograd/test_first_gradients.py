"""The first gradient of a leaf is kept without a copy, except where something else refers to its memory."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, optim
from ampkit.core.autograd.accumulate import is_sole_reference

N = 300


def leaf(dtype=ampkit.float32, shape=(N, N)):
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return ampkit.tensor(values).to(dtype).detach().requires_grad_()


@pytest.fixture
def kept(monkeypatch):
    """Whether each first gradient of a leaf became its `grad`, in their order."""
    found, accumulate = [], ampkit.Tensor.accumulate

    def watched(self, gradient, tag=None, owned=False):
        first = self._grad is None
        accumulate(self, gradient, tag, owned)
        if first:
            found.append(self._grad.array is gradient)

    monkeypatch.setattr(ampkit.Tensor, "accumulate", watched)
    return found


@pytest.mark.cpu  # where NumPy's arrays tell who refers to their memory
@pytest.mark.parametrize("dtype", [ampkit.float32, ampkit.bfloat16], ids=str)
@pytest.mark.parametrize(
    "function",
    [ops.exp, lambda x: ops.softmax(x, -1), lambda x: x * x, lambda x: ops.exp(x).reshape(-1), lambda x: x @ x],
)
def test_a_gradient_that_nothing_else_holds_is_kept(function, dtype, kept):
    x = leaf(dtype)
    function(x).sum().backward()
    assert any(kept)
    first = x.grad.numpy().copy()
    x.grad = None
    function(x).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), first)


def test_two_leaves_that_get_one_gradient_do_not_share_memory():
    for combine in (
        lambda x, y: x + y,
        lambda x, y: (x + y) * 2,
        lambda x, y: (x + y.t()) * 2,
        lambda x, y: ops.cat([x, y]) * 2,
        lambda x, y: ops.stack([x, y]) * 2,
        lambda x, y: (x.reshape(-1) + y.reshape(-1)) * 2,
        lambda x, y: x - y,
    ):
        x, y = leaf(), leaf()
        combine(x, y).sum().backward()
        assert not np.shares_memory(x.grad.array, y.grad.array)
        before = y.grad.numpy().copy()
        x.grad.mul_(0)
        np.testing.assert_array_equal(y.grad.numpy(), before)


def test_a_leaf_used_twice_sums_into_memory_of_its_own():
    x = leaf()
    y = x * 2
    seed = ampkit.ones(N, N)
    (x + y + x).backward(seed)
    np.testing.assert_array_equal(x.grad.numpy(), 4)
    np.testing.assert_array_equal(seed.numpy(), 1)


@pytest.mark.parametrize("function", [lambda x: x + 1, lambda x: x.reshape(-1), lambda x: x.t(), lambda x: x])
def test_the_gradient_that_a_user_passes_stays_the_users(function):
    x = leaf()
    y = function(x)
    seed = ampkit.ones(*y.shape)
    y.backward(seed)
    assert not np.shares_memory(x.grad.array, seed.array)
    x.grad.zero_()
    np.testing.assert_array_equal(seed.numpy(), 1)


def test_a_gradient_that_a_hook_or_retain_grad_holds_is_copied():
    x, seen = leaf(), []
    y = x + 1
    y.register_hook(seen.append)
    y.retain_grad()
    (y * 3).sum().backward()
    x.grad.zero_()
    assert len(seen) == 1
    np.testing.assert_array_equal(seen[0].numpy(), 3)
    np.testing.assert_array_equal(y.grad.numpy(), 3)


def test_a_gradient_that_a_leaf_hook_holds_is_copied():
    x, seen = leaf(), []
    x.register_hook(seen.append)
    (x * 3).sum().backward()
    x.grad.zero_()
    np.testing.assert_array_equal(seen[0].numpy(), 3)


def test_what_a_node_saved_is_not_handed_out():
    class Saves(ampkit.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x * 5)
            return x * 1

        @staticmethod
        def backward(ctx, dy):
            return ctx.saved_tensors[0]

    x = leaf()
    y = Saves.apply(x)
    y.sum().backward(retain_graph=True)
    first = x.grad.numpy().copy()
    x.grad.zero_()
    x.grad = None
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), first)


def test_a_retained_graph_gives_the_same_gradients_again():
    x = leaf()
    y = ops.softmax(ops.exp(x) * x, -1).sum() + (x * x).sum()
    y.backward(retain_graph=True)
    first = x.grad.numpy().copy()
    x.grad.zero_()
    x.grad = None
    y.backward()
    np.testing.assert_array_equal(x.grad.numpy(), first)


def test_a_gradient_held_by_the_user_keeps_its_values_in_the_next_backward():
    x = leaf()
    ops.exp(x).sum().backward()
    held, first = x.grad, x.grad.numpy().copy()
    x.grad = None
    (x * 2).sum().backward()
    np.testing.assert_array_equal(held.numpy(), first)
    np.testing.assert_array_equal(x.grad.numpy(), 2)


def test_broadcast_gradients_are_copied_into_whole_memory(kept):
    x = leaf()
    (x + 1).sum().backward()
    assert kept == [False]
    assert x.grad.array.flags.c_contiguous
    x.grad.add_(ops.eye(N))
    assert x.grad.numpy().sum() == N * N + N


@pytest.mark.cpu
def test_an_optimizers_memory_holds_the_gradient_of_its_parameters(kept):
    p = nn.Parameter(leaf())
    optimizer = optim.SGD([p], lr=1.0)
    ops.exp(p).sum().backward()
    assert p.grad.array is p._arena_segment.gradient
    optimizer.step()
    plain = nn.Parameter(leaf())
    ops.exp(plain).sum().backward()
    assert kept[-1]


@pytest.mark.parametrize(
    ("make", "sole"),
    [
        (lambda: np.ones((3, 4)), True),
        (lambda: np.ones((3, 4)).T, True),
        (lambda: np.ones((300, 400))[:3], False),  # would keep a hundred times its memory
        (lambda: np.broadcast_to(np.ones(4), (3, 4)), False),
        (lambda: np.lib.stride_tricks.as_strided(np.ones(12), (3, 4), (8, 8)), False),
        (lambda: np.frombuffer(bytearray(96)), False),
        (lambda: np.frombuffer(bytes(96)), False),
    ],
)
def test_sole_references(make, sole):
    held = [make()]
    array = held[0]
    assert is_sole_reference(held, 0) == sole
    if sole:
        other = array[:1]
        assert not is_sole_reference(held, 0)
        del other
        assert is_sole_reference(held, 0)
        again = array
        assert not is_sole_reference(held, 0)
        del again


def test_a_gradient_has_the_order_of_axes_of_its_leaf():
    values = np.zeros((2, 5, 3, 4), np.float32).transpose(0, 3, 1, 2)
    x = ampkit.tensor(values).requires_grad_()
    assert x.array.strides == values.strides
    (x + 1).backward(ampkit.tensor(values + 1))
    assert x.grad.array.strides == values.strides
    x.grad = None
    (x + 1).backward(ampkit.ones(2, 4, 5, 3))
    assert x.grad.array.strides == values.strides
    y = ampkit.tensor(np.broadcast_to(np.float32(1), (3, 4))).requires_grad_()
    (y + 1).backward(ampkit.ones(3, 4))
    assert y.grad.array.flags.c_contiguous
