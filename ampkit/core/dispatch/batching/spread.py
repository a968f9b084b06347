"""The backward of a call that saw no samples, for gradients that are one of each sample, as `jacrev` passes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...autograd.double_backward import runs_forward_again
from ...autograd.grad_mode import enable_grad, no_grad
from ...autograd.saved import widen_saved
from ...autograd.traced_array import TracedArray
from ...casts import widen
from ...fp_errors import ignore_fp_errors
from ...tensor import Tensor
from .. import Kernel
from .array import BatchedArray, Level
from .call import level_to_spread, on_device_of, per_sample_backward


def spread(op: Any, node: Any, dy: Any) -> Kernel | None:
    """The backward of a node for gradients batched at a level that its own call did not see; else None."""
    level = level_to_spread(node.kernel, dy if type(dy) is tuple else (dy,))
    if level is None:
        return None
    if node.kernel.own_backward is None or node.kernel.level is not None:
        over = getattr(op.batching, "over_samples", None) if node.kernel.level is None and _at_one_level(dy) else None
        by_ops = _backward_by_ops(op, node, level)
        return Kernel(by_ops if over is None else _backward_over_samples(op, node, over, level, by_ops), None)
    return _one_by_one(op, node, level)


def _one_by_one(op: Any, node: Any, level: Level) -> Kernel:
    params = dict(zip(op.signature.param_names, node.params, strict=True))
    return per_sample_backward(op, node.kernel, level, params, node.plan.compute)


def _backward_by_ops(op: Any, node: Any, level: Level) -> Callable[..., Any]:
    # The reference of the backward, as a second derivative runs it: its ops have rules.
    def backward(dy: Any, saved: Any, needs: Any, **params: Any) -> Any:
        dys = [None if d is None else TracedArray(Tensor(d)) for d in (dy if type(dy) is tuple else (dy,))]
        try:
            with enable_grad() if runs_forward_again(op, node) else no_grad():
                found = op.replay(node, dys, needs, None)
        except (TypeError, AttributeError, RuntimeError):  # of plain array code, or without second derivatives
            if node.kernel.level is not None:
                raise
            return _one_by_one(op, node, level).run(dy, saved, needs)
        return tuple([None if g is None else g.tensor.array for g in found])

    return backward


def _at_one_level(dy: Any) -> bool:
    return type(dy) is BatchedArray and type(dy.data) is not BatchedArray


def _backward_over_samples(op: Any, node: Any, over: Callable[..., Any], level: Level, by_ops: Any) -> Any:
    # `over` gives a backward, in plain array code, for gradients with the samples in front; None where there is none.
    def backward(dy: Any, saved: Any, needs: Any, **params: Any) -> Any:
        run = over(node, dy.shape)
        if run is not None and not runs_forward_again(op, node):
            with ignore_fp_errors(), on_device_of((dy,), "backward"):
                try:
                    found = _run_over(run, node, dy.data, saved, needs, params)
                except ValueError:  # one that writes into memory of a sample's shape
                    found = None
            if found is not None and all(g is None or g.shape[:1] == (level.size,) for g in found):
                return tuple([None if g is None else BatchedArray(g, level) for g in found])
        return by_ops(dy, saved, needs, **params)

    return backward


def _run_over(run: Any, node: Any, dy: Any, saved: Any, needs: Any, params: dict[str, Any]) -> list[Any]:
    compute = node.plan.compute
    if compute is not None:
        dy, saved = widen(dy, compute), widen_saved(saved, compute)
    found = run(dy, saved, needs, **params)
    each = list(found) if isinstance(found, (tuple, list)) else [found]
    return [None if need is None else g for g, need in zip(each, needs, strict=False)]
