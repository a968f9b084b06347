"""The transformer: encoder and decoder layers, stacks of them, and both stacks together.

[N, L, E] stands for [L, N, E] unless batch_first; N may be missing. Masks are [L, S] or [N nhead, L, S], per query and
key; key padding masks [N, S], per key: True masks out, floats are added to the scores. is_causal=True masks out later
keys if there is no mask; a mask takes precedence.
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

__all__ = [
    "Transformer", "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer",
]  # fmt: skip

_ACTIVATIONS = {"relu": ops.relu, "gelu": ops.gelu}
_Mask = Tensor | None


class _Layer(Module):
    # Encoder and decoder layers: self-attention, the feed-forward network, residual sums and norms.

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

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))

    def _residual(self, x: Tensor, *sublayers: Callable[[Tensor], Tensor]) -> Tensor:
        # x + sublayer(x) for each, normalized before each sublayer or after each sum.
        around = [(getattr(self, f"norm{i}"), getattr(self, f"dropout{i}")) for i in range(1, len(sublayers) + 1)]
        if not self.norm_first:
            for sublayer, (norm, dropout) in zip(sublayers, around, strict=True):
                x = norm_of_sum(x, sublayer(x), dropout, norm)
            return x
        normed, readers = around[0][0](x), (self.linear1, *[getattr(self, name) for name in self._attentions()])
        for sublayer, (_, dropout), (norm, _) in zip(sublayers, around, around[1:], strict=False):
            x, normed = add_norm(x, sublayer(normed), dropout, norm, *readers)
        return x + around[-1][1](sublayers[-1](normed))

    def _attentions(self) -> tuple[str, ...]:
        return ("self_attn", "multihead_attn")[: self._norms - 1]


class TransformerEncoderLayer(_Layer):
    """Self-attention, then a feed-forward network per position, each with a residual sum and a layer norm.

    norm_first=True normalizes before each instead. activation: "relu", "gelu" or a function. dropout: of all sublayers.
    state: self_attn, linear1 [dim_feedforward, d_model], linear2, norm1, norm2. Vaswani et al. 2017, arXiv:1706.03762,
    section 3.1; norm_first: Xiong et al. 2020, arXiv:2002.04745.
    """

    def forward(
        self, src: Tensor, src_mask: _Mask = None, src_key_padding_mask: _Mask = None, is_causal: bool = False
    ) -> Tensor:
        """src [N, L, E] -> [N, L, E]."""
        self_attention = _attention(self.self_attn, None, src_key_padding_mask, src_mask, is_causal)
        return self._residual(src, self_attention, self._feed_forward)


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to `memory`, and a feed-forward network, each with a residual sum and a layer norm.

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
        self_attention = _attention(self.self_attn, None, tgt_key_padding_mask, tgt_mask, tgt_is_causal)
        cross_attention = _attention(
            self.multihead_attn, memory, memory_key_padding_mask, memory_mask, memory_is_causal
        )
        return self._residual(tgt, self_attention, cross_attention, self._feed_forward)


class TransformerEncoder(Module):
    """num_layers copies of encoder_layer, one after the other, then `norm` if there is one.

    The copies start with equal weights, as in PyTorch. enable_nested_tensor and mask_check have no effect: padded
    positions are computed like the others, where PyTorch's `eval` may set them to 0.
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
        self.layers = _copies("TransformerEncoder", encoder_layer, num_layers)
        self.num_layers, self.norm = num_layers, norm

    def forward(
        self, src: Tensor, mask: _Mask = None, src_key_padding_mask: _Mask = None, is_causal: bool | None = None
    ) -> Tensor:
        """src [N, L, E] -> [N, L, E]."""
        for layer in self.layers:
            src = layer(src, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=bool(is_causal))
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Module):
    """num_layers copies of decoder_layer, one after the other, then `norm` if there is one.

    The copies start with equal weights, as in PyTorch.
    """

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None):
        super().__init__()
        self.layers = _copies("TransformerDecoder", decoder_layer, num_layers)
        self.num_layers, self.norm = num_layers, norm

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
    """An encoder whose output is the memory of a decoder; custom_encoder and custom_decoder replace them.

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
        options = (dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias, device, dtype)

        def stack(kind: Any, layer: Any, number: int) -> Module:
            norm = LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype)
            return kind(layer(d_model, nhead, *options), number, norm)

        self.encoder = custom_encoder or stack(TransformerEncoder, TransformerEncoderLayer, num_encoder_layers)
        self.decoder = custom_decoder or stack(TransformerDecoder, TransformerDecoderLayer, num_decoder_layers)
        self._reset_parameters()

    def _reset_parameters(self) -> None:
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
        """src [N, S, E], tgt [N, L, E] -> [N, L, E]. Raises ShapeError if src and tgt do not fit."""
        batch = 0 if self.batch_first else 1
        mismatch = src.ndim != tgt.ndim or (src.ndim == 3 and src.shape[batch] != tgt.shape[batch])
        if mismatch or src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
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
        """The causal mask [sz, sz]: -inf above the diagonal, 0 elsewhere; float32 by default."""
        return ops.triu(ops.full((sz, sz), -math.inf, dtype=dtype, device=device), 1)


def _activation(where: str, activation: Any) -> Callable[[Tensor], Tensor]:
    found = _ACTIVATIONS.get(activation) if isinstance(activation, str) else activation
    if not callable(found):
        raise ArgumentError(where, "activation 'relu', 'gelu' or a function", repr(activation))
    return found


def _attention(attention: Any, memory: _Mask, padding: _Mask, mask: _Mask, causal: bool) -> Callable[[Tensor], Tensor]:
    # Attention as a function of its queries: to `memory`, or self-attention if that is None.
    def attend(x: Tensor) -> Tensor:
        keys = x if memory is None else memory
        masks = {"key_padding_mask": padding, "attn_mask": mask, "is_causal": causal}
        return attention(x, keys, keys, need_weights=False, **masks)[0]

    return attend


def _copies(where: str, layer: Any, number: int) -> ModuleList:
    if not isinstance(layer, Module):
        raise DTypeError(where, "a layer to copy", f"a {type(layer).__name__}")
    check_num_layers(where, number)
    return ModuleList([copy.deepcopy(layer) for _ in range(number)])
