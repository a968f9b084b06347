"""`torch._higher_order_ops.associative_scan`, which state-space models of others import: a loop over elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .... import ops


def associative_scan(
    combine_fn: Callable[[Any, Any], Any], xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise"
) -> Any:
    """x0, f(x0, x1), f(f(x0, x1), x2), ... along `dim`, of a tensor or of a tuple or list of tensors of one length."""
    single = not isinstance(xs, (tuple, list))
    parts: Sequence[Any] = [xs] if single else xs
    steps = list(zip(*(each.unbind(dim) for each in parts), strict=True))[:: -1 if reverse else 1]
    found = steps[:1]
    for step in steps[1:]:
        made = combine_fn(found[-1][0], step[0]) if single else combine_fn(type(xs)(found[-1]), type(xs)(step))
        found.append((made,) if single else tuple(made))
    out = [ops.stack(each, dim) for each in zip(*found[:: -1 if reverse else 1], strict=True)]
    return out[0] if single else type(xs)(out)
