"""CUDA kernel of linear -> GELU -> linear: GELU and its derivative run in the epilogue of cublasLt's matrix products.

cublasLt has the tanh formula alone, for 16-bit operands; other cases run op by op. Its ReLU epilogue is not used: its
documentation does not promise that NaN propagates.
"""

from __future__ import annotations

from operator import eq
from typing import Any

from ampkit import backends
from ampkit.backends.cuda.libs.gemm import fits, with_gelu, with_gelu_backward
from ampkit.base.dtypes import LOW, Array, DType
from ampkit.core import dispatch
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.linalg import register_by_op
from ampkit.ops.linalg.matmul import as_matrix, linear
from ampkit.ops.nn.fused import (
    first_linear_backward,
    linear_gelu_linear,
    linear_gelu_linear_backward_by_op,
    linear_gelu_linear_by_op,
    saved_hidden,
)


def _fits(approximate: str, rows: Array, *others: Array | None) -> bool:
    """Whether cublasLt's GELU epilogue takes a product of `rows` [..., N] with `others`."""
    supported = approximate == "tanh" and rows.dtype in LOW and rows.ndim > 1 and fits(rows, *others)
    return supported and all(each is None or each.ndim > 1 or bool(each.flags.c_contiguous) for each in others)


@linear_gelu_linear.on("cuda", when=lambda *args: _fits(args[5], *args[:3]), wants_cache=True, dtypes=eq)
def linear_gelu_linear_cuda(
    input: Array, weight: Array, bias: Array | None, weight2: Array, bias2: Array | None, approximate: str,
    *, dtype: DType, versions: Any,
) -> Any:  # fmt: skip
    empty, shape = backends.backend_of(input).empty, (*input.shape[:-1], len(weight))
    pre_gelu, hidden = empty(shape, dtype), empty(shape, dtype)
    if not with_gelu(as_matrix(input), weight.T, as_matrix(hidden), bias, as_matrix(pre_gelu)):
        return linear_gelu_linear_by_op(
            input, weight, bias, weight2, bias2, approximate, dtype=dtype, versions=versions
        )
    out = dispatch.run_op(linear, (hidden, weight2, bias2), dtype=dtype)
    return out, Saved(input=input, weight=weight, bias=bias, weight2=weight2, before=pre_gelu, hidden=hidden)


def _backward_fits(dy: Array, saved: Saved, needs: Any, approximate: str) -> bool:
    wanted = saved_hidden(dy, saved, needs, approximate) and any(needs[:3])
    return wanted and _fits(approximate, dy, saved.weight2, saved.before)


@linear_gelu_linear.on_backward("cuda", when=_backward_fits, wants_cache=True)
def linear_gelu_linear_backward_cuda(
    dy: Array, saved: Saved, needs: Any, approximate: str, versions: Any, grad_buffers: Any
) -> Any:
    before, cache = saved.before, (versions, grad_buffers)
    dhidden = backends.backend_of(dy).empty(before.shape, before.dtype)
    if not with_gelu_backward(as_matrix(dy), saved.weight2, as_matrix(dhidden), as_matrix(before)):
        return linear_gelu_linear_backward_by_op(dy, saved, needs, approximate, *cache)
    saved_of_second = Saved(input=saved.hidden, weight=saved.weight2)
    _, *second = dispatch.run_op_backward(
        linear, dy, saved_of_second, (None, *needs[3:]), (None, *versions[3:]), (None, *grad_buffers[3:])
    )
    return *first_linear_backward(dhidden, saved, needs, *cache), *second


register_by_op("cuda")
