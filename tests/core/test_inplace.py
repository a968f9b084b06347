"""Changes in place on the tape: values seen by every alias, gradients as finite differences have them, or an error."""

from __future__ import annotations

import contextlib
import random

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError, StateError


def leaf(values, dtype=ampkit.float64):
    return ampkit.tensor(values, dtype=dtype, requires_grad=True)


def gradient(of, leaf):
    (found,) = ampkit.grad(of.sum(), leaf, retain_graph=True)
    return found.tolist()


def test_an_alias_sees_a_recorded_change():
    w = leaf([1.0, 2.0])
    a = w * 2
    b = a
    b += 1
    assert b is a and a.tolist() == [3, 5]
    assert gradient(a * a, w) == [12, 20]


def test_a_function_that_adds_to_its_argument_changes_the_argument():
    def shift(x):
        x += 10

    y = leaf([1.0]) * 3
    shift(y)
    assert y.tolist() == [13]


def test_a_view_and_what_it_was_taken_from_change_together():
    w = leaf([[1.0, 2.0], [3.0, 4.0]])
    y = w * 1
    row, column, flat = y[0], y[:, 1], y.view(-1)
    row *= 10
    assert y.tolist() == [[10, 20], [3, 4]]
    assert column.tolist() == [20, 4] and flat.tolist() == [10, 20, 3, 4]
    assert gradient(y, w) == gradient(flat, w) == [[10, 10], [1, 1]]
    assert gradient(column, w) == [[0, 10], [0, 1]]
    flat.zero_()
    assert row.requires_grad and gradient(row + column, w) == [[0, 0], [0, 0]]


@pytest.mark.parametrize("view", ["split", "chunk", "unbind"])
def test_one_of_several_views_can_be_overwritten(view):
    w = leaf([1.0, 2.0])
    y = w * w
    second = getattr(y, view)(*((1,) if view == "split" else (2,) if view == "chunk" else ()))[1]
    second.mul_(5)
    assert y.tolist() == [1, 20]
    assert gradient(y, w) == [2, 20]


def test_a_diagonal_is_a_view():
    w = leaf([[1.0, 2.0], [3.0, 4.0]])
    y = w * 1
    y.diagonal().zero_()
    assert y.tolist() == [[0, 2], [3, 0]]
    assert gradient(y, w) == [[0, 1], [1, 0]]
    assert gradient((w * w).diagonal(1), w) == [[0, 4], [0, 0]]


def test_a_buffer_that_recorded_values_are_written_to_goes_on_the_tape():
    w = leaf([1.0, 2.0, 3.0])
    out = ampkit.zeros(2, 3, dtype=ampkit.float64)
    first = out[0]
    out[1] = w * w
    out[0].copy_(w)
    assert out.requires_grad and gradient(out, w) == [3, 5, 7]
    assert first.tolist() == [1, 2, 3] and gradient(first, w) == [1, 1, 1]


def test_items_are_set_on_the_tape():
    w = leaf([1.0, 2.0, 3.0, 4.0])
    y = w * w
    y[0] = 0
    y[y > 8] = -1.0
    assert y.tolist() == [0, 4, -1, -1]
    assert gradient(y, w) == [0, 4, 0, 0]
    y = w * 2
    y[ampkit.tensor([3, 0])] = w[:2] * 5
    assert y.tolist() == [10, 4, 6, 5]
    assert gradient(y, w) == [5, 7, 2, 0]
    y = (w * 2).view(2, 2)
    y[1, ampkit.tensor([0])] = w[0] * 3
    assert y.tolist() == [[2, 4], [3, 8]]
    assert gradient(y, w) == [5, 2, 0, 2]


def test_copy_takes_the_gradient_with_it():
    w = leaf([1.0, 2.0])
    y = ampkit.zeros(2, 2, dtype=ampkit.float32)
    assert y.copy_(w * 3) is y
    assert y.dtype == ampkit.float32 and y.requires_grad
    assert gradient(y, w) == [6, 6]


@pytest.mark.parametrize("change", [lambda y: y.zero_(), lambda y: y.fill_(3.0), lambda y: y.normal_()])
def test_constants_leave_a_gradient_of_zeros(change):
    w = leaf([1.0, 2.0])
    y = w * 2
    change(y)
    assert y.requires_grad and gradient(y, w) == [0, 0]


def test_functions_and_modules_with_inplace_change_their_input():
    w = leaf([-1.0, 2.0])
    for function in (lambda y: ops.relu(y, inplace=True), nn.ReLU(inplace=True), lambda y: y.relu_()):
        y = w * 3
        assert function(y) is y
        assert y.tolist() == [0, 6] and gradient(y, w) == [0, 3]
    held = ampkit.ones(64)
    assert nn.Dropout(0.5, inplace=True)(held) is held and set(held.tolist()) == {0.0, 2.0}
    assert nn.Hardtanh(-1, 1, inplace=True)(held) is held and set(held.tolist()) == {0.0, 1.0}
    with pytest.raises(ArgumentError, match="relu: needs inplace True or False"):
        ops.relu(held, inplace="no")


def test_what_the_tape_saved_before_a_change_serves_or_raises():
    w = leaf([1.0, 2.0])
    y = w * 2
    square = y * y  # saves y
    y += 1  # nobody else shares its memory: what was saved stays
    assert gradient(square, w) == [8, 16]
    y = w * 2
    square, view = y * y, y[0]
    view += 1
    with pytest.raises(StateError, match="of mul changed in place since"):
        square.sum().backward()


@pytest.mark.parametrize("change", [
    lambda x: x.copy_(x * 3), lambda x: ampkit.no_grad()(x.mul_)(2), lambda x: x.data.mul_(2), lambda x: x[:1].zero_(),
])  # fmt: skip
def test_a_recorded_gradient_whose_inputs_change_in_place_is_refused_a_second_backward(change):
    leaf = ampkit.tensor([0.3, 0.5], requires_grad=True)
    x = leaf.clone()
    (first,) = ampkit.autograd.grad(ampkit.cos(x).sum(), [x], create_graph=True)
    change(x)
    with pytest.raises(StateError, match="of sin changed in place since"):
        first.sum().backward()


def test_a_recorded_gradient_whose_output_changes_in_place_is_refused_a_second_backward():
    leaf = ampkit.tensor([0.3, 0.5], requires_grad=True)
    y = leaf.exp()
    (first,) = ampkit.autograd.grad(y.sum(), [leaf], create_graph=True)
    y.data.mul_(2)
    with pytest.raises(StateError, match="changed in place since"):
        first.sum().backward()


def test_a_change_keeps_dtype_and_shape():
    w = leaf([1.0, 2.0], ampkit.float32)
    low = w.to(ampkit.bfloat16) * 1
    low += w
    assert low.dtype == ampkit.bfloat16 and gradient(low, w) == [2, 2]
    with pytest.raises(ShapeError, match="an answer of shape"):
        (w * 1).add_(ampkit.ones(3, 2))
    with pytest.raises(DTypeError, match="whole numbers, for int64"):
        ampkit.tensor([1, 2]).add_(w)


def test_leaves_that_require_grad_change_in_no_grad_only():
    w = leaf([1.0, 2.0])
    for change in (lambda: w.add_(1), lambda: w.__setitem__(0, 1.0), lambda: w[0].zero_(), lambda: w.view(2).mul_(2)):
        with pytest.raises(StateError, match="a leaf that requires grad"):
            change()
    with ampkit.no_grad():
        w.view(2).mul_(2)
        inside = (w * 1)[0:1]
    assert w.tolist() == [2, 4] and w.is_leaf and not inside.requires_grad
    y = w * 1
    with ampkit.no_grad():
        view = y[0:1]
        y.mul_(3)
    assert view.tolist() == [6] and gradient(y, w) == [1, 1]
    with pytest.raises(StateError, match=r"taken in no_grad, or by a Function\nhelp: take the view where"):
        view.mul_(2)


def test_detached_memory_changes_without_a_gradient():
    w = leaf([1.0, 2.0])
    y = w * 1
    aside = y.detach()
    aside += 5
    assert y.tolist() == [6, 7] and not aside.requires_grad and gradient(y, w) == [1, 1]
    y *= 2
    assert aside.tolist() == [12, 14]


@pytest.mark.cpu
def test_numpys_view_of_the_memory_sees_a_change():
    y = leaf([1.0, 2.0]) * 1
    values = y.detach().numpy()
    y += 1
    assert values.tolist() == [2, 3]


def test_axes_of_a_recorded_tensor_change_in_place():
    w = leaf([[1.0, 2.0], [3.0, 4.0]])
    y = w * w
    row = y[0]
    assert y.t_().unsqueeze_(0) is y and y.shape == (1, 2, 2)
    y[0, 1] = 0
    assert y.tolist() == [[[1, 9], [0, 0]]] and row.tolist() == [1, 0]
    assert gradient(y, w) == [[2, 0], [6, 0]] and gradient(row, w) == [[2, 0], [0, 0]]


def test_a_retained_gradient_is_that_of_the_changed_tensor():
    w = leaf([1.0, 2.0])
    y = w * 2
    y.retain_grad()
    y *= 3
    (y * y).sum().backward()
    assert y.grad.tolist() == [12, 24] and w.grad.tolist() == [72, 144]


def test_mark_dirty_hands_back_the_input_itself():
    class Double(ampkit.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx, dy):
            return dy * 2

    w = leaf([1.0, 2.0])
    y = w * 3
    view = y[0]
    assert Double.apply(y) is y
    assert y.tolist() == [6, 12] and gradient(y, w) == [6, 6] and gradient(view, w) == [6, 0]
    with pytest.raises(StateError, match="a leaf that requires grad"):
        Double.apply(w)


def test_a_view_that_a_function_returns_must_not_change():
    class First(ampkit.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x[:1]

        @staticmethod
        def backward(ctx, dy):
            return ops.cat([dy, dy * 0])

    y = leaf([1.0, 2.0]) * 3
    first = First.apply(y)
    y += 1
    assert first.tolist() == [4]
    with pytest.raises(StateError, match="a view that was taken in no_grad, or by a Function"):
        first.mul_(2)


def test_a_parameter_made_of_a_result_shares_its_memory():
    y = leaf([1.0, 2.0]) * 3
    w = nn.Parameter(y)
    y += 1
    assert w.tolist() == [4, 7]


def test_an_operand_that_is_the_tensor_itself_is_read_before_the_change():
    w = leaf([1.0, 3.0])
    y = w * 2
    other = y[0]
    y.mul_(y)
    assert y.tolist() == [4, 36] and gradient(y, w) == [8, 24] and other.tolist() == 4


def test_memory_that_cannot_be_written_is_refused():
    with pytest.raises(StateError, match="memory that can be written"):
        ampkit.ones(1).expand(3).add_(1)


def test_an_expanded_tensor_that_repeats_nothing_can_be_changed():
    ids = ampkit.zeros(3)
    ids.expand(1, -1).copy_(ampkit.arange(3.0)[None])
    assert ids.tolist() == [0, 1, 2]
    w = leaf([1.0, 3.0])
    y = w * 2
    y.expand(1, 2).mul_(3)
    assert y.tolist() == [6, 18] and gradient(y, w) == [6, 6]


# Programs of views and changes, drawn at random, beside the same on NumPy's arrays and central differences of those.

VIEWS = {
    "view": (lambda t: t.reshape(-1),) * 2,
    "t": (lambda t: t.transpose(-1, -2), lambda a: np.swapaxes(a, -1, -2)),
    "row": (lambda t: t[0], lambda a: a[0, ...]),
    "rest": (lambda t: t[1:], lambda a: a[1:]),
    "last": (lambda t: t[..., -1:], lambda a: a[..., -1:]),
    "diagonal": (lambda t: t.diagonal(), lambda a: np.einsum("ii->i", a)),
    "halves": (lambda t: t.chunk(2)[-1], lambda a: a[-(len(a) // 2) :]),
    "axis": (lambda t: t.unsqueeze(0), lambda a: a[None]),
}
CHANGES = {
    "add": (lambda t, o: t.add_(o), lambda a, o: np.add(a, o, out=a)),
    "mul": (lambda t, o: t.mul_(o), lambda a, o: np.multiply(a, o, out=a)),
    "iadd": (lambda t, o: t.__iadd__(o), lambda a, o: np.add(a, o, out=a)),
    "sin": (lambda t, o: t.sin_(), lambda a, o: np.sin(a, out=a)),
    "square": (lambda t, o: t.square_(), lambda a, o: np.square(a, out=a)),
    "zero": (lambda t, o: t.zero_(), lambda a, o: a.fill(0)),
    "copy": (lambda t, o: t.copy_(o), lambda a, o: np.copyto(a, o)),
    "item": (lambda t, o: t.__setitem__(0, 0.5), lambda a, o: a.__setitem__(0, 0.5)),
    "slice": (lambda t, o: t.__setitem__(slice(1), o), lambda a, o: a.__setitem__(slice(1), o)),
    "array": (lambda t, o: t.__setitem__(ampkit.tensor([0]), o), lambda a, o: a.__setitem__(np.array([0]), o)),
}


def drawn(seed):
    draw = random.Random(seed)
    steps = []
    for _ in range(draw.randint(3, 8)):
        table = draw.choice([VIEWS, CHANGES, CHANGES])
        steps.append((draw.choice(list(table)), draw.randrange(100), draw.randrange(100)))
    return draw.random() < 0.5, steps


def run(start, program, side):
    """The arrays (side 1) or tensors (side 0) of a program: a first one, and the views taken of it on the way."""
    of_start, steps = program
    three = ampkit.full((2, 2), 3.0, dtype=ampkit.float64) if side == 0 else np.full((2, 2), 3.0)
    values, row = [start * 2 if of_start else three], (start * start)[0]
    for name, at, kind in steps:
        value, operand = values[at % len(values)], row[kind % 2]
        if name in VIEWS and (name != "diagonal" or value.shape == (2, 2)) and value.ndim == 2:
            values.append(VIEWS[name][side](value))
        elif name in CHANGES and value.ndim:
            CHANGES[name][side](value, operand)
    return values


def total(values):
    return sum((value * value * (k + 1)).sum() for k, value in enumerate(values))


@pytest.mark.cpu
@pytest.mark.parametrize("seed", range(60))
def test_random_programs_of_views_and_changes_agree_with_numpy(seed):
    program, at = drawn(seed), np.array([[0.3, -0.8], [1.1, 0.6]])
    w = leaf(at)
    found = run(w, program, 0)
    for ours, theirs in zip(found, run(at, program, 1), strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=1e-12)
    if not total(found).requires_grad:
        return
    expected = np.zeros((2, 2))
    for i in np.ndindex(2, 2):
        step = np.zeros((2, 2))
        step[i] = 1e-5
        expected[i] = (total(run(at + step, program, 1)) - total(run(at - step, program, 1))) / 2e-5
    (first,) = ampkit.grad(total(found), w, create_graph=True, allow_unused=True)
    np.testing.assert_allclose(first.detach().numpy(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("pick", [
    lambda x: ops.max(x, -1), lambda x: ops.min(x, 0), lambda x: ops.sort(x), lambda x: ops.topk(x, 2),
    lambda x: ops.cummax(x, -1), lambda x: ops.max_pool1d(x, 2, return_indices=True),
])  # fmt: skip
def test_indices_that_backward_needs_are_not_changed_unnoticed(pick):
    x = ampkit.tensor([[1.0, 5.0, 2.0, 7.0]], requires_grad=True)
    values, _ = pick(x)
    (want,) = ampkit.grad(values.sum(), x)
    values, indices = pick(x)
    indices.mul_(0)
    with contextlib.suppress(StateError):  # unless the node keeps indices of its own
        assert ampkit.grad(values.sum(), x)[0].tolist() == want.tolist()


@pytest.mark.parametrize("recorded", [False, True])
def test_values_for_a_mask_may_have_leading_axes_of_length_1_and_no_others(recorded):
    mask = ampkit.tensor([[True, False, True], [True, True, False]])
    for value in (ampkit.full((1, 4), 2.0), ampkit.full((1, 1), 2.0), [[2.0, 2.0, 2.0, 2.0]], 2.0):
        x = ampkit.zeros(2, 3, requires_grad=recorded) * 1
        x[mask] = value
        assert x.tolist() == [[2.0, 0.0, 2.0], [2.0, 2.0, 0.0]]
    for value in (ampkit.ones(2, 3), ampkit.ones(5), ampkit.ones(4, 1)):
        x = ampkit.zeros(2, 3, requires_grad=recorded) * 1
        with pytest.raises(ShapeError, match="broadcasts to x\\[index\\]"):
            x[mask] = value


def test_the_gradient_of_values_for_a_mask_has_their_shape():
    values = ampkit.ones(1, 2, requires_grad=True)
    x = ampkit.zeros(3)
    x[ampkit.tensor([True, False, True])] = values * 3
    x.sum().backward()
    assert values.grad.tolist() == [[3.0, 3.0]]
