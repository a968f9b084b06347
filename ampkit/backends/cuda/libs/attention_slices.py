"""slices: the backward pass of attention, in calls of cuDNN whose workspace stays under a bound.

cuDNN's deterministic algorithm stores the gradient of every score in its workspace, in 16 bits: the workspace is linear
in batch entries and heads, and quadratic in the length of a sequence. The gradients of one entry, and of one head of
key with the heads of query that it serves, depend on no other, so that a call may compute any part of them, with the
same bits. The calls run one after the other on one stream, where CuPy's pool gives each the memory of the one before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .cudnn import aligned

Array = Any  # a CuPy array

WORKSPACE = 256 * 10**6  # bytes of workspace that a call may ask for, unless it is for a single head of key


class Backward(NamedTuple):
    """What `Cudnn.attention_backward` is given."""

    query: Array
    key: Array
    value: Array
    bias: Array | None
    dropped: tuple[Array, Array, Array] | None
    out: Array
    lse: Array
    slope: Array
    gradients: tuple[Array, Array, Array]
    causal: bool
    scale: float


def attention_backward(library: Any, call: Backward) -> bool:
    """Write the gradients of `call`, in as few calls of `library` as fit; False where it has no engine."""
    needed = library.backward_workspace(*call)
    if needed is None:
        return False
    if needed <= WORKSPACE or call.key.shape[:2] == (1, 1):
        done: bool = library.attention_backward(*call)
        return done
    return all(attention_backward(library, part) for part in split(call, needed))


def split(call: Backward, needed: int) -> list[Backward]:
    """Slices of the batch, or of the heads of its only entry; `needed`: the bytes of workspace of the whole call."""
    axis = 0 if call.key.shape[0] > 1 else 1
    count = call.key.shape[axis]
    calls = -(-count // max(1, count * WORKSPACE // needed))
    step = -(-count // calls)
    return [_part(call, axis, start, start + step) for start in range(0, count, step)]


def _part(call: Backward, axis: int, start: int, stop: int) -> Backward:
    share = call.query.shape[1] // call.key.shape[1] if axis else 1

    def of_key(array: Array) -> Array:
        return array[(slice(None),) * axis + (slice(start, stop),)]

    def of_query(array: Array) -> Array:
        return array[(slice(None),) * axis + (slice(start * share, stop * share),)]

    def read(array: Array) -> Array:  # what need not begin at a multiple of cuDNN's alignment
        part = array if array.shape[axis] == 1 else of_query(array)
        return part if aligned(part) else part.copy()

    dq, dk, dv = call.gradients
    return call._replace(
        **{name: of_query(getattr(call, name)) for name in ("query", "out", "slope")},
        **{name: of_key(getattr(call, name)) for name in ("key", "value")},
        bias=None if call.bias is None else read(call.bias),
        dropped=None if call.dropped is None else (read(call.dropped[0]), *call.dropped[1:]),
        lse=read(call.lse),
        gradients=(of_query(dq), of_key(dk), of_key(dv)),
    )
