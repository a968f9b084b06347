"""CPU kernels of adaptive average pooling: oneDNN's, where equal windows divide the input."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cpu.onednn.primitive import HostArray
from ampkit.base.dtypes import DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn import adaptive_pool
from ampkit.ops.nn.conv_geometry import ConvGeometry, conv_geometry

from .pool import is_large, register, run_backward, run_pool


def _register_adaptive_avg(op: Any, axes: int) -> None:
    def forward(input: HostArray, output_size: Any, *, dtype: DType) -> Any:
        size = input.shape[-axes:]
        w = _even_windows(size, adaptive_pool.adaptive_size(output_size, size, op.name))
        found = None if w is None else run_pool("avg_pool", input, w, dtype)
        return NotImplemented if found is None else (found[0], Saved(size=size))

    def back_fits(dy: HostArray, saved: Saved, needs: Any, **params: Any) -> bool:
        return is_large(dy, saved.size)

    def backward(dy: HostArray, saved: Saved, needs: Any, output_size: Any) -> Any:
        w = _even_windows(saved.size, dy.shape[-axes:])
        return NotImplemented if w is None else run_backward("avg_pool", dy, w, needs[0])

    register(op, axes, forward, back_fits, backward)


def _even_windows(size: Any, out: Any) -> ConvGeometry | None:
    # The windows that divide images evenly; None if they do not.
    if any(n % m for n, m in zip(size, out, strict=True)):
        return None
    kernel = tuple([n // m for n, m in zip(size, out, strict=True)])
    return conv_geometry("adaptive_avg_pool", kernel, kernel, 0, 1, size)


for _axes in (2, 3):
    _register_adaptive_avg(getattr(adaptive_pool, f"adaptive_avg_pool{_axes}d"), _axes)
