"""Function: operations that bring a backward of their own."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import ampkit
from ampkit import ops
from ampkit.autograd import Function, gradcheck, gradgradcheck
from ampkit.autograd.function import once_differentiable
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError, StateError


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * dy


class Exp(Function):
    """With setup_context, of what it answers."""

    @staticmethod
    def forward(x, scale=1.0):
        return ops.exp(x * scale)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)
        _, ctx.scale = inputs

    @staticmethod
    def backward(ctx, dy):
        (out,) = ctx.saved_tensors
        return dy * out * ctx.scale, None


class Scaled(Function):
    """x w, saved in part: what nobody needs is None."""

    @staticmethod
    def forward(ctx, x, w, count, name=None):
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, w)
        ctx.seen = ctx.needs_input_grad
        return x * w, count

    @staticmethod
    def backward(ctx, dy, nothing):
        assert nothing is None
        x, w = ctx.saved_tensors
        return dy * w, None if x is None else dy * x, None, None


def leaf(*values, dtype=ampkit.float64):
    return ampkit.tensor(values, dtype=dtype, requires_grad=True)


def one(forward, backward):
    return type("One", (Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})


def test_the_gradient_is_what_backward_says_and_so_is_the_second():
    x = leaf(1.0, -2.0, 3.0)
    Cube.apply(x).sum().backward()
    assert x.grad.tolist() == [3.0, 12.0, 27.0]
    assert gradcheck(Cube.apply, [x]) and gradgradcheck(Cube.apply, x)


def test_forward_without_ctx_hands_over_in_setup_context():
    x = leaf(0.5, 1.0)
    assert gradcheck(Exp.apply, x) and gradgradcheck(Exp.apply, x)
    (dx,) = ampkit.grad(Exp.apply(x, scale=2.0).sum(), x)
    np.testing.assert_allclose(dx.numpy(), 2 * np.exp([1.0, 2.0]), rtol=1e-12)


def test_other_arguments_and_results_pass_through_and_keyword_arguments_have_their_place():
    x, w = leaf(1.0, 2.0), ampkit.tensor([3.0, 4.0], dtype=ampkit.float64)
    out, count = Scaled.apply(x, w, count=7)
    assert count == 7
    out.sum().backward()
    assert (x.grad.tolist(), w.grad) == ([3.0, 4.0], None)
    w.requires_grad_()
    out, _ = Scaled.apply(x.detach(), w, 7, "name")
    out.sum().backward()
    assert w.grad.tolist() == [1.0, 2.0]


def test_backward_may_leave_gradients_to_be_summed_and_retyped():
    row = one(lambda ctx, x: x + ampkit.zeros(2, 3), lambda ctx, dy: dy.double())
    x = leaf(1.0, 2.0, 3.0, dtype=ampkit.float16)
    row.apply(x).sum().backward()
    assert (x.grad.tolist(), x.grad.dtype) == ([2.0] * 3, ampkit.float16)
    p = ampkit.nn.Parameter(ampkit.ones(3, dtype=ampkit.float16))
    (row.apply(p) * 2.0**-20).sum().backward()
    assert (p.grad.tolist(), p.grad.dtype) == ([2 * 2.0**-20] * 3, ampkit.float32)


def test_an_output_without_a_gradient_brings_zeros_or_none():
    seen = []

    def forward(ctx, x, fills):
        ctx.set_materialize_grads(fills)
        whole = x.int()
        constant = x * 5
        ctx.mark_non_differentiable(constant)
        return x * 2, x * 3, constant, whole

    backward = lambda ctx, *dys: (seen.append([None if d is None else d.tolist() for d in dys]), (dys[0] * 2, None))[1]  # noqa: E731
    several, x = one(forward, backward), leaf(1.0)
    for fills in (True, False):
        first, _, constant, whole = several.apply(x, fills)
        assert not constant.requires_grad and not whole.requires_grad
        first.sum().backward()
    assert seen == [[[1.0], [0.0], [0.0], [0]], [[1.0], None, None, None]]
    assert x.grad.tolist() == [4.0]


def test_an_input_that_comes_back_is_a_tensor_of_its_own_in_the_same_memory():
    same = one(lambda ctx, x: x, lambda ctx, dy: dy * 10)
    x = leaf(1.0, 2.0)
    y = same.apply(x)
    assert y is not x
    assert y.data_ptr() == x.data_ptr()
    assert not y.is_leaf
    y.sum().backward()
    assert x.grad.tolist() == [10.0, 10.0]
    with ampkit.no_grad():
        assert not same.apply(x).requires_grad


def test_nothing_is_recorded_where_nothing_is_wanted():
    x = leaf(2.0)
    with ampkit.no_grad():
        assert not Cube.apply(x).requires_grad
    assert not Cube.apply(x.detach()).requires_grad
    seen = []
    one(lambda ctx, x: seen.append(ampkit.is_grad_enabled()) or x * 2, None).apply(x)
    assert seen == [False]


def test_saved_inputs_are_leaves_as_they_were_and_none_may_change_before_backward():
    seen = []
    keeps = one(
        lambda ctx, x, y: (ctx.save_for_backward(x, y, x + y), x * y)[1],
        lambda ctx, dy: (seen.extend(ctx.saved_tensors), (dy, dy))[1],
    )
    x, y = leaf(1.0), leaf(2.0) * 1
    keeps.apply(x, y).backward()
    assert seen[0] is x
    assert seen[1].node is y.node
    assert seen[2].tolist() == [3.0]
    out = Cube.apply(x)
    with ampkit.no_grad():
        x.add_(1.0)
    with pytest.raises(StateError, match="the forward saved, got a tensor that Cube saved changed in place"):
        out.backward()


def test_a_graph_is_freed_with_its_backward_and_without_the_collector():
    gc.disable()
    try:
        x = leaf(1.0, 2.0)
        out = Exp.apply(x)
        node = weakref.ref(out.node)
        out.sum().backward(retain_graph=True)
        del out
        assert node() is None
    finally:
        gc.enable()
    out = Cube.apply(x)
    out.sum().backward(retain_graph=True)
    out.sum().backward()
    with pytest.raises(StateError, match="already freed"):
        out.sum().backward()


def test_a_backward_that_is_differentiable_once_says_so_only_when_it_matters():
    class Once(Cube):
        backward = staticmethod(once_differentiable(Cube.backward))

    x = leaf(2.0)
    (dx,) = ampkit.grad(Once.apply(x), x, create_graph=True)
    assert dx.tolist() == [12.0]
    with pytest.raises(StateError, match="Once: needs a backward that can be differentiated, got one that is marked"):
        ampkit.grad(dx, x)
    Once.apply(x).backward()
    assert x.grad.tolist() == [12.0]


def test_gradients_keep_the_tag_of_their_scale():
    p = ampkit.nn.Parameter(np.ones(2, np.float32))
    optimizer, scaler = ampkit.optim.SGD([p], lr=1.0), ampkit.GradScaler(init_scale=8.0)
    scaler.scale(Cube.apply(p).sum()).backward()
    with pytest.raises(StateError, match="unscale_"):
        ampkit.optim.clip_grad_norm_([p], 1.0)
    scaler.step(optimizer)
    assert p.tolist() == [-2.0, -2.0]


WRONG = [
    (lambda ctx, dy: (dy, dy), ArgumentError, "One.backward: needs 1 gradient, one per argument of forward, .* got 2"),
    (lambda ctx, dy: (), ArgumentError, "needs 1 gradient, .* got 0"),
    (lambda ctx, dy: 3.0, DTypeError, "One.backward: needs Tensors or None, got a float as gradient 0"),
    (lambda ctx, dy: dy.numpy(), DTypeError, "needs Tensors or None, got a ndarray as gradient 0"),
    (lambda ctx, dy: dy[:1].expand(3), ShapeError, r"One_backward: .* the input's shape \(2,\), got \(3,\)"),
]  # fmt: skip


@pytest.mark.cpu
@pytest.mark.parametrize(("backward", "error", "line"), WRONG)
def test_a_backward_that_answers_wrongly_gives_one_clear_line(backward, error, line):
    with pytest.raises(error, match=line):
        one(lambda ctx, x: x * 2, backward).apply(leaf(1.0, 2.0)).sum().backward()


def test_further_nones_do_no_harm_and_none_is_no_gradient():
    x = leaf(1.0)
    one(lambda ctx, x: x * 2, lambda ctx, dy: (dy, None, None)).apply(x).backward()
    one(lambda ctx, x: x * 2, lambda ctx, dy: None).apply(x).backward()
    assert x.grad.tolist() == [1.0]


def test_what_a_function_cannot_do_is_refused():
    x = leaf(1.0)
    with pytest.raises(DTypeError, match="save_for_backward: needs Tensors or None, got a int at 1"):
        one(lambda ctx, x: ctx.save_for_backward(x, 3), None).apply(x)
    for wrong in ([x], {"x": x}, np.ones(1), (x, [x])):
        with pytest.raises(DTypeError, match="One.forward: needs a Tensor or a tuple of them, got a"):
            one(lambda ctx, x, wrong=wrong: wrong, None).apply(x)
    with pytest.raises(StateError, match="a static method `forward`"):
        Function.apply(x)
    with pytest.raises(StateError, match="a static method `backward`"):
        type("Half", (Function,), {"forward": staticmethod(lambda ctx, x: x * 1)}).apply(x).backward()
    with pytest.raises(StateError, match=r"Cube: needs a call: Cube.apply\(...\), got an instance"):
        Cube()
    with pytest.raises(DTypeError, match="gradcheck: needs float64 inputs, got float32"):
        gradcheck(Cube.apply, leaf(1.0, dtype=ampkit.float32))
    with pytest.raises(AssertionError, match="input 0: derivative"):
        gradcheck(one(lambda ctx, x: x * 2, lambda ctx, dy: dy * 3).apply, x)


def test_backward_and_grad_of_several_tensors():
    x, w = leaf(1.0, 2.0), leaf(3.0)
    ampkit.autograd.backward([x.sum(), x * 2], [None, ampkit.ones(2, dtype=ampkit.float64)])
    assert x.grad.tolist() == [3.0, 3.0]
    with pytest.raises(ArgumentError, match="backward: needs 1 grad_tensors, got 2"):
        ampkit.autograd.backward(x.sum(), [None, None])
    for wrong in (lambda: ampkit.autograd.backward(None), lambda: ampkit.grad(x.sum(), 3)):
        with pytest.raises(DTypeError, match="needs a Tensor or a sequence of them"):
            wrong()
    with pytest.raises(StateError, match="inputs that are Tensors and require grad, got input 1 that does not"):
        ampkit.grad(x.sum(), [x, 3])
    dx, dw = ampkit.grad(x.sum(), [x, w], materialize_grads=True)
    assert (dx.tolist(), dw.tolist(), dw.dtype) == ([1.0, 1.0], [0.0], ampkit.float64)
    with pytest.raises(ArgumentError, match="only_inputs=False"):
        ampkit.grad(x.sum(), x, only_inputs=False)
    with pytest.raises(ArgumentError, match="got allow_unused=False"):
        ampkit.grad(x.sum(), [x, w], allow_unused=False, materialize_grads=True)
    _, dw = ampkit.grad((x * x).sum(), [x, w], create_graph=True, materialize_grads=True)
    assert dw.requires_grad
    with pytest.raises(ArgumentError, match="at least one input"):
        ampkit.grad(x.sum(), [])


def test_a_batch_of_gradients_is_a_jacobian():
    x = ampkit.tensor(np.array([1.0, 2.0]), requires_grad=True)
    y = x * x * x
    rows = ampkit.tensor(np.eye(2))
    (found,) = ampkit.grad(y, x, rows, is_grads_batched=True, create_graph=True)
    assert found.tolist() == [[3.0, 0.0], [0.0, 12.0]]
    assert ampkit.grad(found.sum(), x)[0].tolist() == [6.0, 12.0]
    (row,) = ampkit.grad(x.sum(), x, ampkit.tensor(np.array([1.0, 2.0, 3.0])), is_grads_batched=True)
    assert row.tolist() == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    y = x * x
    ampkit.grad(y, x, rows, is_grads_batched=True)
    with pytest.raises(ampkit.StateError, match="already freed"):
        y.sum().backward()
    for seeds in (None, ampkit.ones(2), ampkit.ones(0, 2), (ampkit.ones(2, 1),)):
        with pytest.raises(ampkit.ShapeError, match=r"of shape \[batch"):
            ampkit.grad(x * 2, x, seeds, is_grads_batched=True)


def test_a_tensor_that_forward_returns_twice_stays_one():
    class Twice(Function):
        @staticmethod
        def forward(ctx, x):
            y = x * 2
            return y, y

        @staticmethod
        def backward(ctx, one, other):
            return 2 * one + 2 * other

    x = ampkit.tensor(np.array([1.0, 2.0]), requires_grad=True)
    one, other = Twice.apply(x)
    assert one is other
    assert gradcheck(lambda x: sum(Twice.apply(x)), x)


def test_the_old_name_of_saved_tensors_warns():
    class Old(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_variables
            return dy * x

    x = ampkit.tensor([3.0], requires_grad=True)
    with pytest.warns(DeprecationWarning, match="saved_tensors"):
        Old.apply(x).backward()
    assert x.grad.tolist() == [3.0]


def test_a_constant_that_forward_saves_is_the_same_object_in_backward():
    class Keep(Function):
        @staticmethod
        def forward(ctx, x, constant):
            ctx.save_for_backward(constant)
            return x * constant

        @staticmethod
        def backward(ctx, dy):
            assert ctx.saved_tensors[0] is constant
            return dy * constant, None

    x, constant = ampkit.ones(2, requires_grad=True), ampkit.ones(2)
    Keep.apply(x, constant).sum().backward()
    y = Keep.apply(x, constant)
    constant.add_(1)
    with pytest.raises(StateError, match="changed in place since"):
        y.sum().backward()


def test_recorded_values_are_not_written_to_a_view_that_a_function_took():
    class First(Function):
        @staticmethod
        def forward(ctx, x):
            return x[:1]

        @staticmethod
        def backward(ctx, dy):
            return dy

    base, b = ampkit.ones(2), ampkit.ones(1, requires_grad=True)
    view = First.apply(base)
    with pytest.raises(StateError, match="a view through which gradients pass"):
        view += b
    assert base.tolist() == [1.0, 1.0]


def test_vjp_is_another_name_of_backward():
    class Cubed(Cube):
        backward = Function.backward
        vjp = staticmethod(Cube.backward)

    x = leaf(2.0)
    Cubed.apply(x).sum().backward()
    assert x.grad.tolist() == [12]
    both = type("Both", (Cube,), {"vjp": staticmethod(Cube.backward)})
    with pytest.raises(StateError, match="Both: needs one of the static methods `backward` and `vjp`, got both"):
        both.apply(x).sum().backward()


def test_a_missing_method_is_an_error_of_not_implemented_too():
    with pytest.raises(NotImplementedError, match="a static method `forward`"):
        type("Half", (Function,), {}).apply(leaf(1.0))


def test_what_forward_marks_as_changed_is_among_its_outputs():
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2).clone()

    with pytest.raises(StateError, match="One.forward: needs each tensor that mark_dirty names among its outputs"):
        one(forward, lambda ctx, dy: 2 * dy).apply(leaf(1.0) * 1)
