"""Op: one operation, defined once. A call binds its arguments, plans casts by the policy, checks, dispatches, records.

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

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial, update_wrapper
from typing import Any, TypeAlias

from .. import backends
from ..backends.launch_queue import queue
from ..base import observe
from ..base.array_kinds import Absent, on_device
from ..base.dtypes import DType, default_observers
from ..base.errors import ArgumentError, DeviceError, DTypeError, StateError
from ..base.version_counter import is_unchanged
from . import dispatch, op_call, policy
from .arguments import type_name
from .autograd import double_backward, traced_array
from .autograd.backward_pass import BackwardPass
from .autograd.node import Node
from .autograd.saved import Saved as Saved
from .autograd.saved import with_zeros
from .capture import anew
from .cast_plan import CastPlan, asking_for, make_plan
from .dispatch import Kernel, Primitive, always
from .dispatch.batching import call as batched
from .dispatch.batching import rules, second, spread
from .dispatch.batching.array import live_levels
from .policy import Cast, region
from .policy.recipe import QuantizationRecipe
from .signature import Signature, number_and_type
from .tensor import Tensor

Array: TypeAlias = Any
Arrays: TypeAlias = list[Any]
Bound: TypeAlias = float  # a parameter that elements are compared with: rounded to the 16-bit dtype of the first tensor
Index: TypeAlias = Any

ops: dict[str, Op] = {}  # every op by name


class Op:
    """An operation on Tensors; `op` makes one. Calling it takes the reference's arguments, with Tensors for arrays."""

    def __init__(
        self,
        reference: Callable[..., Any],
        cast: Cast,
        moves: bool,
        integers: str,
        view: bool,
        mixes: bool = True,
        factors: str = "",
        opaque: bool = False,
        casts: bool = False,
    ):
        self.name = reference.__name__.rstrip("_")
        update_wrapper(self, reference)
        self.cast, self.moves, self.integers, self.view, self.mixes = cast, moves, integers, view, mixes
        self.factors, self.opaque, self.casts = factors.split(), opaque or view, casts
        self.builtin = reference.__module__.startswith("ampkit.")
        self.forward = Primitive(self.name, reference.__module__.removeprefix("ampkit.ops."), reference)
        self.forward.reference.views = always if view else None
        self.backward_primitive: Primitive | None = None
        self.checks: Callable[..., Any] | None = None
        self.saved_for: dict[str, tuple[str, ...]] = {}
        self.stand_ins: dict[str, Callable[[Any], Array]] = {}
        # Of a product that recipes quantize: recipe -> (the call's inputs -> the Kernel that runs them).
        self.quantized: Callable[[QuantizationRecipe], Callable[[Any], Kernel]] | None = None
        # How it runs once over the samples of a `vmap` (see core/dispatch/batching/rules.py); None: once per sample.
        self.pointwise = self.builtin and self.forward.module.startswith("pointwise.")
        self.batching: Callable[[Any], Any] | None = rules.elementwise if self.pointwise else None
        self.is_product = cast is Cast.LOW  # a product, a convolution or what is made of them
        self.anew: anew.Anew | None = None  # how its last output is computed again from what it saved
        # Its forward mode, where that takes fewer passes than its backward (see core/dispatch/forward_rules.py).
        self.tangent: Callable[..., Any] | None = None
        self.plans: dict[Any, CastPlan] = {}
        self.signature = Signature(self.name, reference)
        self.__signature__ = inspect.Signature(self.signature.accepted)

    @cached_property
    def call(self) -> Callable[..., Any]:
        """call(f, inputs, params): call f with the reference's signature; see Signature.call."""
        return self.signature.call

    @cached_property
    def bilinear(self) -> tuple[int, int, list[int], list[int]] | None:
        """The places of two inputs in which the op is linear, of those that it adds, and of indices; else None.

        The gradient of each of the two reads the other one alone.
        """
        users, signature = self.saved_for, self.signature
        if len(users) != 2 or signature.variadic or [(name,) for name in users] != list(reversed(users.values())):
            return None
        a, b = (signature.names.index(name) for name in users)
        others, is_array = [i for i in range(len(signature.names)) if i not in (a, b)], signature.kinds(0)
        added = [i for i in others if is_array[i]]
        indices = [i for i in others if not is_array[i]]
        return (a, b, added, indices) if all(map(signature.may_miss, added)) else None

    # building one

    def check(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate the shape check: called like the reference, before it; raises, and looks at no values."""
        self.checks = function
        return function

    def backward(self, function: Callable[..., Any] | None = None, /, **saved_for: str) -> Any:
        """Decorate the backward: `(dy, saved, needs, **params)` -> one gradient per tensor input, or None.

        needs: per tensor input, the dtype its gradient is wanted in, or None. `@linear.backward(input="weight")` says
        that the saved `input` serves the gradient of `weight` alone, and is dropped where `weight` is frozen; several
        names are separated by spaces. An op with several outputs gets a tuple `dy`, zeros where none came.
        """
        if function is None:
            return lambda f: self.backward(f, **saved_for)
        self.saved_for = {
            item: (names,) if " " not in names else tuple(names.split()) for item, names in saved_for.items()
        }
        self.backward_primitive = Primitive(f"{self.name}_backward", self.forward.module, function)
        return self.backward_primitive

    def stand_in(self, name: str) -> Callable[[Callable[[Any], Array]], Callable[[Any], Array]]:
        """Decorate `(saved) -> array`, which takes the place of the input `name`, not saved, in second derivatives.

        They run the reference again: the array leads to its derivatives, if not to its value. Without one, zeros do.
        """

        def decorate(function: Callable[[Any], Array]) -> Callable[[Any], Array]:
            self.stand_ins[name] = function
            return function

        return decorate

    def on(
        self,
        backend: str,
        when: Callable[..., Any] | None = None,
        wants_cache: bool = False,
        min_elements: int = 0,
        dtypes: Callable[..., Any] | None = None,
        launches: bool = False,
    ) -> Callable[[Callable[..., Any]], Kernel]:
        """Register a faster forward for a backend (see Primitive.on); it saves what the reference saves."""
        return self.forward.on(backend, when, wants_cache, min_elements, dtypes, launches)

    def on_backward(
        self, backend: str, when: Callable[..., Any] | None = None, wants_cache: bool = False, min_elements: int = 0
    ) -> Callable[[Callable[..., Any]], Kernel]:
        """Register a faster backward for a backend: it reads what the reference saved. The op must have a backward."""
        assert self.backward_primitive is not None, self.name
        return self.backward_primitive.on(backend, when, wants_cache, min_elements)

    __call__: Callable[..., Any]  # written for each op: Signature.entry binds, forward.runner runs and records

    def needs(self, node: Node) -> tuple[DType | None, ...]:
        """Per input, the dtype its gradient is wanted in, or None: a Parameter's accumulator, else what the op read."""
        stored = node.plan.stored
        return tuple(
            [
                None if edge is None else edge[3] if edge[0]._unrounded else stored[i]
                for i, edge in enumerate(node.edges)
            ]
        )

    # its backward

    def vjp(
        self, node: Node, dys: list[Any], needs: tuple[DType | None, ...], backward_pass: BackwardPass
    ) -> tuple[Any, ...]:
        """The gradients of `node`'s inputs in the dtypes `needs`, given those of its outputs."""
        self.check_versions(node)
        assert self.backward_primitive is not None
        saved, primitive, dy = node.saved, self.backward_primitive, with_zeros(node, dys)
        params = dict(zip(self.signature.param_names, node.params, strict=True)) if node.params else {}
        kernel = (
            (live_levels and spread.spread(self, node, dy))
            or node.kernel.own_backward
            or primitive.choose(node.plan.backend, dispatch.call, (dy, saved, needs), params)
        )
        if observe.profilers:
            observe.notify_start(primitive.name, kernel.name, dy[0] if type(dy) is tuple else dy)
        grad_buffers = backward_pass.grad_buffers(node) if kernel.wants_cache else ()
        if queue.active and (kernel.launches or queue.waiting):
            reads = (dy, *saved.__dict__.values(), *params.values()) if type(saved) is Saved else None
            queue.before(kernel, node.versions, reads, [one for one in grad_buffers if one is not None])
        gradients, kernel = dispatch.backward(
            self, kernel, dy, saved, needs, params, node.plan.compute, node.versions, grad_buffers
        )
        if queue.opened:
            queue.after()
        found = self.per_input(gradients, node)
        if observe.observers:
            operands = dy if type(dy) is tuple else (dy,)
            read = tuple([a for a in (*operands, *vars(node.saved).values()) if hasattr(a, "dtype")])
            what = {"op": self, "operands": operands, "params": node.params, "plan": node.plan, "kernel": kernel}
            what |= {"node": node, "tag": node.tag or backward_pass.tag}
            observe.notify_end(primitive.name, read, found, observe.BACKWARD, **what)
        return found

    def per_input(self, gradients: Any, node: Node) -> tuple[Any, ...]:
        """What a backward returned, as one gradient per input. Raises ArgumentError for too few or too many."""
        if type(gradients) is tuple and len(gradients) == len(node.edges):
            return gradients
        found: tuple[Any, ...] = tuple(gradients) if isinstance(gradients, (tuple, list)) else (gradients,)
        if len(found) > len(node.edges) or any(node.edges[len(found) :]):  # indices at the end may be left out
            wanted = f"{len(node.edges)} gradients, one per tensor input, None where there is none"
            raise ArgumentError(f"{self.name}_backward", wanted, str(len(found)))
        return found

    def check_versions(self, node: Node) -> None:
        serial = node.serial
        for position, version in enumerate(node.versions):
            if version[0] > serial:
                self._need_unchanged(node, self.signature.name_of(position), version)
        if node.result[0] > serial:
            self._need_unchanged(node, "out", node.result)
        if node.others and any(version[0] > serial for version in node.others):
            raise self.changed(f"an output of {self.name}")

    def _need_unchanged(self, node: Node, name: str, version: Sequence[int]) -> None:
        # For an input, or the output, whose memory has changed since the forward. Hooks that packed it have its former
        # values, and the change may have left what was saved as it was.
        items = node.saved.__dict__
        if name in items and name not in (node.packed or ()):
            held = items[name] if type(items[name]) is tuple else (items[name],)
            if not all(is_unchanged(one, version, node.serial) for one in held):
                raise self.changed(f"`{name}` of {self.name}")

    def changed(self, what: str) -> StateError:
        """The error of a derivative that would read `what`, which has changed in place since."""
        got, cure = f"{what} changed in place since", "call backward before optimizer.step() and other changes in place"
        return StateError("backward", "the values that the forward read", got, cure)

    def replay(
        self, node: Node, dys: list[Any], needs: tuple[DType | None, ...], backward_pass: BackwardPass
    ) -> tuple[Any, ...]:
        """`vjp` over traced arrays, recorded in its turn: see core/autograd/double_backward.py."""
        self.check_versions(node)
        if node.kernel.level is None:
            return double_backward.replay(self, node, dys, needs)
        return second.replay(self, node, dys, needs)

    # its plans

    def new_plan(self, full: tuple[Any, ...], inputs: tuple[Any, ...]) -> CastPlan:
        """The plan for a combination of dtypes that was not met before, kept from now on."""
        held = [i._array for i in inputs if isinstance(i, Tensor)]
        devices = [backends.backend_of(on_device(a)) for a in held]
        names = {device.name for device in devices}
        if len(names) != 1:
            raise self._devices(inputs) if names else self._no_tensor(inputs)
        backend = names.pop()
        key = [
            (i._array.dtype if i.ndim else (i._array.dtype,)) if isinstance(i, Tensor) else number_and_type(i)[1]
            for i in inputs
        ]
        entry = region()
        active = None if entry is None else entry.policies[backend]
        wanted = [isinstance(i, Tensor) and i._tape_edge is not None for i in inputs]
        explicit = full[-1] if self.signature.typed else None
        plan = make_plan(self, active, explicit, key, wanted, backend)
        absent = [isinstance(i, Tensor) and type(i._array) is Absent for i in inputs]
        if any(absent):
            plan = asking_for(plan, absent)
        if live_levels and batched.innermost(held) is not None:
            plan = batched.plan_of(self, plan)
        self.plans[full] = plan
        return plan

    def _no_tensor(self, inputs: tuple[Any, ...]) -> DTypeError:
        got = ", ".join(type_name(type(i)) for i in inputs) or "nothing"
        return DTypeError(self.name, "a Tensor", got, "wrap arrays with ampkit.tensor(...)")

    def _devices(self, inputs: tuple[Any, ...]) -> DeviceError:
        found = ", ".join(sorted({i.device for i in inputs if isinstance(i, Tensor)}))
        return DeviceError(self.name, "tensors on one device", found, "move them with .to(device)")

    def __reduce__(self) -> str:
        return str(vars(self)["__qualname__"])  # copied and pickled by name, as functions are

    def __repr__(self) -> str:
        return f"<op {self.name} ({self.cast.value})>"


def _first_call(self: Op, *args: Any, **kwargs: Any) -> Any:
    # Writes the op's own `__call__`, which takes the place of this one; within `rerouted` the next call does so.
    kind: Any = type(self)
    entry = self.signature.entry(op_call.runner(self))
    if kind.__call__ is _first_call:
        kind.__call__ = entry
    return entry(self, *args, **kwargs)


@contextmanager
def rerouted(op: Op, through: Callable[..., Any]) -> Iterator[None]:
    """Within the block, a call of `op` is `through(call, *args, **kwargs)`, where `call` is what it is otherwise.

    For tools that try what another call would give. A call costs nothing for it, since the type's own slot changes:
    every op has a type of its own.
    """
    kind: Any = type(op)
    entry = kind.__call__
    kind.__call__ = lambda self, *args, **kwargs: through(partial(entry, self), *args, **kwargs)
    try:
        yield
    finally:
        kind.__call__ = entry


def op(
    *,
    cast: Cast,
    moves: bool = False,
    integers: str = "keep",
    numpy: Any = None,
    view: bool = False,
    cure: str | None = None,
    mixes: bool = True,
    factors: str = "",
    opaque: bool = False,
    casts: bool = False,
) -> Callable[[Callable[..., Any]], Op]:
    """Define an op; see the head of this file.

    cast: its category under a policy. moves: values are only moved or compared, and arrive as stored. integers: "keep"
    leaves integer tensors integers, "float" turns them into the default dtype, "refuse" raises where no operand is a
    float. numpy: the NumPy function, or the method of an array by name, that the op stands for when second derivatives
    run plain array code on the tape. view: the output shares the input's memory. cure: for a BANNED op, what to use
    instead. mixes: False raises for tensors with axes of several dtypes outside of a region. factors: the parameters,
    separated by spaces, that beside 16-bit tensors are read in float32 where they are a number or a 0-d tensor; in all
    others such a number is rounded to the tensors' dtype first. opaque: elements are moved without being read, those of
    formats below 16 bits too; of a view always. casts: it casts to and from these formats.
    Raises ArgumentError for a name that is taken.
    """

    def define(reference: Callable[..., Any]) -> Op:
        kind: Any = type("Op", (Op,), {"__module__": __name__})
        made: Op = kind(reference, cast, moves, integers, view, mixes, factors, opaque, casts)
        kind.__call__ = _first_call
        if made.name in ops:
            raise ArgumentError(f"@op {made.name}", "a name that no op has yet", "one that is taken")
        ops[made.name] = made
        policy.categories[made.name] = cast
        if cure is not None:
            policy.cures[made.name] = cure
        if numpy is not None:
            traced_array.stands_for[numpy] = made
        return made

    return define


@default_observers.append
def _forget_plans() -> None:
    for each in ops.values():
        each.plans.clear()
