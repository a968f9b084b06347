"""The transformer of Vaswani et al.: layers of attention and a small network, stacks of them, and both stacks together.

In all of them [N, L, E] is [L, N, E] unless batch_first, and N may be missing. A mask [L, S] or [N nhead, L, S] says
for each query which keys it may not look at, a key padding mask [N, S] which keys nobody may: True blocks, floats are
added to the scores. is_causal=True blocks later keys where no mask is given; a mask beside it is taken at its word.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

from ampkit import ops
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.tensor import Tensor
from ampkit.ops.argument_checks import checked

from .. import init
from ..factory import check_num_layers, check_sizes
from ..module import Module
from .attention import MultiheadAttention
from .container import ModuleList
from .dropout import Dropout
from .fused import add_norm, norm_of_sum
from .linear import Linear
from .norm import LayerNorm

_ACTIVATIONS = {"relu": ops.relu, "gelu": ops.gelu}
_Mask = Tensor | None


class _Layer(Module):
    # What encoder and decoder layers share: attention to oneself, the small network, and the sums around both.

    _norms = 2

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = ops.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        check_sizes(type(self).__name__, d_model=d_model, nhead=nhead, dim_feedforward=dim_feedforward)
        self.norm_first, self.activation = norm_first, _activation(type(self).__name__, activation)
        where = {"device": device, "dtype": dtype}
        for name in self._attentions():
            setattr(self, name, MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, **where))
        self.linear1 = Linear(d_model, dim_feedforward, bias, **where)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, **where)
        for i in range(1, self._norms + 1):
            setattr(self, f"norm{i}", LayerNorm(d_model, layer_norm_eps, bias=bias, **where))
        for i in range(1, self._norms + 1):
            setattr(self, f"dropout{i}", Dropout(dropout))

    def _network(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))

    def _through(self, x: Tensor, *parts: Callable[[Tensor], Tensor]) -> Tensor:
        # x + part(x), part by part: normalized before each part, or after each sum.
        around = [(getattr(self, f"norm{i}"), getattr(self, f"dropout{i}")) for i in range(1, len(parts) + 1)]
        if not self.norm_first:
            for part, (norm, dropout) in zip(parts, around, strict=True):
                x = norm_of_sum(x, part(x), dropout, norm)
            return x
        normed, readers = around[0][0](x), (self.linear1, *[getattr(self, name) for name in self._attentions()])
        for part, (_, dropout), (norm, _) in zip(parts, around, around[1:], strict=False):
            x, normed = add_norm(x, part(normed), dropout, norm, *readers)
        return x + around[-1][1](parts[-1](normed))

    def _attentions(self) -> tuple[str, ...]:
        return ("self_attn", "multihead_attn")[: self._norms - 1]


class TransformerEncoderLayer(_Layer):
    """Attention of a sequence to itself, then a network for each position, each added to its input and normalized.

    norm_first=True normalizes before each instead. activation: "relu", "gelu" or a function. All drop at `dropout`.
    state: self_attn, linear1 [dim_feedforward, d_model], linear2, norm1, norm2. Vaswani et al. 2017, arXiv:1706.03762,
    section 3.1; norm_first: Xiong et al. 2020, arXiv:2002.04745.
    """

    def forward(
        self, src: Tensor, src_mask: _Mask = None, src_key_padding_mask: _Mask = None, is_causal: bool = False
    ) -> Tensor:
        """src [N, L, E] -> [N, L, E]."""
        look = _look(self.self_attn, None, src_key_padding_mask, src_mask, is_causal)
        return self._through(src, look, self._network)


class TransformerDecoderLayer(_Layer):
    """Attention of a sequence to itself, then to `memory`, then a network for each position, each added and normalized.

    Arguments and sources as in TransformerEncoderLayer; state: self_attn, multihead_attn, linear1, linear2, norm1 to 3.
    """

    _norms = 3

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: _Mask = None,
        memory_mask: _Mask = None,
        tgt_key_padding_mask: _Mask = None,
        memory_key_padding_mask: _Mask = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """tgt [N, L, E], memory [N, S, E] -> [N, L, E]."""
        look = _look(self.self_attn, None, tgt_key_padding_mask, tgt_mask, tgt_is_causal)
        listen = _look(self.multihead_attn, memory, memory_key_padding_mask, memory_mask, memory_is_causal)
        return self._through(tgt, look, listen, self._network)


class TransformerEncoder(Module):
    """num_layers copies of encoder_layer, one after the other, then `norm` if there is one.

    The copies start with equal weights, as PyTorch's do. enable_nested_tensor and mask_check change nothing: positions
    that padding masks are computed like the others, where PyTorch's `eval` may set them to 0.
    """

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ):
        super().__init__()
        self.layers, self.num_layers, self.norm = (
            _copies("TransformerEncoder", encoder_layer, num_layers),
            num_layers,
            norm,
        )

    def forward(
        self,
        src: Tensor,
        mask: _Mask = None,
        src_key_padding_mask: _Mask = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        """src [N, L, E] -> [N, L, E]."""
        for layer in self.layers:
            src = layer(src, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=bool(is_causal))
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Module):
    """num_layers copies of decoder_layer, one after the other, then `norm` if there is one.

    The copies start with equal weights, as PyTorch's do.
    """

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None):
        super().__init__()
        self.layers, self.num_layers, self.norm = (
            _copies("TransformerDecoder", decoder_layer, num_layers),
            num_layers,
            norm,
        )

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: _Mask = None,
        memory_mask: _Mask = None,
        tgt_key_padding_mask: _Mask = None,
        memory_key_padding_mask: _Mask = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """tgt [N, L, E], memory [N, S, E] -> [N, L, E]."""
        for layer in self.layers:
            tgt = layer(
                tgt,
                memory,
                tgt_mask=tgt_mask,
                memory_mask=memory_mask,
                tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask,
                tgt_is_causal=bool(tgt_is_causal),
                memory_is_causal=memory_is_causal,
            )
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """An encoder whose output is the memory of a decoder; custom_encoder and custom_decoder take their places.

    Every matrix starts xavier-uniform. Vaswani et al. 2017, arXiv:1706.03762, figure 1, without embeddings.
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = ops.relu,
        custom_encoder: Callable[..., Any] | None = None,
        custom_decoder: Callable[..., Any] | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first
        how = (dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias, device, dtype)

        def stack(kind: Any, layer: Any, number: int) -> Module:
            norm = LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype)
            return kind(layer(d_model, nhead, *how), number, norm)

        self.encoder = custom_encoder or stack(TransformerEncoder, TransformerEncoderLayer, num_encoder_layers)
        self.decoder = custom_decoder or stack(TransformerDecoder, TransformerDecoderLayer, num_decoder_layers)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                init.xavier_uniform_(parameter)

    @checked
    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: _Mask = None,
        tgt_mask: _Mask = None,
        memory_mask: _Mask = None,
        src_key_padding_mask: _Mask = None,
        tgt_key_padding_mask: _Mask = None,
        memory_key_padding_mask: _Mask = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """src [N, S, E], tgt [N, L, E] -> [N, L, E]. Raises ShapeError for a src and a tgt that do not fit."""
        batch = 0 if self.batch_first else 1
        misfit = src.ndim != tgt.ndim or (src.ndim == 3 and src.shape[batch] != tgt.shape[batch])
        if misfit or src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            needs = f"src and tgt of one batch size and {self.d_model} wide"
            raise ShapeError("Transformer", needs, f"src {list(src.shape)}, tgt {list(tgt.shape)}")
        memory = self.encoder(src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal)
        return self.decoder(
            tgt,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Tensor:
        """The mask [sz, sz] that blocks later keys: -inf above the diagonal, 0 elsewhere; float32 by default."""
        return ops.triu(ops.full((sz, sz), -math.inf, dtype=dtype, device=device), 1)


def _activation(where: str, activation: Any) -> Callable[[Tensor], Tensor]:
    found = _ACTIVATIONS.get(activation) if isinstance(activation, str) else activation
    if not callable(found):
        raise ArgumentError(where, "activation 'relu', 'gelu' or a function", repr(activation))
    return found


def _look(attention: Any, memory: _Mask, padding: _Mask, mask: _Mask, causal: bool) -> Callable[[Tensor], Tensor]:
    # Attention as a function of its queries alone: to `memory`, or to themselves.
    def look(x: Tensor) -> Tensor:
        keys = x if memory is None else memory
        return attention(x, keys, keys, key_padding_mask=padding, need_weights=False, attn_mask=mask, is_causal=causal)[
            0
        ]

    return look


def _copies(where: str, layer: Any, number: int) -> ModuleList:
    if not isinstance(layer, Module):
        raise DTypeError(where, "a layer to copy", f"a {type(layer).__name__}")
    check_num_layers(where, number)
    return ModuleList([copy.deepcopy(layer) for _ in range(number)])
