"""Recurrent cells and layers: the formulas, sequences of several lengths, states in float32, errors in a line."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import Tensor, ops, tensor
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.base.errors import DTypeError, ShapeError
from ampkit.core.autograd.tape import grad
from ampkit.core.op import ops as registry
from ampkit.core.policy import Policy, autocast
from ampkit.testing import assert_close

WIDTH, H, N = 3, 4, 3
GATES = {"rnn_tanh": 1, "rnn_relu": 1, "gru": 3, "lstm": 4}


def drawn(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).normal(size=shape)


def weights(kind, out=H):
    shapes = (GATES[kind] * H, WIDTH), (GATES[kind] * H, out), (GATES[kind] * H,), (GATES[kind] * H,)
    return [drawn(*shape, seed=i) for i, shape in enumerate(shapes)]


def layer(kind, input, states, given, sizes, reverse=False, w_hr=None, dtype=None):
    """-> the output and the last states of the layer op, as arrays."""
    made = [None if a is None else tensor(a if dtype is None else a.astype(dtype)) for a in (input, *states, *given)]
    more = (None if w_hr is None else tensor(w_hr),) if kind == "lstm" else ()
    return [out.numpy() for out in registry[kind](*made, *more, sizes, reverse)]


def states_of(kind, count=N):
    return [drawn(count, H, seed=7), drawn(count, H, seed=8)][: 1 + (kind == "lstm")]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def step(kind, x, states, w_ih, w_hh, b_ih, b_hh):
    """One step by the textbook, in float64."""
    from_x, from_h = x @ w_ih.T + b_ih, states[0] @ w_hh.T + b_hh
    if kind == "lstm":
        i, f, g, o = np.split(from_x + from_h, 4, 1)
        c = sigmoid(f) * states[1] + sigmoid(i) * np.tanh(g)
        return [sigmoid(o) * np.tanh(c), c]
    if kind == "gru":
        (xr, xz, xn), (hr, hz, hn) = np.split(from_x, 3, 1), np.split(from_h, 3, 1)
        new, z = np.tanh(xn + sigmoid(xr + hr) * hn), sigmoid(xz + hz)
        return [(1 - z) * new + z * states[0]]
    return [np.tanh(from_x + from_h) if kind == "rnn_tanh" else np.maximum(from_x + from_h, 0)]


@pytest.mark.parametrize("kind", GATES)
def test_a_cell_is_what_the_textbook_says(kind):
    x, states, given = drawn(N, WIDTH), states_of(kind), weights(kind)
    hx = tuple(map(tensor, states))
    found = getattr(ops, f"{kind}_cell")(tensor(x), hx if kind == "lstm" else hx[0], *map(tensor, given))
    for got, want in zip(found if kind == "lstm" else [found], step(kind, x, states, *given), strict=True):
        assert_close(got, want)


@pytest.mark.parametrize("reverse", [False, True], ids=["with time", "against time"])
@pytest.mark.parametrize("kind", GATES)
def test_a_layer_is_its_cell_step_by_step(kind, reverse):
    x, states, given = drawn(5, N, WIDTH), states_of(kind), weights(kind)
    out, *last = layer(kind, x.reshape(-1, WIDTH), states, given, (N,) * 5, reverse)
    for t in reversed(range(5)) if reverse else range(5):
        states = step(kind, x[t], states, *given)
        assert_close(out.reshape(5, N, H)[t], states[0])
    for got, want in zip(last, states, strict=True):
        assert_close(got, want)


@pytest.mark.parametrize("reverse", [False, True], ids=["with time", "against time"])
@pytest.mark.parametrize("kind", GATES)
def test_sequences_of_several_lengths_go_as_each_goes_alone(kind, reverse):
    lengths, sizes = (4, 2, 1), (3, 2, 1, 1)
    rows = [[(0, 0), (1, 0), (2, 0)], [(0, 1), (1, 1)], [(0, 2)], [(0, 3)]]  # (sequence, time), in the order of rows
    order = [place for at in rows for place in at]
    x, states, given = drawn(N, 4, WIDTH), states_of(kind), weights(kind)
    packed = layer(kind, np.stack([x[n, t] for n, t in order]), states, given, sizes, reverse)
    for n, length in enumerate(lengths):
        alone = layer(kind, x[n, :length], [s[n : n + 1] for s in states], given, (1,) * length, reverse)
        mine = [i for i, (sequence, _) in enumerate(order) if sequence == n]
        assert_close(packed[0][mine], alone[0])
        for together, single in zip(packed[1:], alone[1:], strict=True):
            assert_close(together[n], single[0])


@pytest.mark.parametrize("kind", GATES)
def test_without_a_first_state_it_is_zero(kind):
    x, given = drawn(6, WIDTH), weights(kind)
    zeros = [np.zeros_like(s) for s in states_of(kind)]
    for got, want in zip(
        layer(kind, x, [None] * len(zeros), given, (3, 2, 1), True),
        layer(kind, x, zeros, given, (3, 2, 1), True),
        strict=True,
    ):
        assert_close(got, want)


def test_a_projection_shortens_output_and_state_and_leaves_the_cell():
    x, given, w_hr = drawn(2 * N, WIDTH), weights("lstm", out=2), drawn(2, H)
    out, h, c = layer("lstm", x, [None, None], given, (N, N), w_hr=w_hr)
    state = [np.zeros((N, 2)), np.zeros((N, H))]
    for t in range(2):
        high, cell = step("lstm", x[t * N : (t + 1) * N], state, *given)
        state = [high @ w_hr.T, cell]
        assert_close(out[t * N : (t + 1) * N], state[0])
    assert_close(h, state[0])
    assert_close(c, state[1])


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_the_cell_state_of_an_lstm_stays_float32_through_a_layer(dtype):
    # Gates wide open, and 300 steps of 2^-12: in 16 bits the sum would stop growing.
    steps, small = 300, 2.0**-12
    given = [np.zeros((4, 1)), np.zeros((4, 1)), np.array([30.0, 30.0, small, 30.0]), np.zeros(4)]
    out, h, c = registry["lstm"](
        *(None if a is None else tensor(a.astype(dtype)) for a in (np.zeros((steps, 1)), None, None, *given)),
        None, (1,) * steps, False,
    )  # fmt: skip
    want = np.arange(1, steps + 1) * np.tanh(small)
    assert out.dtype == dtype
    assert_close(out.numpy()[:, 0], np.tanh(want))
    assert_close(c.numpy().astype(float), want[-1:, None], (1e-3, 0))
    assert_close(h.numpy().astype(float), np.tanh(want[-1:, None]), (8e-3, 0))


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_the_state_of_a_gru_stays_float32_through_a_layer(dtype):
    # h' = z h + (1 - z) tanh(10), with 1 - z = 2^-12: a step is below half a unit of 16 bits.
    steps, logit = 300, float(np.log(2.0**12 - 1))
    kept = float(sigmoid(np.array(logit).astype(dtype).astype(float)))
    given = [np.zeros((3, 1)), np.zeros((3, 1)), np.array([0, logit, 10.0]), np.zeros(3)]
    made = [None if a is None else tensor(a.astype(dtype)) for a in (np.zeros((steps, 1)), None, *given)]
    out = registry["gru"](*made, (1,) * steps, False)[0].numpy()
    assert_close(out[:, 0].astype(float), 1 - kept ** np.arange(1, steps + 1), (8e-3, 1e-4))


@pytest.mark.parametrize("kind", GATES)
def test_under_autocast_a_layer_answers_in_16_bits_and_a_policy_can_keep_it_wide(kind):
    made = [tensor(a.astype(np.float32)) for a in (drawn(2 * N, WIDTH), *states_of(kind), *weights(kind))]
    more = ((None,) if kind == "lstm" else ()) + ((N, N), False)
    with autocast(dtype=float16):
        assert registry[kind](*made, *more)[0].dtype == float16
    with autocast(policy=Policy("float16", **{kind: "float32"})):
        assert registry[kind](*made, *more)[0].dtype == float32


@pytest.mark.parametrize("kind", GATES)
def test_what_is_frozen_gets_no_gradient_and_the_rest_the_same(kind):
    values = [drawn(5, WIDTH), *states_of(kind), *weights(kind)]
    more = ((None,) if kind == "lstm" else ()) + ((3, 2), True)

    def gradients(wanted):
        made = [tensor(a, requires_grad=i in wanted) for i, a in enumerate(values)]
        out = registry[kind](*made, *more)[0]
        return grad(out, [made[i] for i in wanted], Tensor(out.array * 0 + 1))

    for some in ([0], [1], [len(values) - 3], [0, len(values) - 1]):
        for got, want in zip(gradients(some), [gradients(range(len(values)))[i] for i in some], strict=True):
            assert_close(got, want)


def test_the_two_biases_have_gradients_of_their_own_memory():
    made = [tensor(a, requires_grad=True) for a in (drawn(N, WIDTH), *states_of("lstm"), *weights("lstm"))]
    out, _, _ = registry["lstm"](*made, None, (N,), False)
    *_, b_ih, b_hh = grad(out, made, Tensor(out.array * 0 + 1))
    assert_close(b_ih, b_hh)
    assert b_ih.array is not b_hh.array


@pytest.mark.parametrize(("change", "says"), [
    ({"hx": (2, 5)}, r"lstm_cell: needs hx \[2, 4\], got \[2, 5\]"),
    ({"cx": (3, 4)}, r"lstm_cell: needs cx \[2, 4\], got \[3, 4\]"),
    ({"input": (2, 5)}, r"lstm_cell: needs input \[N, 3\], got \[2, 5\]"),
    ({"input": (3,)}, r"lstm_cell: needs input \[N, 3\], got \[3\]"),
    ({"w_hh": (12, 4)}, r"lstm_cell: needs w_ih \[4 H, I\] and w_hh \[4 H, P\], got \[16, 3\] and \[12, 4\]"),
    ({"b_hh": (4,)}, r"lstm_cell: needs b_hh \[16\], got \[4\]"),
])  # fmt: skip
def test_shapes_that_do_not_fit_are_named(change, says):
    shapes = {"input": (2, 3), "hx": (2, 4), "cx": (2, 4), "w_ih": (16, 3), "w_hh": (16, 4), "b_ih": (16,)}
    shapes |= {"b_hh": (16,)} | change
    input, hx, cx, *given = (tensor(np.zeros(shape, np.float32)) for shape in shapes.values())
    with pytest.raises(ShapeError, match=says):
        ops.lstm_cell(input, (hx, cx), *given)


def test_the_states_of_an_lstm_are_two():
    x = tensor(np.zeros((2, 3), np.float32))
    for hx in (x, (x,), (x, None), [x, x, x]):
        with pytest.raises(DTypeError, match=r"lstm_cell: needs hx as two Tensors \(h, c\)"):
            ops.lstm_cell(x, hx, x, x)
