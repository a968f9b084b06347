"""RNNCell, LSTMCell and GRUCell: one step of a recurrent layer."""

from __future__ import annotations

import math
from typing import Any

from ampkit import ops
from ampkit.base.errors import DTypeError, ShapeError, check_choice
from ampkit.core.tensor import Tensor
from ampkit.ops.argument_checks import checked

from .. import init
from ..factory import check_sizes, new_parameter
from ..module import Module

__all__ = ["GRUCell", "LSTMCell", "RNNCell", "RNNCellBase"]


class RNNCellBase(Module):
    """The base of the cells: weight_ih [chunks H, I], weight_hh [chunks H, H], bias_ih and bias_hh [chunks H].

    All start uniform in +-1/sqrt(hidden_size). Raises ArgumentError for sizes that are not positive integers.
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool, num_chunks: int, device: Any = None, dtype: Any = None
    ):
        super().__init__()
        check_sizes(type(self).__name__, input_size=input_size, hidden_size=hidden_size, num_chunks=num_chunks)
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = num_chunks * hidden_size
        self.weight_ih = new_parameter((rows, input_size), device, dtype)
        self.weight_hh = new_parameter((rows, hidden_size), device, dtype)
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, new_parameter((rows,), device, dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize all weights and biases again."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def _step(self, cell: Any, input: Tensor, *states: Tensor | None) -> Any:
        # Call `cell` on rows; a single input and its results have no row axis.
        if input.ndim not in (1, 2) or input.shape[-1] != self.input_size:
            needs = f"input [N, {self.input_size}] or [{self.input_size}]"
            raise ShapeError(type(self).__name__, needs, f"{list(input.shape)}")
        shape = (*input.shape[:-1], self.hidden_size)
        initial = [ops.zeros(shape, dtype=input.dtype, device=input.device) if s is None else s for s in states]
        for state in initial:
            if state.shape != shape:
                raise ShapeError(type(self).__name__, f"states {list(shape)}", f"{list(state.shape)}")
        single = input.ndim == 1
        x, *carried = [ops.unsqueeze(each, 0) if single else each for each in (input, *initial)]
        weights = self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh
        found = cell(x, carried[0] if len(carried) == 1 else carried, *weights)
        if isinstance(found, Tensor):
            return ops.squeeze(found, 0) if single else found
        return tuple(ops.squeeze(each, 0) if single else each for each in found)

    def extra_repr(self) -> str:
        more = "" if self.bias else ", bias=False"
        kind = getattr(self, "nonlinearity", "tanh")
        return f"{self.input_size}, {self.hidden_size}{more}" + ("" if kind == "tanh" else f", nonlinearity={kind}")


class RNNCell(RNNCellBase):
    """`ops.rnn_tanh_cell`, or `rnn_relu_cell` with nonlinearity="relu": input [N, I] or [I], hx alike -> h'."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: Any = None,
    ):
        check_choice("RNNCell", "nonlinearity", nonlinearity, "tanh", "relu")
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    @checked
    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        cell = ops.rnn_tanh_cell if self.nonlinearity == "tanh" else ops.rnn_relu_cell
        return self._step(cell, input, hx)


class LSTMCell(RNNCellBase):
    """`ops.lstm_cell`: input [N, I] or [I], hx a pair (h, c) [N, H] or [H], zeros by default -> (h', c')."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None):
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    @checked
    def forward(self, input: Tensor, hx: Any = None) -> tuple[Tensor, Tensor]:
        states = (None, None) if hx is None else hx
        is_pair = isinstance(states, (tuple, list)) and len(states) == 2
        if not is_pair or (hx is not None and not isinstance(states[0], Tensor)):
            raise DTypeError("LSTMCell", "hx as two Tensors (h, c)", type(hx).__name__)
        return self._step(ops.lstm_cell, input, *states)


class GRUCell(RNNCellBase):
    """`ops.gru_cell`: input [N, I] or [I], hx [N, H] or [H], zeros by default -> h'."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None):
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    @checked
    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self._step(ops.gru_cell, input, hx)
