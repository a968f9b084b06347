"""CPU kernel of tanh, by oneDNN. Its exp and other functions lose NaN or are no faster than NumPy's."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cpu.onednn import eltwise
from ampkit.backends.cpu.onednn.primitive import MIN_ELEMENTS, HostArray
from ampkit.base.dtypes import DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.pointwise.trigonometry import tanh


@tanh.on("cpu", when=lambda input: eltwise.is_profitable(input), min_elements=MIN_ELEMENTS)
def tanh_cpu(input: HostArray, *, dtype: DType) -> Any:
    out = eltwise.forward("tanh", 0.0, input)
    return out, Saved(out=out)


def _back_fits(dy: HostArray, saved: Saved, needs: Any) -> bool:
    return needs[0] == dy.dtype and eltwise.is_profitable(dy, saved.out)


@tanh.on_backward("cpu", when=_back_fits, min_elements=MIN_ELEMENTS)
def tanh_backward_cpu(dy: HostArray, saved: Saved, needs: Any) -> HostArray:
    return eltwise.backward("tanh_by_output", 0.0, dy, saved.out)
