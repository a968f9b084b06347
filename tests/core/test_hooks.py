"""Hooks on gradients, retained gradients, and backward into some leaves alone."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import ampkit
from ampkit.base.errors import DTypeError, ShapeError, StateError
from ampkit.core.autograd import hooks


def pair():
    return (ampkit.tensor(values, requires_grad=True) for values in ([1.0, 2.0, 3.0], [2.0, 2.0, 2.0]))


def test_a_hook_on_a_leaf_sees_the_whole_gradient_once():
    x, w = pair()
    seen = []
    x.register_hook(lambda g: seen.append(g.tolist()))
    ((x * w).sum() + (x * x).sum()).backward()
    assert seen == [[4.0, 6.0, 8.0]]
    assert x.grad.tolist() == [4.0, 6.0, 8.0]


def test_what_a_hook_returns_replaces_the_gradient_until_it_is_removed():
    x, w = pair()
    y = x * w
    first, second = x.register_hook(lambda g: g * 10), y.register_hook(lambda g: g + 1)
    y.sum().backward(retain_graph=True)
    assert (x.grad.tolist(), w.grad.tolist()) == ([40.0] * 3, [2.0, 4.0, 6.0])
    first.remove()
    second.remove()
    x.grad = None
    y.sum().backward()
    assert x.grad.tolist() == [2.0] * 3


def test_a_result_keeps_its_gradient_where_asked_as_its_hooks_left_it():
    x, w = pair()
    y = x * w
    y.retain_grad()
    y.retain_grad()
    y.register_hook(lambda g: g * 2)
    (y * y).sum().backward()
    assert y.grad.tolist() == [8.0, 16.0, 24.0]
    assert (y * 1).grad is None


def test_hooks_see_second_derivatives():
    x, _ = pair()
    y = (x * x * x).sum()
    seen = []
    (g,) = ampkit.grad(y, x, create_graph=True)
    g.register_hook(lambda d: seen.append(d.tolist()))
    g.sum().backward()
    assert seen == [[1.0] * 3]
    assert x.grad.tolist() == [6.0, 12.0, 18.0]


def test_hooks_on_one_output_of_several():
    x, _ = pair()
    a, b = x.split([1, 2])
    b.register_hook(lambda g: g * 0)
    (a.sum() + b.sum()).backward()
    assert x.grad.tolist() == [1.0, 0.0, 0.0]


def test_the_hooks_of_a_leaf_go_with_it():
    x, _ = pair()
    gc.collect()
    before = len(hooks.leaf_hooks)
    x.register_hook(lambda g: g)
    assert len(hooks.leaf_hooks) == before + 1
    del x
    gc.collect()
    assert len(hooks.leaf_hooks) == before


def test_hooked_gradients_keep_the_tag_of_their_scale():
    p = ampkit.nn.Parameter(np.ones(3, np.float32))
    p.register_hook(lambda g: g * 2)
    optimizer, scaler = ampkit.optim.SGD([p], lr=1.0), ampkit.GradScaler(init_scale=8.0)
    scaler.scale((p * 3).sum()).backward()
    scaler.step(optimizer)
    assert p.tolist() == [-5.0] * 3


def test_what_cannot_be_hooked_is_refused():
    x, _ = pair()
    with pytest.raises(StateError, match="requires grad"):
        x.detach().register_hook(lambda g: g)
    with pytest.raises(DTypeError, match="a callable"):
        x.register_hook(3)
    y = x * 2
    y.register_hook(lambda g: g.sum())
    with pytest.raises(ShapeError, match=r"needs a Tensor of shape \(3,\) and dtype float32, or None, from the hook"):
        y.sum().backward()


def test_backward_writes_only_the_leaves_it_is_told():
    x, w = pair()
    y = (x * w).sum()
    y.backward(inputs=[w], retain_graph=True)
    assert x.grad is None
    assert w.grad.tolist() == [1.0, 2.0, 3.0]
    y.backward(inputs=x)
    assert x.grad.tolist() == [2.0] * 3
    for inputs in ([], [x.detach()], [2.0]):
        with pytest.raises(StateError, match="require grad"):
            (x * w).sum().backward(inputs=inputs)


def test_backward_writes_the_gradients_of_inputs_that_are_no_leaves():
    x, w = pair()
    y = x * w
    z = y * 3
    (z * z).sum().backward(inputs=[y, w])
    assert y.grad.tolist() == (18 * y).tolist()
    assert w.grad.tolist() == (18 * y * x).tolist()
    assert x.grad is None
    assert z.grad is None


def test_a_hook_on_a_leaf_also_sees_what_grad_returns():
    x, w = pair()
    x.register_hook(lambda g: g * 10)
    dx, dw = ampkit.grad(((x * w).sum() + x.sum()), (x, w))
    assert (dx.tolist(), dw.tolist()) == ([30.0] * 3, [1.0, 2.0, 3.0])
    (dx,) = ampkit.grad((x * x * x).sum(), x, create_graph=True)
    assert dx.tolist() == [30.0, 120.0, 270.0]
    assert ampkit.grad(dx.sum(), x)[0].tolist() == [600.0, 1200.0, 1800.0]
    assert x.grad is None


def test_a_hook_for_afterwards_finds_the_whole_gradient_written_once_per_backward():
    x, w = pair()
    seen = []
    handle = x.register_post_accumulate_grad_hook(lambda leaf: seen.append((leaf is x, leaf.grad.tolist())))
    x.register_hook(lambda g: g * 2)
    ((x * w).sum() + x.sum()).backward()
    assert seen == [(True, [6.0] * 3)]
    (w * w).sum().backward()
    ampkit.grad((x * w).sum(), x)
    assert len(seen) == 1
    handle.remove()
    x.sum().backward()
    assert len(seen) == 1


def test_a_hook_for_afterwards_runs_as_soon_as_the_gradient_is_complete():
    first, last, shared = (ampkit.nn.Parameter(np.full(2, 2.0, np.float32)) for _ in range(3))
    seen = []
    for leaf, name in ((first, "first"), (last, "last"), (shared, "shared")):
        leaf.register_post_accumulate_grad_hook(lambda p, name=name: seen.append((name, p.grad.tolist())))
    middle = first * shared
    middle.register_hook(lambda g: seen.append("middle"))
    (middle * shared * last).sum().backward()
    assert seen == [("last", [8.0, 8.0]), "middle", ("shared", [16.0, 16.0]), ("first", [8.0, 8.0])] or seen == [
        ("last", [8.0, 8.0]), "middle", ("first", [8.0, 8.0]), ("shared", [16.0, 16.0])
    ]  # fmt: skip


def test_a_leaf_inside_and_outside_of_a_recomputed_function_is_complete_at_the_end():
    w = ampkit.nn.Parameter(np.full(2, 3.0, np.float32))
    seen = []
    w.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.tolist()))
    y = ampkit.recompute(lambda x: x * w, w * 2)
    (y * w).sum().backward()
    assert seen == [[54.0, 54.0]]  # d(2 w^3)


def test_a_backward_inside_of_another_does_not_end_it():
    seen = []
    w, v = (ampkit.nn.Parameter(ampkit.ones(2)) for _ in range(2))

    def another(leaf):
        with ampkit.enable_grad():
            (v * v).sum().backward()

    w.register_post_accumulate_grad_hook(another)
    v.register_post_accumulate_grad_hook(lambda p: hooks.passes.at_end.append(lambda: seen.append("end")))
    x = ampkit.ones(2, requires_grad=True)
    x.register_post_accumulate_grad_hook(lambda p: seen.append("x"))
    y = x * 2
    (y * w).sum().backward()
    assert seen == ["x", "end"]
    assert not hooks.passes.running


def test_an_optimizer_may_step_in_a_hook_for_afterwards():
    p = ampkit.nn.Parameter(np.ones(3, np.float32))
    optimizer = ampkit.optim.SGD([p], lr=0.5)

    def step(leaf):
        optimizer.step()
        optimizer.zero_grad()

    p.register_post_accumulate_grad_hook(step)
    for expected in (0.0, 0.0):
        (p * p).sum().backward()
        assert p.tolist() == [expected] * 3
        assert p.grad is None


def test_only_leaves_have_hooks_for_afterwards():
    x, w = pair()
    with pytest.raises(StateError, match="needs a leaf that requires grad, got the result of an operation"):
        (x * w).register_post_accumulate_grad_hook(print)
    with pytest.raises(StateError, match="a leaf that requires grad"):
        x.detach().register_post_accumulate_grad_hook(print)
    with pytest.raises(DTypeError, match="a callable"):
        x.register_post_accumulate_grad_hook(3)
    x.register_post_accumulate_grad_hook(print)
    key = id(x)
    assert key in hooks.post_accumulate_hooks
    del x
    gc.collect()
    assert key not in hooks.post_accumulate_hooks


def test_a_hook_that_runs_once_a_gradient_is_written_returns_nothing():
    x, _ = pair()
    x.register_post_accumulate_grad_hook(lambda p: p.grad)
    with pytest.raises(StateError, match="needs a hook that returns None, got a Tensor"):
        (x * 2).sum().backward()


def test_hooks_on_a_leaf_run_as_soon_as_its_gradient_is_whole():
    x, w = pair()
    seen = []
    early = (x * w).sin()  # its node gives both leaves their last gradient
    y = early * w
    x.register_hook(lambda dy: seen.append("x"))
    w.register_hook(lambda dy: seen.append("w"))
    w.register_post_accumulate_grad_hook(lambda leaf: seen.append("w is written"))
    z = x.exp()  # of x alone, and visited before
    z.register_hook(lambda dy: seen.append("z"))
    early.register_hook(lambda dy: seen.append("early"))
    v = ampkit.tensor([1.0, 1.0, 1.0], requires_grad=True)
    v.register_hook(lambda dy: seen.append("v"))
    (y + z * v).sum().backward()
    assert seen == ["v", "z", "early", "x", "w", "w is written"]


def test_hooks_on_a_leaf_have_run_where_a_later_backward_fails():
    class Fails(ampkit.autograd.Function):
        forward = staticmethod(lambda ctx, x: x * 1)

        @staticmethod
        def backward(ctx, dy):
            raise ValueError("of a backward")

    x, w = pair()
    seen = []
    w.register_hook(lambda dy: seen.append(dy.tolist()))
    with pytest.raises(ValueError, match="of a backward"):
        (Fails.apply(x) * w).sum().backward()
    assert seen == [[1, 2, 3]]
