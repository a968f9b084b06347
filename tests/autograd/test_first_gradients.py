"""The first gradient of a leaf is kept without a copy, except where something else refers to its memory."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, optim
from ampkit.core.autograd.leaf_gradient import is_sole_reference, owned_parts

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


def shares(*leaves):
    """Whether the gradients of leaves are parts of one array."""
    first, *others = [leaf.grad.array.base for leaf in leaves]
    return first is not None and all(other is first for other in others)


@pytest.mark.cpu  # where NumPy's arrays tell who refers to their memory
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [ampkit.float32, ampkit.bfloat16], ids=str)
@pytest.mark.parametrize("join", [ops.cat, ops.stack])
def test_leaves_that_were_joined_keep_parts_of_one_gradient(join, dtype, compiled):
    x, y = leaf(dtype), leaf(dtype)

    def step(scale):
        z = join([x, y])
        (z * z * scale).sum().backward()

    (ampkit.compile(step) if compiled else step)(3)
    assert shares(x, y)
    assert not np.shares_memory(x.grad.array, y.grad.array)
    expected = 6 * x.detach().float().numpy()
    for one in (x, y):
        np.testing.assert_allclose(one.grad.float().numpy(), expected, rtol=2e-2 if dtype == ampkit.bfloat16 else 1e-6)
    before = y.grad.clone()
    optim.clip_grad_norm_([x], 1e-3)
    (x * 2).sum().backward()
    x.grad.add_(1)
    np.testing.assert_array_equal(y.grad.numpy(), before.numpy())


@pytest.mark.cpu
def test_a_leaf_that_was_joined_twice_sums_into_its_part():
    x, y = leaf(), leaf()
    factor = ampkit.cat([ampkit.full((N, N), value) for value in (1.0, 2.0, 4.0)])
    (ops.cat([x, y, x]) * factor).sum().backward()
    assert shares(x, y)
    np.testing.assert_array_equal(x.grad.numpy(), 5)
    np.testing.assert_array_equal(y.grad.numpy(), 2)


def test_a_joined_leaf_shares_no_memory_with_what_else_holds_the_gradient():
    def user(z, x, y, seen):
        seed = ampkit.ones_like(z)
        z.backward(seed)
        seen.append(seed)

    def retained(z, x, y, seen):
        z.retain_grad()
        (z * 1).sum().backward()
        seen.append(z.grad)

    def hooked(z, x, y, seen):
        z.register_hook(seen.append)
        (z * 1).sum().backward()

    def node_hooked(z, x, y, seen):
        z.grad_fn.register_prehook(lambda gradients: seen.extend(gradients))
        (z * 1).sum().backward()

    def other_node(z, x, y, seen):  # the sum hands its gradient to both
        w = leaf(shape=z.shape)
        ((z + w) * 1).sum().backward()
        seen.append(w.grad)

    def viewed(z, x, y, seen):
        z.register_hook(lambda gradient: seen.append(gradient[:1]))
        (z * 1).sum().backward()

    for hold in (user, retained, hooked, node_hooked, other_node, viewed):
        x, y, seen = leaf(), leaf(), []
        hold(ops.cat([x, y]), x, y, seen)
        x.grad.zero_()
        y.grad.zero_()
        assert len(seen) == 1, hold.__name__
        np.testing.assert_array_equal(seen[0].numpy(), 1, hold.__name__)


@pytest.mark.cpu
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: ops.cat([x, ops.ones(9 * N, N)]),  # nine tenths of the memory would be of no use
        lambda x, y: ops.cat([x] * 9),
        lambda x, y: ops.cat([x, y, ops.ones(N, N)]),  # y has a gradient
        lambda x, y: ops.cat([x, y], 1),
        lambda x, y: ops.cat([x.t(), y.t()]),
        lambda x, y: ops.cat([x, y.double()]),
        lambda x, y: ops.stack([x, y], 1),
    ],
)
def test_parts_that_would_waste_memory_or_have_another_layout_are_copied(function):
    x, y = leaf(), leaf()
    y.grad = ampkit.zeros(N, N)
    (function(x, y) * 2).sum().backward()
    assert x.grad.array.nbytes == N * N * 4
    assert x.grad.array.base is None or x.grad.array.base.nbytes <= N * N * 4 + (1 << 13)


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("take", "found"),
    [
        (lambda whole, held: [whole[:N], whole[N:]], {0, 1}),
        (lambda whole, held: [whole[:N], None, whole[N:]], set()),
        (lambda whole, held: [whole[:N], whole[: 2 * N][N:], None], {0, 1}),
        (lambda whole, held: [whole[:N], whole[N // 2 : N // 2 + N]], set()),
        (lambda whole, held: [whole[:N], whole[:N]], set()),
        (lambda whole, held: [whole[::2], whole[1::2]], set()),
        (lambda whole, held: [whole[:N], held.append(whole[N:]) or held[-1]], set()),
        (lambda whole, held: [whole[:N], whole[N:], whole[held.append(whole) or slice(1)]], set()),
    ],
)
def test_owned_parts(take, found):
    held, leaves = [], [(leaf(),) for _ in range(3)]
    gradients = take(np.ones((2 * N, N), np.float32), held)
    assert owned_parts(leaves, gradients) == found


@pytest.mark.cpu
def test_parts_with_gaps_are_not_owned():
    whole = np.ones((4 * N, N), np.float32)
    leaves = [(ampkit.Tensor(np.ones((2 * N, N), np.float32)[::2]),) for _ in range(2)]
    gradients = [whole[: 2 * N : 2], whole[2 * N :: 2]]
    del whole
    assert owned_parts(leaves, gradients) == set()


@pytest.mark.cpu
def test_a_part_of_a_gradient_that_flows_on_changes_no_leaf():
    x, y = leaf(), leaf()
    inner = []
    z = y * 1
    z.register_hook(lambda gradient: inner.append(gradient))
    (ops.cat([x, z]) * 2).sum().backward()
    inner[0].zero_()
    x.grad.mul_(2)
    np.testing.assert_array_equal(x.grad.numpy(), 4)
    np.testing.assert_array_equal(y.grad.numpy(), 2)


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
