"""One call of an op, from bound arguments to a recorded Tensor: plan, cast, check, dispatch, round, record.

Every operation of every step passes here. So what can be decided once stands in the plan (see cast_plan.py), what
belongs to the op is bound by a closure of its own, and the constructors of Tensor and Node are written out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import backends
from ..backends.launch_queue import queue
from ..base.array_kinds import Absent
from ..base.dtypes import DIFFERENTIABLE, FLOATS, NARROW, DType, bool_, rounded
from ..base.errors import AmpkitError, ArgumentError, DTypeError, ShapeError
from ..base.observe import FORWARD, notify_end, notify_start, observers, profilers
from . import dispatch
from .autograd.grad_mode import grad_scope
from .autograd.node import Node
from .autograd.saved import NOTHING, Saved
from .autograd.saved_hooks import pack_saved, packing
from .autograd.views import link
from .capture import anew
from .capture.recorder import recorders
from .cast_plan import CastPlan
from .casts import cast_unread
from .fp_errors import pop_ignore, push_ignore
from .module_path import current, following
from .policy import scope
from .tensor import Tensor, tick

_new = object.__new__


def runner(op: Any) -> Callable[..., Any]:
    """The function that runs a call of `op`, given what `Signature.entry` binds. -> one Tensor, or a tuple of them."""
    plans, call, view, ndarray = op.plans.get, op.call, op.view, np.ndarray
    primitive, reference = op.forward, op.forward.reference

    def run(inputs: Any, params: Any, arrays: list[Any], edges: Any, versions: Any, key: tuple[Any, ...]) -> Any:
        plan: CastPlan = plans(key) or op.new_plan(key, inputs)
        device = None if backends.gpus is None else backends.gpus.enter(op.name, arrays)
        kernel, token = reference, push_ignore()
        try:
            if plan.casts:
                _cast_inputs(inputs, arrays, plan.casts)
            if op.checks is not None:
                call(op.checks, arrays, params)
            # The size test of `choose` is repeated here, to save small arrays a function call.
            if plan.choose is not None:
                kernel = plan.choose(inputs)
            elif plan.kernels and (type(arrays[0]) is not ndarray or arrays[0].size >= primitive.min_elements):
                kernel = primitive.choose(plan.backend, call, arrays, params, plan.out)
            if queue.active and (kernel.launches or queue.waiting):
                queue.before(kernel, versions, (*arrays, *params))
            if profilers:
                notify_start(op.name, kernel.name, arrays[0])
            if kernel is reference and not plan.widens:  # most small calls
                out = call(kernel.run, arrays, params)
            else:
                compute = plan.compute if plan.widens else None
                out, kernel = dispatch.forward(op, kernel, arrays, params, plan.out, compute, versions)
            saved = NOTHING
            if type(out) is tuple and len(out) == 2 and type(out[1]) is Saved and type(out[0]) is ndarray:  # as most do
                out, saved = out
            elif type(out) is not ndarray:
                out, saved = split_result(op, out)
            if plan.narrows and kernel is reference:
                out = round_result(out, plan)
                save_as_stored(op, saved, arrays, out)
        except (ValueError, TypeError, AttributeError, IndexError, OverflowError) as error:
            if (explained := _operand_error(op, arrays, error)) is None:
                raise
            raise explained from error
        except MemoryError as error:
            raise backends.out_of_memory_error(arrays, error) from None
        finally:
            pop_ignore(token)
            if queue.opened:
                queue.after()
            if device is not None:
                backends.gpus.leave(device)
        if type(out) is tuple:
            made: Any = _results(out)
            first = made[0]
        else:
            made = first = _new(Tensor)  # its constructor, written out
            made.array, made._edge, made._version_counter, made._cast_copies = out, None, [0], None
            made._grad = made._scale_tag = made._view_links = None
        if view:
            _link_views(op, params, inputs[0], made)
        node = None
        if plan.tapes and grad_scope().value:
            if plan.drops:
                for name in plan.drops:
                    saved.__dict__.pop(name, None)
            node = _new(Node)  # its constructor, written out
            node.op, node.edges, node.saved, node.params, node.plan = op, edges, saved, params, plan
            node.kernel, node.versions, node.result, node.serial = kernel, versions, first._version_counter, tick()
            if packing:
                pack_saved(node)
            elif anew.steps:
                anew.note(node, inputs, arrays)
            if following:
                node.module_call = current()
            if made is not first:
                _attach(made, node)
            elif out.dtype in DIFFERENTIABLE:
                made._edge = (node, 0, out.shape, out.dtype)
        if observers:
            what = {"op": op, "operands": inputs, "params": params, "plan": plan, "kernel": kernel, "node": node}
            _notify(arrays, out, what)
        return made

    return run


def _results(outs: tuple[Any, ...]) -> tuple[Tensor, ...]:
    made = tuple([Tensor(o) for o in outs])
    for one in made:
        one._version_counter = [0]  # a plain list, as of every result
    return made


def _notify(arrays: list[Any], out: Any, what: dict[str, Any]) -> None:
    # Tell observers of a call, and recorders of the tensors that it read.
    read = tuple([a for a in arrays if hasattr(a, "dtype")])
    notify_end(what["op"].name, read, out, FORWARD, **what)
    for recorder in recorders:
        recorder.met(what["operands"])


def _link_views(op: Any, params: Any, parent: Tensor, made: Any) -> None:
    if type(made) is not tuple:
        link(parent, made, op, params)
        return
    for i, one in enumerate(made):
        link(parent, one, op, params, i)


def _attach(outs: tuple[Tensor, ...], node: Node) -> None:
    # Several outputs of one node.
    node.outputs = tuple([(o._array.shape, o._array.dtype) for o in outs])
    saved = [v for v in node.saved.__dict__.values() if type(v) is type(outs[0]._array)]
    node.others = [o._version_counter for o in outs[1:] if _shares_memory(o._array, saved)] if saved else ()
    for i, one in enumerate(outs):
        if one._array.dtype in DIFFERENTIABLE:
            one._edge = (node, i, *node.outputs[i])


def _shares_memory(array: Any, others: list[Any]) -> bool:
    for other in others:
        owners = type(array) is np.ndarray and array.base is None and other.base is None  # of their memory
        if array is other or (not owners and np.may_share_memory(array, other)):
            return True
    return False


# The casts of a call: inputs to the dtype in which the plan reads them, and the reference's result to the plan's.


def _cast_inputs(inputs: Any, arrays: list[Any], casts: tuple[DType | None, ...]) -> None:
    for i, dtype in enumerate(casts):
        if dtype is None:
            continue
        array = arrays[i]
        if type(array) is float or type(array) is int:
            arrays[i] = rounded(array, dtype)
        elif array.dtype in NARROW:  # an op that moves bytes
            arrays[i] = array.view(dtype)
        elif array.dtype != dtype or type(array) is Absent:
            region = scope().value
            arrays[i] = inputs[i].copy_in(dtype, region is None or region.cache)


def round_result(out: Any, plan: CastPlan) -> Any:
    """What a reference returned, rounded to the dtype of the plan's result."""
    if type(out) is tuple and plan.codes is not None:
        return tuple([round_result(each, plan) for each in out])
    if type(out) is tuple:  # outputs after the first are statistics: they stay as precise as they were computed
        return (round_result(out[0], plan), *out[1:])
    if plan.codes is not None:
        return out.view(plan.codes)
    return out if out.dtype not in DIFFERENTIABLE and plan.out in FLOATS else cast_unread(out, plan.out)


def save_as_stored(op: Any, saved: Saved, arrays: list[Any], out: Any) -> None:
    """Save inputs and the output in the dtype they are stored in, not the wide copies the reference worked on."""
    items = saved.__dict__
    if "out" in items:
        items["out"] = out[0] if type(out) is tuple else out
    if op.signature.variadic in items:
        items[op.signature.variadic] = tuple(arrays)
    for i, name in enumerate(op.signature.names):
        if name in items:
            items[name] = arrays[i]


def split_result(op: Any, out: Any) -> tuple[Any, Saved]:
    """What a kernel returned: its output or outputs, as arrays, and what it saved."""
    saved = NOTHING
    if type(out) is tuple and out and type(out[-1]) is Saved:
        saved = out[-1]
        out = out[0] if len(out) == 2 else out[:-1]
    if type(out) is not np.ndarray:
        out = _arrays(op, out)
        if "out" in saved.__dict__:  # NumPy turned a 0-d array into a scalar
            saved.out = out[0] if type(out) is tuple else out
    return out, saved


def _arrays(op: Any, out: Any) -> Any:
    if type(out) is tuple and out:
        return tuple([_arrays(op, o) for o in out])
    if isinstance(out, (np.generic, bool, int, float)):
        return np.asarray(out)
    if not hasattr(out, "dtype"):
        got = "nothing" if out is None or out == () else type(out).__name__
        raise DTypeError(op.name, "a kernel that returns an array, or (array, Saved(...))", got)
    return out


def _operand_error(op: Any, arrays: list[Any], error: Exception) -> AmpkitError | None:
    """The error that says what is wrong with the operands, if they caused `error`; None if the op's own code did.

    Only what the operands themselves show counts, so that a bug in an op is not reported as a wrong argument.
    """
    dtypes = {a.dtype for a in arrays if hasattr(a, "dtype")}
    shapes = [tuple(a.shape) for a in arrays if hasattr(a, "shape")]
    numbers = [i for i, a in enumerate(arrays) if type(a) in (bool, int, float)]
    if isinstance(error, AmpkitError):
        return None
    if isinstance(error, ValueError) and "broadcast" in str(error) and not _broadcasts(shapes):
        found = " and ".join(map(str, shapes))
        return ShapeError(op.name, "shapes that broadcast", found, "each axis must be equal, or 1 in one of them")
    unfit = isinstance(error, OverflowError) or "cannot convert float" in str(error)  # to an integer
    if unfit and (numbers or shapes):
        found = ", ".join(str(arrays[i]) for i in numbers) or str(error)
        names = " or ".join(sorted(d.name for d in dtypes))
        cure = "cast the tensor first: x.long(), x.float()"
        return ArgumentError(op.name, f"a number that {names} holds", found, cure)
    for i in numbers:  # not every op can do with a number
        if f"'{type(arrays[i]).__name__}'" in str(error):
            needs, found = f"a Tensor for `{op.signature.name_of(i)}`", f"the number {arrays[i]}"
            return DTypeError(op.name, needs, found, "wrap it: ampkit.tensor(...)")
    if isinstance(error, TypeError) and dtypes == {bool_} and "bool" in str(error).lower():
        return DTypeError(op.name, "numbers", "bool", "cast it: x.int(), or use logical operations: ~, ^")
    return None


def _broadcasts(shapes: list[tuple[int, ...]]) -> bool:
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        return False
    return True
