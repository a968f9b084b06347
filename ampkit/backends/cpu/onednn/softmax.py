"""softmax, log_softmax and exponentials of rows by oneDNN.

A NaN or +inf affects its own element only; the rest of its row becomes 0 or -inf.
"""

from __future__ import annotations

from ampkit.base.dtypes import DType

from .primitive import (
    ALGORITHM,
    DIFF_DST,
    DIFF_SRC,
    DST,
    POST_OP,
    SRC,
    SRC_1,
    TRAINING,
    Call,
    HostArray,
    Layout,
    attributes,
    cached,
    empty,
    primitive_desc,
    signature,
)


def _forward(function: str, input: HostArray, out: HostArray) -> Call:
    of, to = Layout.of(input), Layout.of(out)
    given = [TRAINING, ALGORITHM[function], of.handle, to.handle, 1, attributes()]
    return Call("softmax_forward", given, [(SRC, of), (DST, to)])


def _backward(function: str, dy: HostArray, out: HostArray, dx: HostArray) -> Call:
    grad, of, to = Layout.of(dy), Layout.of(out), Layout.of(dx)
    kind = ALGORITHM[function]
    hint = primitive_desc("softmax_forward", TRAINING, kind, of.handle, of.handle, 1, attributes())
    given = [kind, to.handle, grad.handle, of.handle, 1, hint, attributes()]
    return Call("softmax_backward", given, [(DIFF_DST, grad), (DST, of), (DIFF_SRC, to)])


def rows_of(input: HostArray, function: str, dtype: DType) -> HostArray | None:
    """`function` of each row of [R, C], in `dtype`; None where oneDNN has no fast code."""
    out = empty(input.shape, dtype)
    call = cached((function, signature(input), dtype), lambda: _forward(function, input, out))
    if call is None:
        return None
    call(input, out)
    return out


def row_gradients(dy: HostArray, out: HostArray, function: str, dtype: DType) -> HostArray | None:
    """The gradient of `rows_of`, from what it gave; None where oneDNN has no fast code."""
    dx = empty(out.shape, dtype)
    call = cached((function, "back", signature(dy), signature(out), dtype), lambda: _backward(function, dy, out, dx))
    if call is None:
        return None
    call(dy, out, dx)
    return dx


def exponentials(input: HostArray, shift: HostArray, scale: HostArray, out: HostArray) -> bool:
    """Write scale * exp(input - shift) to `out` [R, C], of `input`'s format; False where oneDNN has no fast code.

    shift [R, 1] and scale [1, 1] float32. A NaN or +inf gives a number above 1e38 times scale: the caller sees to it.
    """

    def build() -> Call:
        of, by, to, times = map(Layout.of, (input, shift, out, scale))
        after = attributes(("exp", 0.0, 0.0), ("mul", times))
        given = [ALGORITHM["sub"], of.handle, by.handle, to.handle, after]
        return Call("binary", given, [(SRC, of), (SRC_1, by), (DST, to), (2 * POST_OP | SRC_1, times)])

    call = cached(("exponentials", signature(input), shift.dtype), build)
    if call is None:
        return False
    call(input, shift, out, scale)
    return True
