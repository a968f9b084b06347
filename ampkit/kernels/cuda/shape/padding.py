"""CUDA kernels of padding: constant, reflect, replicate and circular."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cuda.launch.padding import added, extended, fits, widened
from ampkit.backends.cuda.nvrtc import STORED
from ampkit.base.dtypes import Array, DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.ops.shape.padding import pad_, pad_from_input


@pad_.on("cuda", when=lambda input, widths, value: fits(input, widened(input.shape, widths)))
def pad_cuda(input: Array, widths: Any, value: Any, *, dtype: DType) -> Any:
    return extended(input, widths, "constant", value), Saved()


@pad_from_input.on("cuda", when=lambda input, widths, mode: fits(input, widened(input.shape, widths)))
def pad_from_input_cuda(input: Array, widths: Any, mode: str, *, dtype: DType) -> Any:
    return extended(input, widths, mode), Saved()


def _supports_backward(dy: Array, saved: Saved, needs: Any, widths: Any, mode: str) -> bool:
    return dy.dtype in STORED and needs[0] in (dy.dtype, float32) and fits(dy, dy.shape)


@pad_from_input.on_backward("cuda", when=_supports_backward)
def pad_from_input_backward_cuda(dy: Array, saved: Saved, needs: Any, widths: Any, mode: str) -> Array:
    return added(dy, widths, mode, needs[0])
