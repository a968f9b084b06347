"""What scripts read of a graph and hook into it: `ampkit.autograd.graph`, nodes and their hooks."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import ampkit
from ampkit import ops
from ampkit.autograd import Function
from ampkit.autograd.graph import GradientEdge, get_gradient_edge, register_multi_grad_hook
from ampkit.base.errors import StateError


class Double(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.factor = 2
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, dy):
        return dy * ctx.factor


def described(node):
    below = ", ".join("None" if n is None else described(n) for n, _ in node.next_functions)
    return f"{node.name()}({below})"


def leaf(*values):
    return ampkit.tensor([float(v) for v in values], requires_grad=True)


def test_a_graph_is_read_by_the_names_and_edges_of_its_nodes():
    x, w = leaf(1, 2), leaf(3, 4)
    y = (Double.apply(x) * w + 1).log_softmax(0)
    below = "MulBackward0(DoubleBackward(AccumulateGrad()), AccumulateGrad())"
    assert described(y.grad_fn) == f"LogSoftmaxBackward0(AddBackward0({below}, None))"
    assert type(y.grad_fn).__name__ == y.grad_fn.name()
    assert "grad_fn=<LogSoftmaxBackward0>" in repr(y)


def test_the_end_of_a_graph_at_a_leaf_is_one_object_and_goes_with_the_leaf():
    x = leaf(1, 2)
    ends = [(x * k).grad_fn.next_functions[0][0] for k in (2, 3)]
    assert ends[0] is ends[1]
    assert ends[0].variable is x
    assert ends[0].next_functions == ()
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None
    assert ends[0].variable is None


def test_a_node_of_a_function_has_the_attributes_of_its_context():
    x = leaf(1, 2)
    y = Double.apply(x)
    assert y.grad_fn.factor == 2
    assert y.grad_fn.saved_tensors[0] is x
    assert not hasattr(y.grad_fn, "missing")
    y.sum().backward()
    with pytest.raises(ampkit.StateError, match="already freed"):
        y.grad_fn.saved_tensors  # noqa: B018


def test_a_node_keeps_what_a_script_stores_with_it():
    y = leaf(1) * 2
    y.grad_fn.metadata["name"] = "y"
    assert y.grad_fn.metadata == {"name": "y"}


def test_hooks_of_a_node_see_and_replace_all_its_gradients():
    x, w = leaf(1, 2), leaf(3, 4)
    y = x * w
    seen = []
    y.grad_fn.register_prehook(lambda dys: (dys[0] * 10,))
    y.grad_fn.register_prehook(lambda dys: seen.append([dy.tolist() for dy in dys]))
    y.grad_fn.register_hook(lambda grads, dys: (grads[0] + dys[0], None))
    y.register_hook(lambda dy: dy + 1)  # before the node's own hooks
    y.sum().backward()
    assert seen == [[[20.0, 20.0]]]
    assert x.grad.tolist() == [80.0, 100.0]
    assert w.grad is None


def test_hooks_of_a_node_see_gradients_of_the_shape_and_dtype_of_its_inputs():
    x, bias = ampkit.ones(3, 2, requires_grad=True), ampkit.ones(2, requires_grad=True)
    seen = []
    y = x + bias
    y.grad_fn.register_hook(lambda grads, dys: seen.append([tuple(g.shape) for g in grads]))
    y.sum().backward()
    assert seen == [[(3, 2), (2,)]]


def test_hooks_of_a_node_are_part_of_second_derivatives():
    x = leaf(2, 3)
    y = x**2
    y.grad_fn.register_prehook(lambda dys: (dys[0] * x,))
    (dx,) = ampkit.grad(y.sum(), x, create_graph=True)
    assert dx.tolist() == [8.0, 18.0]  # 2 x^2
    assert ampkit.grad(dx.sum(), x)[0].tolist() == [8.0, 12.0]


def test_a_hook_that_is_removed_is_not_called():
    x = leaf(1)
    y = x * 2
    handle = y.grad_fn.register_prehook(lambda dys: (dys[0] * 10,))
    handle.remove()
    y.backward()
    assert x.grad.tolist() == [2.0]


@pytest.mark.parametrize(
    ("found", "error"),
    [
        (lambda dy: (dy, dy), "1 gradients"),
        (lambda dy: (dy.reshape(1, 2),), "shape"),
        (lambda dy: (2.0,), "shape"),
    ],
)
def test_a_hook_of_a_node_that_returns_something_else_raises(found, error):
    y = leaf(1, 2) * 2
    y.grad_fn.register_prehook(lambda dys: found(dys[0]))
    with pytest.raises(ValueError, match=error):
        y.sum().backward()


def test_hooks_at_a_leaf_run_around_the_write_of_its_gradient():
    x = leaf(1, 1)
    end = (x * 2).grad_fn.next_functions[0][0]
    log = []
    end.register_hook(lambda grads, dys: log.append(("after", grads, dys[0].tolist(), x.grad.tolist())))
    end.register_prehook(lambda dys: (dys[0] / 5,))
    x.register_post_accumulate_grad_hook(lambda leaf: log.append("post-accumulate"))
    x.register_hook(lambda dy: dy - 2)
    for _ in range(2):
        (x + 0).backward(ampkit.ones(2) * 12)
    assert log == [
        "post-accumulate", ("after", (), [2.0, 2.0], [2.0, 2.0]),
        "post-accumulate", ("after", (), [2.0, 2.0], [4.0, 4.0]),
    ]  # fmt: skip


def test_grad_runs_the_hooks_of_tensors_and_only_of_nodes_that_it_visits():
    a = leaf(1)
    b = a * 2
    c = b * 2
    log = []
    a.register_hook(lambda g: log.append("a"))
    b.register_hook(lambda g: log.append("b"))
    b.grad_fn.register_prehook(lambda g: log.append("node"))
    b.grad_fn.next_functions[0][0].register_prehook(lambda g: log.append("write"))
    ampkit.grad(c, b, retain_graph=True)
    assert log == ["b"]
    ampkit.grad(c, a, retain_graph=True)
    assert log == ["b", "b", "node", "a"]


def test_grad_leaves_alone_what_does_not_lead_to_its_inputs():
    class Fails(Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, dy):
            raise AssertionError("this backward leads nowhere")

    x, y = leaf(1, 2), leaf(3, 4)
    aside, z = Fails.apply(x * 2), y * y
    (dy,) = ampkit.grad((aside + z).sum(), y, retain_graph=True)
    assert dy.tolist() == [6.0, 8.0]
    (z + aside).sum().backward(inputs=[y], retain_graph=True)
    assert y.grad.tolist() == [6.0, 8.0]
    assert ampkit.grad(aside.sum(), y, allow_unused=True) == (None,)
    assert ampkit.grad(z.sum(), z)[0].tolist() == [1.0, 1.0]
    z.sum().backward()  # whose node was not visited, and so not freed


def test_grad_takes_the_place_of_a_tensor_in_the_graph():
    x = leaf(1, 2)
    y = x * 1
    before = get_gradient_edge(y)
    y *= 2
    old, new, at_leaf = ampkit.grad((y * y).sum(), (before, y, get_gradient_edge(x)))
    assert new.tolist() == [4.0, 8.0]
    assert old.tolist() == at_leaf.tolist() == [8.0, 16.0]
    pieces = ops.unbind(x * 3)
    edge = GradientEdge(pieces[1].grad_fn, pieces[1].output_nr)
    assert ampkit.grad(pieces[1] * 5, edge, retain_graph=True)[0].item() == 5.0
    with pytest.raises(ampkit.StateError, match="unknown shape"):
        ampkit.grad(pieces[1], [get_gradient_edge(leaf(1)), x], materialize_grads=True)
    with pytest.raises(ampkit.StateError, match="requires grad"):
        get_gradient_edge(ampkit.ones(2))


def test_a_node_that_keeps_no_arrays_can_be_used_twice():
    x = leaf(1, 2)
    y = x + 1
    y.backward(ampkit.ones(2))
    y.backward(ampkit.ones(2))
    assert x.grad.tolist() == [2.0, 2.0]
    z = x * x
    z.backward(ampkit.ones(2))
    with pytest.raises(ampkit.StateError, match="already freed"):
        z.backward(ampkit.ones(2))


def test_second_derivatives_by_replay_visit_each_node_once():
    visits = []

    class Counted(Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, dy):
            visits.append(1)
            return dy

    x = ampkit.tensor(np.linspace(-1, 1, 4), requires_grad=True)
    y = Counted.apply(x)
    for _ in range(3):
        y = ops.layer_norm(y, (4,))
    ampkit.grad(y[0], x, create_graph=True)
    assert len(visits) == 1


def test_a_hook_on_several_tensors_is_called_once_with_all_gradients():
    x, unused = leaf(1, 2), leaf(5)
    y, z = x * 2, x * 3
    seen = []
    handle = register_multi_grad_hook((y, z, unused, x), lambda gradients: seen.append(gradients))
    (y * z).sum().backward(retain_graph=True)
    assert [None if g is None else g.tolist() for g in seen[0]] == [[3.0, 6.0], [2.0, 4.0], None, [12.0, 24.0]]
    (y * z).sum().backward(inputs=[y], retain_graph=True)
    assert [g is not None for g in seen[1]] == [True, False, False, False]
    y.sum().backward(retain_graph=True)
    assert [g is not None for g in seen[2]] == [True, False, False, True]
    (y * z).sum().backward(inputs=[unused, z], retain_graph=True)
    assert [g is not None for g in seen[3]] == [False, True, False, False]
    handle.remove()
    (y * z).sum().backward()
    assert len(seen) == 4


def test_a_hook_on_any_of_several_tensors_is_called_with_the_first_gradient():
    x = leaf(1, 2)
    y = x * 2
    z = y * 3
    seen = []
    with register_multi_grad_hook((y, z, x), lambda gradient: seen.append(gradient.tolist()), mode="any"):
        z.sum().backward(retain_graph=True)
        z.sum().backward(retain_graph=True)
    z.sum().backward()
    assert seen == [[1.0, 1.0]] * 2
    with pytest.raises(ampkit.ArgumentError, match="'all' or 'any', got 'foo'"):
        register_multi_grad_hook((y,), print, mode="foo")


def test_a_hook_on_all_tensors_raises_where_recomputed_functions_hide_what_is_reached():
    x = leaf(1, 2)
    register_multi_grad_hook((x,), print)
    with pytest.raises(ampkit.StateError, match="recomputed"):
        ampkit.recompute(lambda h: h * 2, x).sum().backward()


def test_a_node_can_be_called_for_the_gradients_of_its_inputs():
    x, w = leaf(1, 2), ampkit.tensor([3.0], requires_grad=True)
    y = x * w
    dx, dw = y.grad_fn(ampkit.ones(2))
    assert (dx.tolist(), dw.tolist()) == ([3.0, 3.0], [3.0])
    assert (x * 2).grad_fn.next_functions[0][0].variable is x
    assert y.grad_fn(ampkit.ones(2) * 2)[0].tolist() == [6.0, 6.0]
    for given in ((), (ampkit.ones(2), ampkit.ones(2))):
        with pytest.raises(TypeError, match=r"expected 1 arguments, got \d instead"):
            y.grad_fn(*given)
    y.sum().backward()
    with pytest.raises(ampkit.StateError, match="already freed"):
        y.grad_fn(ampkit.ones(2))


def test_a_recorded_gradient_leaves_former_references_as_they_were():
    x = leaf(1, 2)
    (x * 3).sum().backward()
    former = x.grad
    (x * x).sum().backward(create_graph=True)
    assert former.tolist() == [3.0, 3.0]
    assert x.grad.tolist() == [5.0, 7.0]
    assert ampkit.grad(x.grad.sum(), x)[0].tolist() == [2.0, 2.0]


def test_views_are_known_and_not_detached_in_place():
    x = leaf(1, 2)
    base = x * 1
    part = base[:1].reshape(1, 1)
    assert part._is_view()
    assert part._base is base
    assert base._base is None
    assert not base._is_view()
    with pytest.raises(ampkit.StateError, match=r"use .detach\(\)"):
        part.detach_()
    base.detach_()
    assert not base.requires_grad


def test_backward_takes_the_places_of_tensors_in_the_graph():
    x, w = leaf(1, 2), leaf(3, 4)
    y = x * w
    seen = []
    y.register_hook(lambda dy: seen.append(dy.tolist()))
    y.sum().backward(inputs=[get_gradient_edge(y)], retain_graph=True)
    assert seen == [[1.0, 1.0]]
    assert x.grad is y.grad is None
    y.sum().backward(inputs=[get_gradient_edge(w)])
    assert w.grad.tolist() == [1.0, 2.0]
    assert x.grad is None


def test_backward_to_a_tensor_runs_the_hooks_of_its_node_and_gives_it_the_gradient_from_before_them():
    b = leaf(1) * 2
    log = []
    b.grad_fn.register_prehook(lambda dys: (log.append("node"), (dys[0] * 2,))[1])
    b.register_hook(lambda dy: (log.append("tensor"), dy * 3)[1])
    b.sum().backward(inputs=(b,))
    assert log == ["tensor", "node"] and b.grad.tolist() == [3]


def test_what_keeps_no_arrays_can_be_visited_again_and_what_does_cannot():
    x, w = leaf(1, 2), leaf(3, 4)
    a, b = x * w, w * w
    loss = (a + b).reshape(1, 2)[:, 0:].sum()
    (da,), (db,) = ampkit.grad(loss, a), ampkit.grad(loss, b)
    assert da.tolist() == db.tolist() == [1, 1]
    ampkit.autograd.backward([a, b], [da, db])
    assert x.grad.tolist() == [3, 4] and w.grad.tolist() == [7, 10]
    y = w[[0, 0]].sum()
    y.backward()
    for again in (y, loss):
        with pytest.raises(StateError, match="a graph that was not used before"):
            again.backward()
