"""CUDA kernels of padding: constant, reflect, replicate and circular."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cuda.launch.padding import added, extended, fits, widened
from ampkit.backends.cuda.nvrtc import STORED
from ampkit.base.dtypes import Array, float32
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.shape import register_padding


def _supports(input: Array, widths: Any, *more: Any) -> bool:
    return fits(input, widened(input.shape, widths))


def _supports_backward(dy: Array, saved: Saved, needs: Any, widths: Any, mode: str) -> bool:
    return dy.dtype in STORED and needs[0] in (dy.dtype, float32) and fits(dy, dy.shape)


register_padding("cuda", extended, _supports, added, _supports_backward)
