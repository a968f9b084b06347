"""Kernels of padding by what is inside, see `padding`."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cuda.launch.padding import added, extended, fits, widened
from ampkit.backends.cuda.nvrtc import STORED
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.ops.shape.padding import extend

Array = Any


@extend.on("cuda", when=lambda input, widths, mode: fits(input, widened(input.shape, widths)))
def extend_cuda(input: Array, widths: Any, mode: str, *, dtype: DType) -> Any:
    return extended(input, widths, mode), Saved()


def _back_fits(dy: Array, saved: Saved, needs: Any, widths: Any, mode: str) -> bool:
    return dy.dtype in STORED and needs[0] in (dy.dtype, float32) and fits(dy, dy.shape)


@extend.on_backward("cuda", when=_back_fits)
def extend_backward_cuda(dy: Array, saved: Saved, needs: Any, widths: Any, mode: str) -> Array:
    return added(dy, widths, mode, needs[0])
