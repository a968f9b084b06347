"""Splits the backward of attention into cuDNN calls whose workspace stays under a bound.

cuDNN's deterministic algorithm stores the gradient of every score in its workspace, in 16 bits: the workspace is linear
in batch size and heads, and quadratic in sequence length. Batch entries are independent, and so are heads of key with
the heads of query that share them, so a call may compute any slice, bit for bit. The calls run one after the other on
one stream, where CuPy's memory pool gives each the workspace of the one before.
"""

from __future__ import annotations

from typing import Any

from ampkit.base.dtypes import Array

from .cudnn import AttentionArrays, aligned

WORKSPACE = 256 * 10**6  # bytes of workspace per call, unless the call has a single head of key


def attention_backward(library: Any, call: AttentionArrays) -> bool:
    """Write the gradients of `call` with as few cuDNN calls as the bound allows; False if cuDNN has no engine."""
    needed = library.backward_workspace(call)
    if needed is None:
        return False
    if needed <= WORKSPACE or call.key.shape[:2] == (1, 1):
        return library.attention_backward(call)
    return all(attention_backward(library, part) for part in split(call, needed))


def split(call: AttentionArrays, needed: int) -> list[AttentionArrays]:
    """Slice `call` along the batch, or along the heads if the batch is 1. needed: its workspace in bytes."""
    axis = 0 if call.key.shape[0] > 1 else 1
    count = call.key.shape[axis]
    calls = -(-count // max(1, count * WORKSPACE // needed))
    step = -(-count // calls)
    return [_part(call, axis, start, start + step) for start in range(0, count, step)]


def _part(call: AttentionArrays, axis: int, start: int, stop: int) -> AttentionArrays:
    """The slice [start, stop) of the batch (axis 0) or of the heads of key (axis 1), with its heads of query."""
    group = call.query.shape[1] // call.key.shape[1] if axis else 1

    def of_key(array: Array) -> Array:
        return array[(slice(None),) * axis + (slice(start, stop),)]

    def of_query(array: Array) -> Array:
        return array[(slice(None),) * axis + (slice(start * group, stop * group),)]

    def aligned_slice(array: Array) -> Array:  # copied if the slice is not aligned; an axis of 1 is broadcast
        part = array if array.shape[axis] == 1 else of_query(array)
        return part if aligned(part) else part.copy()

    dq, dk, dv = call.gradients
    return call._replace(
        **{name: of_query(getattr(call, name)) for name in ("query", "out", "dout")},
        **{name: of_key(getattr(call, name)) for name in ("key", "value")},
        bias=None if call.bias is None else aligned_slice(call.bias),
        dropped=None if call.dropped is None else (aligned_slice(call.dropped[0]), *call.dropped[1:]),
        lse=aligned_slice(call.lse),
        gradients=(of_query(dq), of_key(dk), of_key(dv)),
    )
