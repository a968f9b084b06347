"""CPU kernels of tril and triu: rows are copied up to the diagonal or from it on, without a mask."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cpu.caching_allocator import address
from ampkit.backends.cpu.copies import contiguous
from ampkit.backends.cpu.native.arrays import MIN_ELEMENTS, Function, HostArray, available, empty
from ampkit.base.dtypes import DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.shape import triangular

_triangle = Function("triangle", "ppiiiiii")


def _register(op: Any, upper: bool) -> None:
    def cut(x: HostArray, diagonal: int) -> HostArray:
        rows, columns = x.shape[-2:]
        first = max(-rows, min(diagonal + (not upper), columns))  # the first row is cut before this column
        out = empty(x.shape, x.dtype)
        matrices = x.size // (rows * columns)
        _triangle(address(out), address(x), x.itemsize, matrices, rows, columns, first, upper)
        return out

    def forward(input: HostArray, diagonal: int, *, dtype: DType) -> Any:
        return cut(input, diagonal), Saved()

    def backward(dy: HostArray, saved: Saved, needs: Any, diagonal: int) -> HostArray:
        return cut(contiguous(dy), diagonal)

    def fits(input: HostArray, diagonal: Any) -> bool:
        return input.flags.c_contiguous and isinstance(diagonal, int) and available()

    def back_fits(dy: HostArray, saved: Saved, needs: Any, diagonal: Any) -> bool:
        return isinstance(diagonal, int) and available()

    forward.__name__, backward.__name__ = f"{op.name}_cpu", f"{op.name}_backward_cpu"
    op.on("cpu", when=fits, min_elements=MIN_ELEMENTS)(forward)
    op.on_backward("cpu", when=back_fits, min_elements=MIN_ELEMENTS)(backward)


_register(triangular.tril, upper=False)
_register(triangular.triu, upper=True)
