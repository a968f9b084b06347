"""Losses under `vmap`: the loss of each element in one call, reduced over the axes of a sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ampkit.core.casts import cast
from ampkit.core.dispatch.batching.array import aligned, expand
from ampkit.core.dispatch.batching.call import Call, Done, Ran
from ampkit.core.dispatch.batching.rules import elementwise, folded, leading

from .plans import summed, wide_dtype


def of_elements(call: Call) -> Done | None:
    """A loss of two or more tensors, element by element."""
    reduction = call.param("reduction")
    if reduction == "none":
        return elementwise(call)
    size, level = call.level.size, call.level
    if any(w and not call.is_batched(i) for i, w in enumerate(call.wants)):
        shown = [a if a is None else expand(a, level) for a in call.arrays]
        call = Call(call.op, shown, call.params, call.plan, level, call.wants)
    ran = Ran(call.op, aligned(call.arrays, level), call.with_params(reduction="none"), _wide(call), call.wants)
    shape = ran.out.shape[1:]
    count = {"mean": math.prod(shape), "batchmean": shape[0] if shape else 1}.get(reduction, 1)
    total = summed(ran.out, tuple(range(1, ran.out.ndim)), wide_dtype(call.plan))
    out = cast(total if count == 1 else total / count, call.plan.out)
    rank, plan = len(shape), call.plan
    ran.hand_out()

    def backward(dys: list[Any], needs: Any, summing: bool) -> Sequence[Any]:
        dy = cast(dys[0].data, wide_dtype(plan))
        dy = (dy if count == 1 else dy / count).reshape((size, *(1,) * rank))
        found = ran.backward([np.broadcast_to(dy, (size, *shape)).copy()], needs)
        return [None if g is None else call.up(g) for g in found]

    return Done(call.up(out), backward, call.inputs(), replays=True)


def of_one_shape(call: Call) -> Done | None:
    """A loss of tensors that broadcast in ways of its own, for those of one shape."""
    return of_elements(call) if len({tuple(getattr(a, "shape", ())) for a in call.arrays}) == 1 else None


def _wide(call: Call) -> Any:
    return call.plan.with_output(wide_dtype(call.plan))


def of_classes(call: Call) -> Done | None:
    """A loss over classes, axis 1 or the only one: input [N, C, ...] of the samples below each other."""
    x, target, weight = call.arrays
    reduction, size, level = call.param("reduction"), call.level.size, call.level
    if weight is not None and (call.is_batched(2) or call.wants[2]):
        return None
    if reduction == "none":
        rule = leading(shared=("weight",)) if x.ndim == 1 else folded({"input": 0, "target": 0}, shared=("weight",))
        return rule(call)
    arrays = [expand(a, level).data for a in (x, target)]
    if x.ndim > 1:
        arrays = [a.reshape((-1, *a.shape[2:])) for a in arrays]
    ran = Ran(call.op, [*arrays, weight], call.with_params(reduction="none"), _wide(call), call.wants)
    rows = ran.out.reshape(size, -1)
    count: Any = 1
    if reduction == "mean" and "ignore_index" in call.op.signature.param_names:
        counted = arrays[1].reshape(size, -1) != call.param("ignore_index")
        if weight is not None:
            labels = np.where(counted, arrays[1].reshape(size, -1), 0)
            counted = np.where(counted, np.take(cast(weight, wide_dtype(call.plan)), labels, 0), 0)
        count = counted.sum(1).astype(wide_dtype(call.plan))
    elif reduction == "mean":
        count = rows.shape[1]
    out = cast(summed(rows, (1,), wide_dtype(call.plan)) / count, call.plan.out)

    def backward(dys: list[Any], needs: Any, summing: bool) -> Sequence[Any]:
        dy = cast(dys[0].data, wide_dtype(call.plan)) / count
        each = np.broadcast_to(dy[:, None], rows.shape).copy().reshape(ran.out.shape)
        found = ran.backward([each], needs)
        return [None if g is None else call.up(g.reshape((size, *call.arrays[i].shape))) for i, g in enumerate(found)]

    return Done(call.up(out), backward, call.inputs(), replays=True)
