"""Op: one operation, defined once. A call binds its arguments, asks the policy, checks, picks a body and records.

    @op(cast=Cast.FP32)
    def softplus(input: Array, beta=1.0):
        \"\"\"log(1 + exp(beta x)) / beta.\"\"\"
        return np.logaddexp(0, beta * input) / beta, Saved(input=input)

    @softplus.backward
    def softplus_backward(dy, saved, needs, beta):
        return dy / (1 + np.exp(-beta * saved.input))

The function is the reference: plain array code over NumPy or CuPy arrays. `Array` marks the tensors among its
parameters (`Array | None` may be missing, `Arrays` is a list of them), `Index` those that hold integers or booleans and
take no gradient. Every `Array` arrives in one dtype, the accumulator of those in play (float32 for 16-bit tensors),
and the result is rounded once, here: a reference never mentions a dtype. With `moves=True` values are only moved or
compared, and arrive as they are stored.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any, TypeAlias

import numpy as np

from .. import backends
from . import observe, policy, replay, second
from .dtypes import FLOATS, DType
from .errors import ArgumentError, DeviceError, DTypeError, ShapeError, StateError
from .plan import Plan, make_plan
from .policy import Cast, _stack
from .primitive import Body, Primitive
from .quiet import hush, speak
from .saved import Saved, filled, widen, widen_saved
from .signature import Signature
from .tape import Node, Sweep, _recording, attach
from .tensor import Parameter, Tensor

Array: TypeAlias = Any
Arrays: TypeAlias = list[Any]
Index: TypeAlias = Any

ops: dict[str, Op] = {}  # every op by name


class Op:
    """An operation on Tensors; `op` makes one. Calling it takes the reference's arguments, with Tensors for arrays."""

    def __init__(self, reference: Callable[..., Any], cast: Cast, moves: bool, integers: str, stem: str, view: bool):
        self.name = reference.__name__.rstrip("_")
        update_wrapper(self, reference)
        self.cast, self.moves, self.integers, self.view = cast, moves, integers, view
        self.forward = Primitive(self.name, stem, reference)
        self.backward_primitive: Primitive | None = None
        self._check: Callable[..., Any] | None = None
        self.keeps: dict[str, tuple[str, ...]] = {}
        self._plans: dict[Any, Plan] = {}
        self.signature = Signature(self.name, reference)
        self.bind, self.call, self._typed = self.signature.bind, self.signature.call, self.signature.typed

    # building one

    def check(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate the shape check: called like the reference, before it; raises, and looks at no values."""
        self._check = function
        return function

    def backward(self, function: Callable[..., Any] | None = None, /, **keeps: str) -> Any:
        """Decorate the backward: `(dy, saved, needs, **params)` -> one gradient per tensor input, or None.

        needs: per tensor input, the dtype its gradient is wanted in, or None. `@linear.backward(input="weight")` says
        that the saved `input` serves the gradient of `weight` alone, and is dropped where `weight` is frozen; several
        names are separated by spaces. An op with several outputs gets a tuple `dy`, zeros where none came.
        """
        if function is None:
            return lambda f: self.backward(f, **keeps)
        self.keeps = {item: (names,) if " " not in names else tuple(names.split()) for item, names in keeps.items()}
        self.backward_primitive = Primitive(f"{self.name}_backward", self.forward.stem, function)
        return self.backward_primitive

    def on(self, backend: str, when: Callable[..., Any] | None = None) -> Callable[[Callable[..., Any]], Body]:
        """Register a faster forward for a backend (see Primitive.on); it saves what the reference saves."""
        return self.forward.on(backend, when)

    # calling it

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Every recorded operation of every step passes here: what can be decided once is in the plan, and loops are
        # written out where a comprehension would cost another frame.
        inputs, params, arrays, edges, versions, key = self.bind(*args, **kwargs)
        if self._typed:
            key = (*key, self.signature.dtype_of(params))
            params = self.signature.without_dtype(params)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._new_plan(key, inputs)
        if plan.casts:
            self._cast(inputs, arrays, plan.casts)
        if self._check is not None:
            self.call(self._check, arrays, params)
        token = hush()
        try:
            forward, body = self.forward, self.forward.reference
            if plan.backend in forward.bodies:
                body = self.signature.pick(forward, plan.backend, arrays, params)
            if body is not forward.reference:
                out = self.signature.call_in(body.run, arrays, params, plan.out)
            elif plan.widens:
                out = self.call(body.run, [widen(a, plan.compute) for a in arrays], params)
            else:
                out = self.call(body.run, arrays, params)
            saved = _NOTHING
            if type(out) is not np.ndarray:
                out, saved = _parted(out)
            if plan.narrows and body is forward.reference:
                out = self._narrow(out, plan)
                self._restore(saved, arrays, out)
        except ValueError as error:
            raise self._misfit(arrays, error) from None
        finally:
            speak(token)
        if observe.active:
            observe.report(self.name, tuple(a for a in arrays if hasattr(a, "dtype")), out)
        if plan.tapes and _recording.get():
            if plan.drops:
                saved = saved.without(plan.drops)
            node = Node(self, edges, saved, params, plan, body, versions)
            made: Any = attach(out, node) if type(out) is not tuple else _attached(out, node)
        else:
            made = Tensor(out) if type(out) is not tuple else tuple([Tensor(o) for o in out])
        if self.view:
            for one in made if type(made) is tuple else (made,):
                one.version = inputs[0].version
        return made

    def _cast(self, inputs: Any, arrays: list[Any], casts: tuple[DType | None, ...]) -> None:
        region = _stack.get()
        keep = region is None or region.cache
        for i, dtype in enumerate(casts):
            if dtype is not None and arrays[i].dtype != dtype:
                arrays[i] = inputs[i].copy_in(dtype, keep)

    def _narrow(self, out: Any, plan: Plan) -> Any:
        if type(out) is tuple:  # outputs after the first are statistics: they stay as precise as they were computed
            return (self._narrow(out[0], plan), *out[1:])
        return out if out.dtype == plan.out or out.dtype not in FLOATS else backends.of(out).cast(out, plan.out)

    def _restore(self, saved: Saved, arrays: list[Any], out: Any) -> None:
        # Keep inputs and the output in the dtype they are stored in, not the wide copies the reference worked on.
        items = saved.__dict__
        if "out" in items:
            items["out"] = out[0] if type(out) is tuple else out
        if self.signature.variadic in items:
            items[self.signature.variadic] = tuple(arrays)
        for i, name in enumerate(self.signature.names):
            if name in items:
                items[name] = arrays[i]

    def needs(self, node: Node) -> tuple[DType | None, ...]:
        """Per input, the dtype its gradient is wanted in, or None: a Parameter's accumulator, else what the op read."""
        return tuple(
            [
                None if edge is None else edge[3] if isinstance(edge[0], Parameter) else stored
                for edge, stored in zip(node.edges, node.plan.stored, strict=True)
            ]
        )

    # its backward

    def vjp(self, node: Node, dys: list[Any], sweep: Sweep) -> tuple[Any, ...]:
        """The gradients of `node`'s inputs, given those of its outputs."""
        self._check_versions(node)
        assert self.backward_primitive is not None
        dy = filled(node, dys)
        one = dy[0] if type(dy) is tuple else dy
        params = dict(zip(self.signature.param_names, node.params, strict=True))
        saved, primitive, needs = node.saved, self.backward_primitive, self.needs(node)
        if node.body.own_backward is not None:
            gradients = node.body.own_backward(dy, saved, needs, **params)
        else:
            body = primitive.pick(backends.of(one).name, dy, saved, needs, **params)
            if body is primitive.reference and node.plan.compute is not None:
                dy, saved = widen(dy, node.plan.compute), widen_saved(saved, node.plan.compute)
            gradients = body.run(dy, saved, needs, **params)
        gradients = gradients if type(gradients) is tuple else (gradients,)
        if observe.active:
            arrays = (a for a in vars(node.saved).values() if hasattr(a, "dtype"))
            observe.report(primitive.name, (one, *arrays), gradients)
        return gradients

    def _check_versions(self, node: Node) -> None:
        for i, version in enumerate(node.versions):
            if version[0] > node.serial and self.signature.name_of(i) in node.saved.__dict__:
                what = f"`{self.signature.name_of(i)}` of {self.name} changed in place since"
                cure = "call backward before optimizer.step() and other changes in place"
                raise StateError("backward", "the values that the forward read", what, cure)

    def replay(self, node: Node, dys: list[Any], sweep: Sweep) -> tuple[Any, ...]:
        """`vjp` over taped arrays, recorded in its turn: see core/second.py."""
        self._check_versions(node)
        return second.replay(self, node, dys)

    # plans and errors

    def _new_plan(self, full: tuple[Any, ...], inputs: tuple[Any, ...]) -> Plan:
        held = [i.array for i in inputs if isinstance(i, Tensor)]
        names = {backends.of(a).name for a in held}
        if len(names) != 1:
            raise self._devices(inputs) if names else self._no_tensor(inputs)
        backend = names.pop()
        self.forward.load(backend)
        key = [(i.array.dtype if i.ndim else (i.array.dtype,)) if isinstance(i, Tensor) else _kind(i) for i in inputs]
        region = _stack.get()
        rule = None if region is None else region.policies[backend]
        wanted = [isinstance(i, Tensor) and i.edge is not None for i in inputs]
        plan = self._plans[full] = make_plan(self, rule, full[-1] if self._typed else None, key, wanted, backend)
        return plan

    def _misfit(self, arrays: list[Any], error: ValueError) -> ValueError:
        # What NumPy says about operands that do not broadcast, said as the checks of ops say it.
        if "broadcast" not in str(error) or isinstance(error, ShapeError):
            return error
        found = " and ".join(str(tuple(a.shape)) for a in arrays if hasattr(a, "shape"))
        return ShapeError(self.name, "shapes that broadcast", found, "each axis must be equal, or 1 in one of them")

    def _no_tensor(self, inputs: tuple[Any, ...]) -> DTypeError:
        got = ", ".join(type(i).__name__ for i in inputs) or "nothing"
        return DTypeError(self.name, "a Tensor", got, "wrap arrays with ampkit.tensor(...)")

    def _devices(self, inputs: tuple[Any, ...]) -> DeviceError:
        found = ", ".join(sorted({i.device for i in inputs if isinstance(i, Tensor)}))
        return DeviceError(self.name, "tensors on one device", found, "move them with .to(device)")

    def __repr__(self) -> str:
        return f"<op {self.name} ({self.cast.value})>"


def op(
    *,
    cast: Cast,
    moves: bool = False,
    integers: str = "keep",
    numpy: Any = None,
    view: bool = False,
    cure: str | None = None,
) -> Callable[[Callable[..., Any]], Op]:
    """Define an op; see the head of this file.

    cast: its category under a policy. moves: values are only moved or compared, and arrive as stored. integers: "keep"
    leaves integer tensors integers, "float" turns them into float32. numpy: the NumPy function, or the method of an
    array by name, that the op stands for when second derivatives run plain array code on the tape. view: the output
    shares the input's memory. cure: for a BANNED op, what to use instead.
    Raises ArgumentError for a name that is taken.
    """

    def define(reference: Callable[..., Any]) -> Op:
        stem = reference.__module__.rpartition(".")[2]
        made = Op(reference, cast, moves, integers, stem, view)
        if made.name in ops:
            raise ArgumentError(f"@op {made.name}", "a name that no op has yet", "one that is taken")
        ops[made.name] = made
        policy.categories[made.name] = cast
        if cure is not None:
            policy.cures[made.name] = cure
        if numpy is not None:
            replay.stands_for[numpy] = made
        return made

    return define


_NOTHING = Saved()


def _kind(item: Any) -> Any:
    return None if item is None else type(item)


def _attached(outs: tuple[Any, ...], node: Node) -> tuple[Tensor, ...]:
    node.outputs = tuple([(o.shape, o.dtype) for o in outs])
    return tuple([attach(o, node, i) for i, o in enumerate(outs)])


def _parted(out: Any) -> tuple[Any, Saved]:
    # What a body returned: its output or outputs, as arrays, and what it saved.
    if type(out) is tuple and len(out) == 2 and type(out[1]) is Saved and type(out[0]) is np.ndarray:
        return out  # as most do
    saved = _NOTHING
    if type(out) is tuple and type(out[-1]) is Saved:
        saved = out[-1]
        out = out[0] if len(out) == 2 else out[:-1]
    if type(out) is not np.ndarray:
        out = _arrays(out)
        if "out" in saved.__dict__:  # NumPy turned a 0-d array into a scalar
            saved.out = out[0] if type(out) is tuple else out
    return out, saved


def _arrays(out: Any) -> Any:
    if type(out) is tuple:
        return tuple([_arrays(o) for o in out])
    return (
        out if isinstance(out, np.ndarray) or not isinstance(out, (np.generic, bool, int, float)) else np.asarray(out)
    )
