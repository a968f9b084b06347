"""Registers attention with one mask, whose backward belongs to the kernel: backends save different statistics."""

from __future__ import annotations

import math
from typing import Any

from ampkit.base.dtypes import Array, DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn.attention import scaled_dot_product_attention_ as attention

from .registration import on


def register_attention(backend: str, attended: Any, gradients: Any, fits: Any, dtypes: Any = None) -> None:
    """Register attention.

    attended(query, key, value, mask, p, draw, causal, scale, grouped, dtype) -> the output, and by name what is saved
    beside it or in place of an operand. gradients(dy, saved, mask, needs, p, draw, causal, scale) -> of query, key,
    value and an added mask. mask: bool, to be added, or None.
    """

    def forward(
        query: Array, key: Array, value: Array, added: Any, allowed: Any, dropout_p: float, draw: Any, is_causal: bool,
        scale: float | None, enable_gqa: bool, *, dtype: DType,
    ) -> Any:  # fmt: skip
        options = allowed if added is None else added, dropout_p, draw, is_causal, _scale(query, scale), enable_gqa
        out, held = attended(query, key, value, *options, dtype)
        saved = Saved(query=query, key=key, value=value, added=added, allowed=allowed, out=out)
        saved.__dict__.update(held)
        return out, saved

    def backward(
        dy: Array, saved: Saved, needs: Any, dropout_p: float, draw: Any, is_causal: bool, scale: float | None,
        enable_gqa: bool,
    ) -> Any:  # fmt: skip
        mask = saved.allowed if saved.added is None else saved.added
        found = gradients(dy, saved, mask, needs, dropout_p, draw, is_causal, _scale(saved.query, scale))
        return *found, None

    backward.__name__ = f"{attention.name}_backward_{backend}"
    on(attention, backend, forward, fits, dtypes=dtypes).backward(backward)


def _scale(query: Array, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
