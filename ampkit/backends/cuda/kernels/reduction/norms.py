"""CUDA kernel of the 1-, 2-, inf- and Frobenius norm, by `launch.reduction`."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cuda.array_layout import supports_array
from ampkit.backends.cuda.launch.reduction import Finish, reduced
from ampkit.base.dtypes import Array, DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.reduction import norms as ops

_NORMS: dict[Any, tuple[str, bool]] = {
    **dict.fromkeys(("fro", None, 2), ("AddSquares", True)),
    1: ("AddAbs", False),
    float("inf"): ("MaxAbs", False),
}


def _supports(input: Array, p: Any, *rest: Any, **params: Any) -> bool:
    return p in _NORMS and supports_array(input)


@ops.norm_.on("cuda", when=_supports)
def norm_cuda(input: Array, p: Any, dim: Any, keepdim: bool, *, dtype: DType) -> Any:
    kind, root = _NORMS[p]
    result = reduced(kind, input, dim, keepdim, dtype, Finish(1.0, root))
    return result, Saved(input=input, out=result)
