"""Recurrent layers: what they are made of, their options, packed sequences, and the words of PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, tensor
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence
from ampkit.testing import assert_close

STEPS, BATCH, WIDTH, H = 4, 3, 3, 5
KINDS = ["RNN", "LSTM", "GRU"]


def drawn(*shape, seed=0):
    return tensor(np.random.default_rng((seed, *shape)).normal(size=shape).astype(np.float32))


def both(states):
    return states if isinstance(states, tuple) else (states,)


def cell_of(layer, suffix, read):
    """The cell with the weights of one layer and direction."""
    cell = getattr(nn, f"{type(layer).__name__}Cell")(read, H, layer.bias)
    cell.load_state_dict({k.removesuffix(suffix): v for k, v in layer.state_dict().items() if k.endswith(suffix)})
    return cell


def by_cells(layer, x, states):
    """The layer's output and last states, cell by cell, for x [T, N, I] and states per layer and direction."""
    last = []
    for depth in range(layer.num_layers):
        sides = []
        for suffix in (f"_l{depth}", f"_l{depth}_reverse")[: 1 + layer.bidirectional]:
            cell, state, outs = cell_of(layer, suffix, x.shape[-1]), states[len(last)], {}
            times = range(len(x))
            for t in reversed(times) if suffix.endswith("reverse") else times:
                state = cell(x[t], state)
                outs[t] = both(state)[0]
            last.append(both(state))
            sides.append(ops.stack([outs[t] for t in times]))
        x = ops.cat(sides, -1)
    return x, [ops.stack(list(each)) for each in zip(*last, strict=True)]


@pytest.mark.parametrize("given", [False, True], ids=["from zero", "from a state"])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"num_layers": 2, "bias": False}])
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_is_made_of_cells(kind, options, given):
    layer = getattr(nn, kind)(WIDTH, H, **options)
    x, count = drawn(STEPS, BATCH, WIDTH), layer.num_layers * (1 + layer.bidirectional)
    h, c = drawn(count, BATCH, H, seed=1), drawn(count, BATCH, H, seed=2)
    hx = ((h, c) if kind == "LSTM" else h) if given else None
    states = [((h[i], c[i]) if kind == "LSTM" else h[i]) if given else None for i in range(count)]
    out, last = layer(x, hx)
    want, ended = by_cells(layer, x, states)
    assert_close(out, want)
    for got, truth in zip(both(last), ended, strict=True):
        assert_close(got, truth)


@pytest.mark.parametrize("kind", KINDS)
def test_batch_first_and_a_single_sequence_move_axes_alone(kind):
    ampkit.manual_seed(0)
    layer = getattr(nn, kind)(WIDTH, H, 2, bidirectional=True)
    first = getattr(nn, kind)(WIDTH, H, 2, batch_first=True, bidirectional=True)
    first.load_state_dict(layer.state_dict())
    x = drawn(STEPS, BATCH, WIDTH)
    out, last = layer(x)
    turned, same = first(x.transpose(0, 1))
    assert_close(turned.transpose(0, 1), out)
    alone, ended = layer(x[:, 1])
    assert_close(alone, out[:, 1])
    for got, again, truth in zip(both(ended), both(same), both(last), strict=True):
        assert_close(again, truth)
        assert_close(got, truth[:, 1])
    given = [state[:, 1] for state in both(last)]
    assert layer(x[:, 1], tuple(given) if kind == "LSTM" else given[0])[0].shape == (STEPS, 2 * H)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_first", [False, True])
def test_packed_sequences_in_any_order_go_as_each_goes_alone(kind, batch_first):
    layer = getattr(nn, kind)(WIDTH, H, 2, batch_first=batch_first, bidirectional=True)
    lengths, x = [2, 4, 1], drawn(STEPS, BATCH, WIDTH)
    state = drawn(4, BATCH, H, seed=3)
    hx = (state, state * 0.5) if kind == "LSTM" else state
    packed = pack_padded_sequence(x.transpose(0, 1) if batch_first else x, lengths, batch_first, enforce_sorted=False)
    out, last = layer(packed, hx)
    assert isinstance(out, PackedSequence)
    padded, found = pad_packed_sequence(out, batch_first, padding_value=-7.0)
    padded = padded.transpose(0, 1) if batch_first else padded
    assert found.tolist() == lengths
    for n, length in enumerate(lengths):
        mine = tuple(each[:, n] for each in both(hx))
        alone, ended = layer(x[:length, n], mine if kind == "LSTM" else mine[0])
        assert_close(padded[:length, n], alone)
        assert (padded[length:, n].numpy(force=True) == -7).all()
        for got, truth in zip(both(last), both(ended), strict=True):
            assert_close(got[:, n], truth)


def test_gradients_flow_through_packing_and_not_into_padding():
    x = tensor(np.ones((STEPS, BATCH, WIDTH), np.float32), requires_grad=True)
    out, _ = nn.GRU(WIDTH, H)(pack_padded_sequence(x, [4, 2, 1]))
    pad_packed_sequence(out, padding_value=3.0)[0].sum().backward()
    there = (x.grad.numpy() != 0).any(-1)
    assert there.sum(0).tolist() == [4, 2, 1]


def test_parameters_have_pytorchs_names_shapes_and_first_values():
    layer = nn.LSTM(WIDTH, H, 2, bidirectional=True, proj_size=2)
    shapes = {name: tuple(value.shape) for name, value in layer.state_dict().items()}
    names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr"]
    assert list(shapes) == [n + s for s in ("_l0", "_l0_reverse", "_l1", "_l1_reverse") for n in names]
    assert [shapes[n + "_l0"] for n in names] == [(20, 3), (20, 2), (20,), (20,), (2, 5)]
    assert shapes["weight_ih_l1_reverse"] == (20, 4)
    values = np.concatenate([p.numpy(force=True).reshape(-1) for p in layer.parameters()])
    assert 0.95 < np.abs(values).max() * np.sqrt(H) <= 1
    assert abs(values.mean()) < 0.05
    assert [len(each) for each in layer.all_weights] == [5] * 4
    assert layer.flatten_parameters() is None
    assert repr(layer) == "LSTM(3, 5, proj_size=2, num_layers=2, bidirectional=True)"
    layer.bias = np.ones(2)  # whatever it holds
    assert "bias=[1. 1.]" in repr(layer) and layer(drawn(2, 3))[0].shape == (2, 4)
    assert repr(nn.RNNCell(3, 5, False, "relu")) == "RNNCell(3, 5, bias=False, nonlinearity=relu)"


def test_dropout_is_between_layers_and_in_training_alone():
    ampkit.manual_seed(1)
    layer, x = nn.RNN(WIDTH, H, 2, "relu", dropout=0.999), drawn(STEPS, BATCH, WIDTH)
    plain = nn.RNN(WIDTH, H, 2, "relu")
    plain.load_state_dict(layer.state_dict())
    assert_close(layer.eval()(x)[0], plain(x)[0])
    dropped, kept = layer.train()(x)[1], plain(x)[1]
    assert_close(dropped[0], kept[0])
    assert np.abs(dropped[1].numpy(force=True) - kept[1].numpy(force=True)).max() > 0.01
    single = nn.RNN(WIDTH, H, dropout=0.999)
    assert_close(single(x)[0], single.eval()(x)[0])


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_under_autocast_all_answers_are_16_bit_and_gradients_of_weights_float32(kind, dtype):
    layer, x = getattr(nn, kind)(WIDTH, H, bidirectional=True), drawn(STEPS, BATCH, WIDTH)
    with ampkit.autocast(dtype=dtype):
        out, last = layer(x)
        again, _ = layer(x, last)
    assert {out.dtype, again.dtype, *(state.dtype for state in both(last))} == {dtype}
    out.float().sum().backward()
    assert {p.grad.dtype for p in layer.parameters()} == {float32}
    assert_close(out, layer(x)[0].numpy(force=True), (2e-2, 2e-2))


def test_a_layer_of_16_bit_parameters_takes_its_own_states_again():
    layer, x = nn.LSTM(WIDTH, H).to(bfloat16), drawn(STEPS, BATCH, WIDTH).bfloat16()
    _, last = layer(x)
    out, _ = layer(x, last)
    assert out.dtype == bfloat16


def test_recompute_gives_the_same_gradients():
    layer, found = nn.GRU(WIDTH, H), []
    for run in (layer, lambda x: ampkit.recompute(layer, x)):
        x = drawn(STEPS, BATCH, WIDTH).requires_grad_()
        run(x)[0].sum().backward()
        found.append(x.grad.numpy())
    assert_close(found[0], found[1])


def test_cells_take_one_row_and_start_from_zero():
    for kind in ("RNNCell", "LSTMCell", "GRUCell"):
        cell, x = getattr(nn, kind)(WIDTH, H), drawn(BATCH, WIDTH)
        zeros = ops.zeros(BATCH, H)
        rows, given = cell(x), cell(x, (zeros, zeros) if kind == "LSTMCell" else zeros)
        for one, many, same in zip(both(cell(x[1])), both(rows), both(given), strict=True):
            assert_close(one, many[1].numpy(force=True))
            assert_close(same, many.numpy(force=True))


@pytest.mark.parametrize(("call", "error", "says"), [
    (lambda: nn.RNN(3, 0), ArgumentError, "RNN: needs hidden_size as a positive integer, got 0"),
    (lambda: nn.RNN(3, 5, nonlinearity="gelu"), ArgumentError, "RNN: needs nonlinearity 'tanh' or 'relu', got 'gelu'"),
    (lambda: nn.LSTM(3, 5, proj_size=5), ArgumentError, "LSTM: needs proj_size of an LSTM, below hidden_size"),
    (lambda: nn.RNNBase("CNN", 3, 5), ArgumentError, "RNNBase: needs mode RNN_TANH, RNN_RELU, GRU, LSTM, got 'CNN'"),
    (lambda: nn.GRU(3, 5)(drawn(4, 2, 7)), ShapeError, r"GRU: needs input \[T, N, 3\] or \[T, 3\], .* got \[4, 2, 7\]"),
    (lambda: nn.GRU(3, 5)(drawn(3)), ShapeError, r"GRU: needs input \[T, N, 3\]"),
    (lambda: nn.GRU(3, 5)(drawn(0, 2, 3)), ShapeError, "T at least 1"),
    (lambda: nn.GRU(3, 5)(drawn(4, 2, 3), drawn(1, 3, 5)), ShapeError, r"GRU: needs h \[1, 2, 5\], got \[1, 3, 5\]"),
    (lambda: nn.LSTM(3, 5)(drawn(4, 2, 3), drawn(1, 2, 5)), DTypeError, "LSTM: needs hx as two Tensors"),
    (lambda: nn.GRU(3, 5)([1.0]), DTypeError, "GRU: needs a Tensor or a PackedSequence, got list"),
    (lambda: nn.GRU(3, 5)(pack_sequence([drawn(2, 4)])), ShapeError, r"GRU: needs packed data \[rows, 3\]"),
    (lambda: nn.GRUCell(3, 5)(drawn(2, 2, 3)), ShapeError, r"GRUCell: needs input \[N, 3\] or \[3\]"),
    (lambda: nn.GRUCell(3, 5)(drawn(2, 3), drawn(3, 5)), ShapeError, r"GRUCell: needs states \[2, 5\], got \[3, 5\]"),
    (lambda: nn.LSTMCell(3, 5)(drawn(2, 3), drawn(2, 5)), DTypeError, "LSTMCell: needs hx as two Tensors"),
])  # fmt: skip
def test_what_does_not_fit_is_said_in_a_line(call, error, says):
    with pytest.raises(error, match=says):
        call()
