"""A call of an op on batched arrays: its rule runs it once over all samples; without one it runs once per sample.

The cast plan is that of one sample (see cast_plan.py), and what runs below is told its dtypes, so that dtypes and
roundings are those of a call without `vmap`. A plan with batched arrays asks here for the kernel of each call. Its
backward gets and gives arrays that are batched where the gradient is one of each sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from logging import getLogger
from typing import Any, NamedTuple

import numpy as np

from ampkit import backends
from ampkit.base.array_kinds import on_device
from ampkit.base.dtypes import DIFFERENTIABLE
from ampkit.base.errors import AmpkitError

from ... import dispatch
from ...autograd.accumulate import reduce_to_input
from ...autograd.grad_mode import grad_scope
from ...autograd.saved import NOTHING, Saved
from ...cast_plan import CastPlan
from ...casts import widen
from ...dispatch import Kernel
from ...fp_errors import ignore_fp_errors
from ...op_call import round_result, save_as_stored, split_result
from . import numpy_functions as numpy_functions
from .array import BatchedArray, Level, UnmappedError, at, expand, innermost
from .draws import samples
from .sums import is_summing, sum_if_ended

__all__ = ["innermost"]

_NEVER = (0,)  # the version of an array under which nothing is cached


class Done(NamedTuple):
    """What a rule returns: the outputs, what a second derivative may read, and the backward.

    out: the outputs as the op has them, one array or a tuple. backward: (gradients of the outputs, needs, whether
    gradients of what the samples share are summed) -> one gradient per input. saved: by name. replays: as of a Kernel.
    arrays: of a call that ran once per sample, its inputs, with which a second derivative runs it again.
    """

    out: Any
    backward: Callable[[list[Any], Any, bool], Sequence[Any]]
    saved: dict[str, Any]
    replays: bool = False
    arrays: tuple[Any, ...] | None = None


class Call:
    """One call of `op` on `arrays`, of which some are batched at `level`.

    params: the op's other arguments, in their order. wants: per input, whether its gradient is wanted; empty where a
    rule that calls the op does not say. records: whether a backward may follow.
    """

    def __init__(self, op: Any, arrays: list[Any], params: Sequence[Any], plan: CastPlan, level: Level, wants: Any):
        self.op, self.arrays, self.params, self.plan, self.level = op, arrays, tuple(params), plan, level
        self.wants, self.records = wants, not wants or any(wants)

    def is_batched(self, i: int) -> bool:
        """Whether input `i` is one of each sample."""
        array = self.arrays[i]
        return type(array) is BatchedArray and array.level is self.level

    def inputs(self) -> dict[str, Any]:
        """The arrays by the names of the inputs: what a second derivative that replays the reference needs."""
        return dict(zip(self.op.signature.names, self.arrays, strict=True))

    def param(self, name: str) -> Any:
        """The argument of this name."""
        return self.params[self.op.signature.param_names.index(name)]

    def keeps_axes(self) -> bool:
        """Whether a reduction keeps the axes that it sums over."""
        return "keepdim" in self.op.signature.param_names and bool(self.param("keepdim"))

    def with_params(self, **changes: Any) -> tuple[Any, ...]:
        """The arguments with some of them changed."""
        named = zip(self.op.signature.param_names, self.params, strict=True)
        return tuple([changes.get(name, value) for name, value in named])

    def up(self, data: Any) -> BatchedArray:
        """An array with a leading axis of samples as one that is batched."""
        return BatchedArray(data, self.level)


class Ran:
    """A call of an op on arrays that are not batched here, or at an outer level: its outputs and its backward."""

    def __init__(self, op: Any, arrays: Sequence[Any], params: Sequence[Any], plan: CastPlan, wants: Any = ()):
        self.op, self.plan, self.params = op, plan, params
        kernel: Any
        level, arrays = innermost(arrays), list(arrays)
        if level is not None:
            kernel = kernel_of(op, arrays, plan, wants)
        else:
            name = backends.backend_of(next(a for a in arrays if hasattr(a, "dtype"))).name
            kernel = op.forward.reference  # which alone moves bytes of formats below 16 bits
            if plan.choose is not None:
                kernel = plan.choose(arrays)
            elif plan.codes is None:
                kernel = op.forward.choose(name, op.call, arrays, params, plan.out)
        compute = plan.compute if plan.widens else None
        out, self.kernel = dispatch.forward(op, kernel, arrays, params, plan.out, compute, (_NEVER,) * len(arrays))
        self.out, self.saved = split_result(op, out)
        if plan.narrows and self.kernel is op.forward.reference:
            self.out = round_result(self.out, plan)
            save_as_stored(op, self.saved, arrays, self.out)
        for name in plan.drops:
            self.saved.__dict__.pop(name, None)
        self.outputs = [(o.shape, o.dtype) for o in (self.out if type(self.out) is tuple else (self.out,))]

    def hand_out(self) -> Any:
        """The outputs, of which the backward keeps nothing but what the op saved."""
        out, self.out = self.out, None
        return out

    def named_params(self) -> dict[str, Any]:
        """The other arguments of the call by their names."""
        return dict(zip(self.op.signature.param_names, self.params, strict=True))

    def backward(self, dys: list[Any], needs: Any) -> list[Any]:
        """One gradient per input, given those of the outputs; None where none is wanted."""
        if len(self.outputs) > 1:
            like = next(dy for dy in dys if dy is not None)
            dys = [_zeros(like, *out) if dy is None else dy for dy, out in zip(dys, self.outputs, strict=True)]
        dy = dys[0] if len(dys) == 1 else tuple(dys)
        return run_backward(self.op, self.kernel, dy, self.saved, needs, self.named_params(), self.plan.compute)

    def lifted(self, call: Call) -> Callable[[list[Any], Any, bool], Sequence[Any]]:
        """The backward of `call`, where the samples are the first axis of the operands and of the one output."""
        return lambda dys, needs, _: [None if g is None else call.up(g) for g in self.backward([dys[0].data], needs)]


def _zeros(like: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    return np.zeros_like(like, dtype, shape=shape) if dtype in DIFFERENTIABLE else None


def run_backward(op: Any, kernel: Any, dy: Any, saved: Any, needs: Any, params: dict[str, Any], compute: Any) -> Any:
    """The gradients that the backward of `op` gives where `kernel`, or any, ran forward; one per input."""
    dys = dy if type(dy) is tuple else (dy,)
    level, own = level_to_spread(kernel, dys), None if kernel is None else kernel.own_backward
    if level is not None:
        own = per_sample_backward(op, kernel, level, params, compute)
    elif own is None:
        array = next(d for d in dys if d is not None)
        own = op.backward_primitive.choose(backends.backend_of(array).name, dispatch.call, (dy, saved, needs), params)
    count = len(needs)
    found, _ = dispatch.backward(op, own, dy, saved, needs, params, compute, (_NEVER,) * count, (None,) * count)
    gradients = list(found) if isinstance(found, (tuple, list)) else [found]
    return [*gradients, *[None] * (len(needs) - len(gradients))]


class BatchedKernel:
    """In place of a Kernel, what runs one call of `op` on batched arrays. level: whose samples they are."""

    name, launches, wants_cache, replays = "batched", False, False, False
    own_backward: Kernel | None = None

    def __init__(self, op: Any, plan: CastPlan, level: Level, wants: Any):
        self.op, self.plan, self.level, self.wants = op, plan, level, wants

    def run_bound(self, arrays: Sequence[Any], params: Sequence[Any]) -> Any:
        """Run on the inputs and the other arguments of the op. -> its outputs and what the backward reads."""
        call = Call(self.op, list(arrays), params, self.plan, self.level, self.wants)
        if backends.gpus is None:
            done = batched(call)
        else:
            with on_device_of(arrays, call.op.name):
                done = batched(call)
        outs = done.out if type(done.out) is tuple else (done.out,)
        if not call.records:
            return (*outs, NOTHING)
        self.replays, self.own_backward = done.replays, Kernel(_backward_of(self.level), None)
        inputs = tuple([_Input(not call.is_batched(i), *_shape_and_dtype(a)) for i, a in enumerate(call.arrays)])
        return (*outs, Saved(**done.saved, batched=_Backward(done.backward, inputs, done.arrays)))


class _Input(NamedTuple):
    # An input: whether all samples share it, and of a sample's the shape and the dtype, or a number in its place.
    shared: bool
    shape: tuple[int, ...] | None
    dtype: Any


def _shape_and_dtype(array: Any) -> tuple[Any, Any]:
    return (tuple(array.shape), array.dtype) if hasattr(array, "dtype") else (None, array)


class _Backward(NamedTuple):
    # What a batched call keeps for its backward, until the tape frees it.
    run: Callable[[list[Any], Any, bool], Sequence[Any]]
    inputs: tuple[_Input, ...]
    arrays: tuple[Any, ...] | None


def fill_saved(op: Any, node: Any) -> None:
    """Add what a sample's call saves beside arrays, such as shapes, to what the node of a batched call saved.

    A second derivative reads it. It depends on shapes alone, so that the reference says it of zeros.
    """
    compute = node.plan.compute
    zeros = [
        i.dtype if i.shape is None else widen(np.zeros(i.shape, i.dtype), compute) for i in node.saved.batched.inputs
    ]
    try:
        with ignore_fp_errors():
            _, saved = split_result(op, op.call(op.forward.reference.run, zeros, node.params))
    except AmpkitError:  # of an inverse, say, which saves arrays alone
        return
    for name, value in saved.__dict__.items():
        if name not in node.saved.__dict__ and not _holds_array(value):
            node.saved.__dict__[name] = value


def on_device_of(arrays: Any, where: str) -> Any:
    """The context of the device of arrays, below all levels."""
    return backends.device_guard(*map(on_device, arrays), where=where)


def _backward_of(level: Level) -> Callable[..., Any]:
    def backward(dy: Any, saved: Any, needs: Any, **params: Any) -> Any:
        dys = [None if d is None else expand(d, level) for d in (dy if type(dy) is tuple else (dy,))]
        summing = is_summing(level)
        held: _Backward = saved.batched
        with on_device_of(dys, "backward"):
            found = list(held.run(dys, needs, summing))
            if summing:
                found = [sum_if_ended(g, level) if i.shared else g for g, i in zip(found, held.inputs, strict=True)]
        return tuple(found)

    return backward


def kernel_of(op: Any, arrays: Sequence[Any], plan: CastPlan, wants: Any = ()) -> BatchedKernel:
    """The kernel that runs `op` on arrays of which some are batched."""
    level = innermost(arrays)
    assert level is not None
    return BatchedKernel(op, plan, level, wants)


def plan_of(op: Any, plan: CastPlan) -> CastPlan:
    """The plan of a sample's call as that of a call on batched arrays."""

    def chosen(inputs: Any) -> BatchedKernel:
        recording = grad_scope().value
        wants = [recording and getattr(each, "_edge", None) is not None for each in inputs]
        own = plan if plan.quantized is None else replace(plan, choose=partial(_of_sample, plan.quantized, inputs))
        return kernel_of(op, [getattr(each, "array", each) for each in inputs], own, wants)

    return replace(plan, choose=chosen)


def _of_sample(quantized: Callable[[Any], Any], inputs: Any, arrays: Any) -> Any:
    return quantized(inputs)  # tensors of all samples, which say whose gradients are wanted


def batched(call: Call) -> Done:
    """Run a call by the rule of its op, or per sample where it has none, or one that does not know these arguments.

    A recipe quantizes per sample, too: its scales are those of a whole operand of one sample.
    """
    rule: Any = None if call.plan.quantized is not None else call.op.batching
    known = rule is not None and (innermost(call.params) is None or getattr(rule, "takes_params", False))
    done = rule(call) if known else None
    return per_sample(call) if done is None else done


def per_sample(call: Call) -> Done:
    """The call as one call of the op per sample."""
    level, op = call.level, call.op
    note_loop(op.name)
    each = [
        Ran(op, at(call.arrays, level, b), at(call.params, level, b), call.plan, call.wants) for b in samples(level)
    ]
    several, shapes = type(each[0].out) is tuple, [tuple(getattr(a, "shape", ())) for a in call.arrays]
    outs = [out if several else (out,) for out in [ran.hand_out() for ran in each]]
    made = tuple([_stacked(level, column) for column in zip(*outs, strict=True)])

    def backward(dys: list[Any], needs: Any, summing: bool) -> list[Any]:
        rows = [each[b].backward(at(dys, level, b), needs) for b in samples(level)]
        return _gathered(op, level, rows, needs, shapes)

    saved = named_items(call, each[0].saved.__dict__, made[0])
    return Done(made if several else made[0], backward, saved, arrays=tuple(call.arrays))


def named_items(call: Call, names: Any, out: Any) -> dict[str, Any]:
    """The batched inputs and the batched output `out` of a call by name, as far as it saves them under `names`."""
    signature, found = call.op.signature, {}
    for name in names:
        if name == "out":
            found[name] = out
        elif name is not None and name == signature.variadic:
            found[name] = tuple(call.arrays)
        elif name in signature.names:
            found[name] = call.arrays[signature.names.index(name)]
    return found


def _holds_array(value: Any) -> bool:
    if type(value) in (tuple, list):
        return any(_holds_array(v) for v in value)
    return hasattr(value, "dtype")


def _stacked(level: Level, column: Sequence[Any]) -> BatchedArray:
    arrays = [np.asarray(a) if isinstance(a, np.generic) else a for a in column]
    if len(shapes := {tuple(a.shape) for a in arrays}) > 1:
        got = " and ".join(map(str, map(list, sorted(shapes)[:2])))
        raise UnmappedError("vmap", "results of one shape for all samples", got, "choose by ops.where, or fill up")
    return BatchedArray(np.stack(arrays), level)


def _gathered(op: Any, level: Level, rows: list[list[Any]], needs: Any, shapes: list[Any]) -> list[Any]:
    # Per input the gradients of the samples, in the input's shape.
    found: list[Any] = []
    for i, need in enumerate(needs):
        column = [row[i] for row in rows]
        if need is None or column[0] is None:
            found.append(None)
            continue
        found.append(_stacked(level, [reduce_to_input(_Named(op), g, shapes[i], need) for g in column]))
    return found


class _Named(NamedTuple):
    op: Any  # whose name an error of a gradient's shape says


def per_sample_backward(op: Any, kernel: Any, level: Level, params: dict[str, Any], compute: Any) -> Kernel:
    """The backward of a call on arrays that all samples share, for gradients that are one of each sample."""

    def backward(dy: Any, saved: Any, needs: Any, **_: Any) -> Any:
        rows = []
        note_loop(f"{op.name}_backward")
        for b in samples(level):
            given = at(dy, level, b)
            rows.append(run_backward(op, kernel, given, saved, needs, params, compute))
        return tuple([None if g[0] is None else BatchedArray(np.stack(g), level) for g in zip(*rows, strict=True)])

    return Kernel(backward, None)


def level_to_spread(kernel: Any, dys: Any) -> Level | None:
    """The level of gradients, unless the call that `kernel` ran was batched at it or at an inner one."""
    level, own = innermost(dys), getattr(kernel, "level", None)
    return level if level is not None and (own is None or own.serial < level.serial) else None


# What looped, for tests and for users who ask why a vmap is slow.

_watchers: list[Callable[[str], None]] = []
_logged: set[str] = set()


def note_loop(name: str) -> None:
    """Say that a call of the op `name` runs once per sample; in the log, once for each op."""
    for watch in _watchers:
        watch(name)
    if name not in _logged:
        _logged.add(name)
        _log.warning("vmap: %s runs once per sample, as it has no rule for these arguments", name)


@contextmanager
def watching_loops() -> Iterator[dict[str, None]]:
    """Within the block, the names of the ops that run once per sample come into the dict that is returned."""
    found: dict[str, None] = {}

    def watch(name: str) -> None:
        found[name] = None

    _watchers.append(watch)
    try:
        yield found
    finally:
        _watchers.remove(watch)


_log = getLogger("ampkit.func")
