"""Products of matrices under `vmap`: rows where one operand is shared by the samples, else a batched product.

The gradient of a shared operand is a product of each sample: [size, rows, K]^T [size, rows, N].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.dispatch.batching.array import aligned, expand
from ampkit.core.dispatch.batching.call import Call, Done, Ran
from ampkit.core.dispatch.batching.rules import folded

from ..linalg import matmul as products
from ..linalg.einsum import _LETTERS, einsum_, parse_equation
from .plans import run, summed


def linear(call: Call) -> Done | None:
    """`linear`: input [.., in] of each sample times one weight, or one of each."""
    x, weight, bias = call.arrays
    if not all(hasattr(a, "dtype") for a in (x, weight)):
        return None
    saved = {"input": x, "weight": weight}
    if call.is_batched(1) and not call.is_batched(0) and (bias is None or call.is_batched(2)):
        return Done(*_linear_of_shared(call), saved)
    if call.is_batched(1) or (bias is not None and call.is_batched(2)):
        return Done(*_linear_of_each(call), saved)
    ran = Ran(call.op, [x.data, weight, bias], (), call.plan)

    def backward(dys: list[Any], needs: Any, summing: bool) -> Sequence[Any]:
        dy = dys[0].data
        if summing:
            dx, *others = ran.backward([dy], needs)
            return [None if dx is None else call.up(dx), *others]
        dx = ran.backward([dy], (needs[0], None, None))[0] if needs[0] else None
        dy, rows = (a.reshape(call.level.size, -1, a.shape[-1]) for a in (dy, x.data))
        dw = run(call, products.bmm, [dy.swapaxes(1, 2), rows], dtype=needs[1]) if needs[1] else None
        db = summed(dy, (1,), needs[2]) if needs[2] else None
        return [None if g is None else call.up(g) for g in (dx, dw, db)]

    return Done(call.up(ran.out), backward, saved)


def _linear_backward(dy: Any, saved: Any, needs: Any) -> tuple[Any, Any, Any]:
    # Of a call that saw no samples, for gradients [size, ..., out]: rows of one product, and a product of each sample.
    rows, dw = dy.reshape(len(dy), -1, dy.shape[-1]), None
    dx = (products.as_matrix(dy) @ saved.weight).reshape(*dy.shape[:-1], -1) if needs[0] else None
    if needs[1]:
        x = products.as_matrix(saved.input)
        dw = rows[:, 0, :, None] * x if len(x) == 1 else rows.swapaxes(1, 2) @ x
    return dx, dw, blocked_sum(rows, 1) if needs[2] else None


linear.over_samples = lambda node, shape: _linear_backward  # type: ignore[attr-defined]  # see spread.py


def _linear_of_shared(call: Call) -> tuple[Any, Any]:
    # One product: the outputs of all samples are those of one layer.
    x, weight, bias = (getattr(a, "data", a) if i else a for i, a in enumerate(call.arrays))
    size, outputs, inputs = weight.shape
    ran = Ran(call.op, [x, weight.reshape(-1, inputs), bias if bias is None else bias.reshape(-1)], (), call.plan)
    lead, n = x.shape[:-1], x.ndim - 1

    def backward(dys: list[Any], needs: Any, summing: bool) -> Sequence[Any]:
        dy = dys[0].data
        joined = dy.transpose(*range(1, n + 1), 0, n + 1).reshape(*lead, size * outputs)
        dx, dw, *db = ran.backward([joined], needs if summing else (None, *needs[1:]))
        if needs[0] and not summing:
            rows = dy.reshape(size, math.prod(lead), outputs)
            dx = call.up(run(call, products.bmm, [rows, weight], dtype=needs[0]).reshape(size, *x.shape))
        return [dx, *[None if g is None else call.up(g.reshape(size, outputs, *g.shape[1:])) for g in (dw, *db)]]

    return call.up(ran.hand_out().reshape(*lead, size, outputs).transpose(n, *range(n), n + 1)), backward


def _linear_of_each(call: Call) -> tuple[Any, Any]:
    x, weight, bias = (None if a is None else expand(a, call.level) for a in call.arrays)
    assert x is not None and weight is not None
    rows = x.data.reshape(call.level.size, math.prod(x.shape[:-1]), x.shape[-1])
    turned, lead = weight.data.swapaxes(1, 2), x.shape[:-1]
    if bias is None:
        ran = Ran(products.bmm, [rows, turned], (), _undropped(call))
    else:
        ran = Ran(products.baddbmm, [bias.data[:, None], rows, turned], (1, 1), _undropped(call))

    def backward(dys: list[Any], needs: Any, summing: bool) -> Sequence[Any]:
        dy = dys[0].data.reshape(ran.out.shape)
        *db, dx, _ = ran.backward([dy], (needs[0], None) if bias is None else (needs[2], needs[0], None))
        found = [
            None if dx is None else dx.reshape((call.level.size, *x.shape)),
            run(call, products.bmm, [dy.swapaxes(1, 2), rows], dtype=needs[1]) if needs[1] else None,
            summed(db[0], (1,), needs[2]) if db and db[0] is not None else None,
        ]
        return [None if g is None else call.up(g) for g in found]

    return call.up(ran.out.reshape((call.level.size, *lead, weight.shape[0]))), backward


def _undropped(call: Call) -> Any:
    return call.plan.with_output(call.plan.out)


def product(call: Call) -> Done | None:
    """A product of matrices or vectors, as `matmul` has it."""
    if not all(hasattr(a, "dtype") for a in call.arrays) or call.plan.out.kind in "biu":
        return None
    a, b = (_matrix(call, i) for i in range(2))
    ranks = [x.ndim - 2 - call.is_batched(i) for i, x in enumerate((a, b))]
    a, b = (_with_rank(x, max(ranks)) if call.is_batched(i) else x for i, x in enumerate((a, b)))
    made = run(call, products.matmul, [a, b])
    vectors = [i for i in (0, 1) if call.arrays[i].ndim == 1]
    axes = tuple([(-2, -1)[i] for i in vectors])
    out = made.reshape([n for i, n in enumerate(made.shape) if i - made.ndim not in axes]) if axes else made

    def backward(dys: list[Any], needs: Any, summing: bool) -> Sequence[Any]:
        dy = dys[0].data.reshape(made.shape)
        found: list[Any] = []
        for i, need in enumerate(needs):
            if need is None:
                found.append(None)
                continue
            gradient = _left(call, dy, b, need) if i == 0 else _right(call, a, dy, need, ranks)
            if i in vectors:
                gradient = gradient.reshape([n for k, n in enumerate(gradient.shape) if k - gradient.ndim != -2 + i])
            found.append(call.up(gradient))
        return found

    names = call.op.signature.names
    saved = {names[i]: call.arrays[i] for i in range(2)}
    if call.op is products.matmul:
        saved["shared"] = call.arrays[0].ndim > 2 and call.arrays[1].ndim <= 2
    return Done(call.up(out), backward, saved)


def _matrix(call: Call, i: int) -> Any:
    # The operand with at least two axes beside that of the samples.
    array = call.arrays[i]
    data = array.data if call.is_batched(i) else array
    if array.ndim > 1:
        return data
    return data[..., None, :] if i == 0 else data[..., None]


def _with_rank(data: Any, rank: int) -> Any:
    missing = rank - (data.ndim - 3)
    return data.reshape((data.shape[0], *(1,) * missing, *data.shape[1:])) if missing else data


def _left(call: Call, dy: Any, b: Any, need: Any) -> Any:
    return run(call, products.matmul, [dy, b.swapaxes(-1, -2)], dtype=need)


def _right(call: Call, a: Any, dy: Any, need: Any, ranks: list[int]) -> Any:
    if ranks[1] == 0 and ranks[0] > 0 and call.is_batched(0):  # one right operand for the leading axes of a sample
        size = call.level.size
        a, dy = (x.reshape(size, -1, x.shape[-1]) for x in (a, dy))
    return run(call, products.matmul, [a.swapaxes(-1, -2), dy], dtype=need)


def outer(call: Call) -> Done | None:
    """`outer`: an elementwise product of a column and a row."""
    from ..pointwise.arithmetic import mul

    a, b = (expand(x, call.level).data for x in call.arrays)
    ran = Ran(mul, [a[:, :, None], b[:, None, :]], (), call.plan.with_output(call.plan.out))

    def backward(dys: list[Any], needs: Any, summing: bool) -> Sequence[Any]:
        wide = [None if n is None else dys[0].dtype for n in needs]
        found = ran.backward([dys[0].data], wide)
        return [
            None if n is None else call.up(summed(g, (2 - i,), n))
            for i, (g, n) in enumerate(zip(found, needs, strict=True))
        ]

    return Done(call.up(ran.out), backward, {"input": call.arrays[0], "vec2": call.arrays[1]})


_batched_sum = folded({"input": 0, "batch1": 0, "batch2": 0})


def baddbmm(call: Call) -> Done | None:
    """`baddbmm`: the samples are further matrices of the batch."""
    given, a, b = call.arrays
    if not hasattr(given, "dtype"):
        return None
    shape = (a.shape[0], a.shape[1], b.shape[2])
    (data,) = aligned([expand(given, call.level)], call.level, 3)
    call.arrays[0] = call.up(np.broadcast_to(data, (call.level.size, *shape)))
    done = _batched_sum(call)
    call.arrays[0] = given
    return done


def addmm(call: Call) -> Done | None:
    """`addmm`: a `baddbmm` with one matrix of each sample."""
    if not hasattr(call.arrays[0], "dtype"):
        return None
    given, a, b = (expand(x, call.level) for x in call.arrays)
    (data,) = aligned([given], call.level, 2)
    ran = Ran(products.baddbmm, [data, a.data, b.data], call.params, _undropped(call))
    return Done(call.up(ran.out), ran.lifted(call), {"mat1": call.arrays[1], "mat2": call.arrays[2]})


def einsum(call: Call) -> Done | None:
    """`einsum` with one more letter, of the samples."""
    parts, out = parse_equation(call.param("equation"), call.arrays)
    free = [letter for letter in _LETTERS if letter not in "".join(parts)]
    if not free or call.plan.out.kind in "biu":
        return None
    arrays = [expand(a, call.level) if call.wants[i] else a for i, a in enumerate(call.arrays)]
    has = [call.is_batched(i) or bool(call.wants[i]) for i in range(len(arrays))]
    equation = ",".join([free[0] * h + part for h, part in zip(has, parts, strict=True)]) + f"->{free[0]}{out}"
    ran = Ran(einsum_, [a.data if h else a for h, a in zip(has, arrays, strict=True)], (equation,), _undropped(call))
    return Done(call.up(ran.out), ran.lifted(call), {"operands": tuple(call.arrays)})
