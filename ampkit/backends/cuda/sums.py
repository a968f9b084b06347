"""Body of the products inside of references, such as attention's in float32: cublasLt's, which can be recorded.

Not yet run on a GPU.
"""

from __future__ import annotations

from typing import Any

from ...ops.sums import times
from .gemm import fits, product

Array = Any


@times.on("cuda", when=lambda a, b: fits(a, b) and a.size > 0 and b.size > 0)
def times_cuda(a: Array, b: Array) -> Array:
    found = product(a, b, a.dtype)
    return times.reference.run(a, b) if found is None else found
