"""Indexing under `vmap`: views by basic indices, and elements at indices that the samples share, or at their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.core.dispatch.batching.array import BatchedArray, expand, innermost
from ampkit.core.dispatch.batching.call import Call, Done
from ampkit.core.dispatch.batching.rules import leading


def index_of_each(call: Call, arrays: list[Any]) -> tuple[Any, ...] | None:
    """The arguments of an op with an `index` and, of a transpose, a `shape`, with the samples as a first axis."""
    index = call.param("index")
    parts = index if type(index) is tuple else (index,)
    found = _parts(call, parts)
    if found is None:
        return None
    changes: dict[str, Any] = {"index": found}
    if "shape" in call.op.signature.param_names:
        changes["shape"] = (call.level.size, *call.param("shape"))
    return call.with_params(**changes)


def _parts(call: Call, parts: tuple[Any, ...]) -> tuple[Any, ...] | None:
    held = [i for i, part in enumerate(parts) if hasattr(part, "dtype")]
    if held and held[-1] - held[0] >= len(held):  # NumPy would move the axes that the indices select to the front
        return None
    if innermost(parts) is not call.level:
        return (slice(None), *parts)
    level = call.level
    own = [parts[i] for i in held]
    if held[0] != 0 or any(part.dtype.kind == "b" for part in own):
        return None
    rank = max(part.ndim for part in own)
    each = [expand(part, level).data.reshape((level.size, *(1,) * (rank - part.ndim), *part.shape)) for part in own]
    data: Any = each[0]
    while type(data) is BatchedArray:
        data = data.data
    first = np.arange(level.size, like=data).reshape((level.size, *(1,) * rank))
    return (first, *each, *parts[held[-1] + 1 :])


_rule = leading(index_of_each)


class Indexed:
    """The rule of `x[index]` and its transpose, whose index may have the samples' own arrays."""

    takes_params = True

    def __call__(self, call: Call) -> Done | None:
        return _rule(call)
