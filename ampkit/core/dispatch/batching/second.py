"""Second derivatives of calls on batched arrays: by the op's backward where that is made of ops, else per sample."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.errors import StateError

from ...autograd import double_backward
from ...autograd.grad_mode import enable_grad
from ...autograd.node import Node, alias
from ...autograd.tape import grad
from ...autograd.traced_array import TracedArray, run, stands_for
from ...casts import widen
from ...nested import tensors_in
from ...tensor import Tensor
from .array import at, device_of, is_at
from .boundary import enter, leave, sum_shared
from .call import fill_saved, note_loop
from .draws import samples


def replay(op: Any, node: Node, dys: list[Any], needs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The gradients of the inputs of a batched call as traced arrays, given traced gradients of its outputs."""
    found = None
    if node.saved.batched.arrays is None:
        fill_saved(op, node)
        try:
            found = double_backward.replay(op, node, dys, needs)
        except (TypeError, AttributeError, RuntimeError):  # plain array code that batched arrays do not know
            found = None
    return sum_shared(node, _per_sample(op, node, dys) if found is None else found)


def _per_sample(op: Any, node: Node, dys: list[Any]) -> tuple[Any, ...]:
    # The op once more for each sample, recorded, and the gradients through it, recorded in their turn.
    level, like = node.kernel.level, next(dy for dy in dys if dy is not None)
    inputs = _inputs(op, node, device_of(like.tensor.array))
    note_loop(f"{op.name}_backward")
    batched = [isinstance(t, Tensor) and is_at(t.array, level) for t in inputs]
    rows = []
    with enable_grad():
        whole = [leave(t, 0, level) if b else t for t, b in zip(inputs, batched, strict=True)]
        given = [None if dy is None else leave(dy.tensor, 0, level) for dy in dys]
        for sample in samples(level):
            each = [t[sample] if b else t for t, b in zip(whole, batched, strict=True)]
            asked = [t for t, edge in zip(each, node.edges, strict=True) if edge is not None]
            made = op.signature.call(op, each, at(node.params, level, sample))
            pairs = list(zip(tensors_in(made), given, strict=True))
            outs = [out for out, dy in pairs if dy is not None and out.requires_grad]
            seeds = [
                widen(TracedArray(dy[sample]), out.array.dtype).tensor
                for out, dy in pairs
                if dy is not None and out.requires_grad
            ]
            rows.append(grad(outs, asked, seeds, create_graph=True, allow_unused=True))
        columns = iter([_stacked(column, level) for column in zip(*rows, strict=True)])
    return tuple([None if edge is None else next(columns) for edge in node.edges])


def _inputs(op: Any, node: Node, device: Any) -> list[Any]:
    # What the call was given, as far as a gradient depends on it: zeros stand for what the op did not save.
    linked, compute = double_backward.link_saved(op, node), node.plan.compute
    found: list[Any] = []
    arrays = node.saved.batched.arrays
    for i, (edge, given) in enumerate(zip(node.edges, node.saved.batched.inputs, strict=True)):
        held = double_backward.linked_input(op, linked, i)
        if held is not None:
            found.append(held.tensor)
        elif arrays is not None and hasattr(arrays[i], "dtype"):
            if node.versions[i][0] > node.serial:
                raise op.changed(f"`{op.signature.name_of(i)}` of {op.name}")
            wide = widen(arrays[i], compute)
            found.append(Tensor(wide) if edge is None else alias(wide, edge))
        elif given.shape is None:
            found.append(given.dtype)
        else:
            need_no_values(op, node)
            zeros = widen(device.zeros(given.shape, given.dtype), compute)
            found.append(Tensor(zeros) if edge is None else alias(zeros, edge))
    return found


def need_no_values(op: Any, node: Node) -> None:
    """Raise StateError where the op saved arrays made of inputs that it did not save: zeros would make others."""
    names = {*op.signature.names, op.signature.variadic, "out", "batched"}
    made = [name for name, value in vars(node.saved).items() if name not in names and hasattr(value, "dtype")]
    if made:
        needs = f"a backward of {op.name} made of ops on what it saved, for a second derivative of samples"
        raise StateError("vmap", needs, f"NumPy code that reads {made[0]}", "map in a Python loop")


def _stacked(column: tuple[Any, ...], level: Any) -> Any:
    if any(one is None for one in column):
        return None
    return TracedArray(enter(run(stands_for[np.stack], [TracedArray(one) for one in column]).tensor, 0, level))
