"""RNN, LSTM and GRU: layers of recurrent cells over sequences, PyTorch's parameters and options."""

from __future__ import annotations

import math
from typing import Any

from ampkit import ops
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError, check_choice
from ampkit.core.parameter import Parameter
from ampkit.core.tensor import Tensor
from ampkit.ops.nn.rnn import gru_, lstm_, rnn_relu_, rnn_tanh_

from .. import init
from ..factory import check_num_layers, check_probability, check_sizes, new_parameter
from ..module import Module
from ..utils.rnn import PackedSequence

__all__ = ["GRU", "LSTM", "RNN", "RNNBase"]

_GATES = {"RNN_TANH": 1, "RNN_RELU": 1, "GRU": 3, "LSTM": 4}
_OPS = {"RNN_TANH": rnn_tanh_, "RNN_RELU": rnn_relu_, "GRU": gru_}


class RNNBase(Module):
    """The base of RNN, LSTM and GRU: `num_layers` layers over sequences, in one direction or two.

    mode: "RNN_TANH", "RNN_RELU", "LSTM" or "GRU". Per layer l, with the suffix _reverse for the direction against
    time: weight_ih_l{l} [gates hidden_size, input], weight_hh_l{l} [gates hidden_size, output], bias_ih_l{l} and
    bias_hh_l{l} [gates hidden_size], with proj_size weight_hr_l{l} [proj_size, hidden_size]; all start uniform in
    +-1/sqrt(hidden_size). Layers after the first read the output of the one before, both directions concatenated,
    after dropout; there is none after the last.
    Raises ArgumentError for sizes that are not positive integers, an unknown mode, or proj_size without an LSTM.
    """

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        where = type(self).__name__
        check_sizes(where, input_size=input_size, hidden_size=hidden_size)
        check_num_layers(where, num_layers)
        if mode not in _GATES:
            raise ArgumentError(where, f"mode {', '.join(_GATES)}", repr(mode))
        if proj_size and (mode != "LSTM" or isinstance(proj_size, bool) or not 0 < proj_size < hidden_size):
            raise ArgumentError(where, "proj_size of an LSTM, below hidden_size", f"{proj_size} for {mode}")
        self.mode, self.input_size, self.hidden_size, self.num_layers = mode, input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.bidirectional = bias, batch_first, bool(bidirectional)
        self.dropout, self.proj_size = check_probability(where, dropout), proj_size
        for layer in range(num_layers):
            for suffix in self._suffixes(layer):
                self._make_weights(layer, suffix, device, dtype)
        self.reset_parameters()

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: 1 + self.bidirectional]

    def _make_weights(self, layer: int, suffix: str, device: Any, dtype: Any) -> None:
        width, out = _GATES[self.mode] * self.hidden_size, self.proj_size or self.hidden_size
        read = out * (1 + self.bidirectional) if layer else self.input_size
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (width, read), "weight_hh": (width, out)}
        if self.bias:
            shapes |= {"bias_ih": (width,), "bias_hh": (width,)}
        if self.proj_size:
            shapes |= {"weight_hr": (self.proj_size, self.hidden_size)}
        for name, shape in shapes.items():
            self.register_parameter(name + suffix, new_parameter(shape, device, dtype))

    def reset_parameters(self) -> None:
        """Initialize all weights and biases again."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def flatten_parameters(self) -> None:
        """Do nothing: PyTorch makes the weights contiguous for cuDNN here."""

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters of each layer and direction."""
        return [self._weights(suffix) for layer in range(self.num_layers) for suffix in self._suffixes(layer)]

    def _weights(self, suffix: str) -> list[Parameter]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        found = [getattr(self, name + suffix, None) for name in names]  # getattr: they may be computed attributes
        return [weight for weight in found if weight is not None]

    def forward(self, input: Tensor | PackedSequence, hx: Any = None) -> Any:
        """Run the layers over the sequences: (output, final states of each layer and direction).

        input [T, N, input_size], with batch_first [N, T, input_size], [T, input_size] for one sequence, or a
        PackedSequence -> output of the same kind and D output_size columns, D directions, and h_n [D num_layers, N,
        output_size]. hx: the initial states, shaped as h_n, zeros by default; an LSTM has (h, c) in and out, its c
        [D num_layers, N, hidden_size]. Raises ShapeError for shapes that do not fit.
        """
        if isinstance(input, PackedSequence):
            return self._run_packed(input, hx)
        if not isinstance(input, Tensor):
            raise DTypeError(type(self).__name__, "a Tensor or a PackedSequence", type(input).__name__)
        unbatched, rows = input.ndim == 2, input
        if unbatched:
            rows, hx = ops.unsqueeze(input, 1), _map_states(lambda state: ops.unsqueeze(state, 1), hx)
        elif self.batch_first and input.ndim == 3:
            rows = ops.transpose(input, 0, 1)
        if rows.ndim != 3 or rows.shape[2] != self.input_size or not rows.shape[0]:
            width, order = self.input_size, "N, T" if self.batch_first else "T, N"
            needs = f"input [{order}, {width}] or [T, {width}], T at least 1"
            raise ShapeError(type(self).__name__, needs, f"{list(input.shape)}")
        steps, batch = rows.shape[:2]
        data = ops.reshape(rows, (steps * batch, self.input_size))
        data, last = self._run(data, (batch,) * steps, hx)
        out = ops.reshape(data, (steps, batch, data.shape[1]))
        if unbatched:
            return ops.squeeze(out, 1), _map_states(lambda state: ops.squeeze(state, 1), last)
        return ops.transpose(out, 0, 1) if self.batch_first else out, last

    def _run_packed(self, input: PackedSequence, hx: Any) -> Any:
        if input.data.ndim != 2 or input.data.shape[1] != self.input_size:
            raise ShapeError(type(self).__name__, f"packed data [rows, {self.input_size}]", f"{list(input.data.shape)}")
        counts = tuple(int(n) for n in input.batch_sizes.numpy())
        data, last = self._run(input.data, counts, _permuted(hx, input.sorted_indices))
        return input.with_data(data), _permuted(last, input.unsorted_indices)

    def _run(self, data: Tensor, counts: tuple[int, ...], hx: Any) -> tuple[Tensor, Any]:
        # All layers over packed rows: (output rows of the last layer, final states).
        states = self._initial_states(hx, counts[0])
        last: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            outs = []
            for suffix in self._suffixes(layer):
                out, *ended = self._direction(data, suffix, states[len(last)], counts)
                outs.append(out)
                last.append(tuple(ops.to(state, dtype=out.dtype) for state in ended))
            data = outs[0] if len(outs) == 1 else ops.cat(outs, -1)
            if self.dropout and layer < self.num_layers - 1:
                data = ops.dropout(data, self.dropout, self.training)
        joined = tuple(ops.stack(list(each)) for each in zip(*last, strict=True))
        return data, joined if self.mode == "LSTM" else joined[0]

    def _direction(self, data: Tensor, suffix: str, first: tuple[Any, ...], counts: tuple[int, ...]) -> Any:
        w_ih, w_hh, *more = self._weights(suffix)
        b_ih, b_hh = more[:2] if len(more) > 1 else (None, None)
        reverse = suffix.endswith("_reverse")
        if self.mode != "LSTM":
            return _OPS[self.mode](data, *first, w_ih, w_hh, b_ih, b_hh, counts, reverse)
        return lstm_(data, *first, w_ih, w_hh, b_ih, b_hh, more[-1] if self.proj_size else None, counts, reverse)

    def _initial_states(self, hx: Any, batch: int) -> list[tuple[Any, ...]]:
        # Per layer and direction, its state or pair of states; None means zeros.
        where, kinds = type(self).__name__, 1 + (self.mode == "LSTM")
        count = self.num_layers * (1 + self.bidirectional)
        if hx is None:
            return [(None,) * kinds] * count
        states = hx if isinstance(hx, (tuple, list)) else (hx,)
        if len(states) != kinds or not all(isinstance(state, Tensor) for state in states):
            needs = "hx as two Tensors (h, c)" if kinds == 2 else "hx as a Tensor"
            raise DTypeError(where, needs, f"{len(states)} of {type(hx).__name__}")
        widths = (self.proj_size or self.hidden_size, self.hidden_size)
        for name, state, width in zip("hc", states, widths, strict=False):
            if state.shape != (count, batch, width):
                raise ShapeError(where, f"{name} {[count, batch, width]}", f"{list(state.shape)}")
        return list(zip(*(ops.unbind(state) for state in states), strict=True))

    def extra_repr(self) -> str:
        shown = [str(self.input_size), str(self.hidden_size)]
        usual = {"proj_size": "0", "num_layers": "1", "bias": "True"}
        usual |= {"batch_first": "False", "dropout": "0.0", "bidirectional": "False"}
        now = {name: str(getattr(self, name)) for name in usual}
        shown += [f"{name}={now[name]}" for name, value in usual.items() if now[name] != value]
        return ", ".join(shown)


def _map_states(function: Any, states: Any) -> Any:
    if isinstance(states, (tuple, list)):
        return tuple(_map_states(function, state) for state in states)
    return function(states) if isinstance(states, Tensor) else states


def _permuted(states: Any, indices: Tensor | None) -> Any:
    # Each state [layers, N, width] with the sequences in another order.
    return states if indices is None else _map_states(lambda state: ops.index_select(state, 1, indices), states)


class RNN(RNNBase):
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or ReLU for tanh with nonlinearity="relu". See RNNBase.

    Elman 1990, Cognitive Science 14.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ):
        check_choice("RNN", "nonlinearity", nonlinearity, "tanh", "relu")
        mode = f"RNN_{nonlinearity.upper()}"
        super().__init__(
            mode, input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, device, dtype
        )
        self.nonlinearity = nonlinearity


class LSTM(RNNBase):
    """Long short-term memory: see `ops.lstm_cell` for the formulas and RNNBase for the rest.

    proj_size: the output and the state h are W_hr o tanh(c), of that size (Sak et al. 2014, arXiv:1402.1128).
    Under autocast matrix products read 16-bit operands; the cell state stays float32 from the first step to the last.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__(
            "LSTM", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device,
            dtype,
        )  # fmt: skip


class GRU(RNNBase):
    """Gated recurrent units: see `ops.gru_cell` for the formulas and RNNBase for the rest.

    Under autocast matrix products read 16-bit operands; the state stays float32 from the first step to the last.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__(
            "GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, device, dtype
        )
