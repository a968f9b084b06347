"""Where infinity and NaN come from: an observer that follows them from the op that made them to what they reach.

An op that turns finite inputs into infinity is no fault by itself: masks are -inf, and a logarithm of 0 may be left out
by a `where`. So each non-finite array is remembered with its origin, the op that made it, and only what reaches the
loss, the gradient of a leaf or a parameter counts. In a backward pass of a scaled loss, an origin that would be finite
at a loss scale of 1 is the work of the scale search, which backs off, and not a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import ref

from ..base import observe
from ..base.observe import BACKWARD, FORWARD, RETURN, Event
from ..core.fp_errors import ignore_fp_errors
from ..core.module_path import ModuleCall, current
from ..core.policy import Policy, region
from ..core.tensor import Tensor
from .finite import all_finite, arrays_in, has_nan, is_finite, is_minus_infinity
from .origin import (
    COMPUTED,
    ByIdentity,
    Origin,
    call_of,
    caller,
    gradient_of,
    is_by_scale,
    name_in_model,
    outside_origin,
)


class NonFiniteTracker:
    """An observer (see base/observe.py) that knows the origin of every non-finite array.

    faults: the origins that reached the loss, a leaf's gradient or a parameter, and what they reached, in that order.
    overflows: how many leaf gradients were not finite because of the loss scale alone. last: the origin of what the
    last op of a forward wrote, None where that is finite and once a backward has begun.
    """

    def __init__(self) -> None:
        self.faults: list[tuple[Origin, str]] = []
        self.overflows = 0
        self.last: Origin | None = None
        self._model: Callable[[], Any] = lambda: None  # refers to the model that was called last, and does not keep it
        self._known, self._numbers = ByIdentity(), ByIdentity()
        self._policy: Policy | None = None
        self._tag: Any = None  # in a backward under create_graph: the loss scale of its gradients
        self._began = False  # whether a backward has begun
        self._busy = False  # while it runs ops itself

    def __call__(self, event: Event) -> None:
        """Look at an event."""
        if self._busy:
            return
        self._busy = True
        try:
            with ignore_fp_errors():
                call, entered = current(), region()
                if call is not None and call.model is not None:
                    self._model = ref(call.model)
                if entered is not None:  # a backward runs outside of it
                    self._policy = next(iter(entered.active), None)
                _HANDLERS[event.phase](self, event)
        finally:
            self._busy = False

    @property
    def model(self) -> Any:
        """The model that was called last, None if it is gone."""
        return self._model()

    def origin_of(self, array: Any) -> Origin | None:
        """The origin of a non-finite array, None if it is not known."""
        origin = self._known.get(array)
        return origin if origin is None or origin.output is not None else replace(origin, output=array)

    # what an event made

    def _forward(self, event: Event) -> None:
        made = self._kernel(event)
        self.last = None if self._began else made
        if getattr(event.output, "size", 0) == 1:
            self._numbers[event.output] = made or COMPUTED  # one that an op computed is no constant

    def _kernel(self, event: Event) -> Origin | None:
        origin = None
        for output in arrays_in(event.output):
            if not is_finite(output):
                origin = self._known[output] = self._origin(event, output)
        return origin

    def _origin(self, event: Event, output: Any) -> Origin:
        if event.op is None and event.phase == FORWARD and (inner := self._known.known(output)) is not None:
            return inner  # a Function, whose ops were seen
        causes = [self._cause(event, array) for array in arrays_in(event.inputs) if not is_finite(array)]
        if not causes:
            return self._new(event, output)
        first = min(causes, key=lambda cause: (cause.by_scale, cause.is_mask))
        if first.is_mask and not is_minus_infinity(output):  # the mask was meant, but not what this made of it
            return self._new(event, output, parent=first)
        return first

    def _new(self, event: Event, output: Any, parent: Origin | None = None) -> Origin:
        if self._tag is not None and event.name == "to" and event.phase == FORWARD:  # how traced gradients are cast
            event = event._replace(name="cast", phase=BACKWARD, tag=self._tag)
        computed = [item for item in event.operands if isinstance(item, Tensor) and self._numbers.holds(item._array)]
        made = Origin(
            event,
            output,
            call_of(event),
            parent,
            by_scale=parent is None and is_by_scale(event),
            saved=getattr(event.node, "saved", None),
            model=self.model,
            where=caller() if event.phase == FORWARD else "",
            policy=self._policy,
            computed=tuple(map(id, computed)),
        )
        return made.without_arrays() if made.is_mask else made

    def _cause(self, event: Event, array: Any) -> Origin:
        known = self._known.get(array)
        if known is None:
            known = self._known[array] = self._first_seen(event, array)
        elif event.op is not None and known.event.name == "cast" and known.event.phase == FORWARD and not known.caster:
            known.caster, known.call = event.name, call_of(event)
        return known

    def _first_seen(self, event: Event, array: Any) -> Origin:
        for operand, read in _operands(event):
            if read is array and operand._array is not array and is_finite(operand.array):  # a weight's 16-bit copy
                cast = Event("cast", (operand.array,), array, FORWARD, operands=(operand,))
                return Origin(cast, array, call_of(event), caster=event.name, model=self.model, policy=self._policy)
        return outside_origin(event, array, self.model)

    def _replayed(self, event: Event) -> None:
        # The ops of a backward under create_graph were seen as such; what they made is the work of that backward.
        self._tag = event.tag
        saved = getattr(event.node.saved, "__dict__", {})
        if all_finite(event.inputs) and all_finite(tuple(saved.values())):
            for output in arrays_in(event.output):
                if not is_finite(output):
                    self._known[output] = self._new(event, output)

    def _hook(self, event: Event) -> None:
        if all_finite(event.inputs) and not is_finite(event.output):
            self._known[event.output] = origin = self._new(event, event.output)
            if event.node is None:
                origin.call = self._call_with(name_in_model(event.operands[0], self.model)[1])
        elif not is_finite(event.output):
            self._kernel(event)

    # what it reaches

    def _start(self, event: Event) -> None:
        self.last = self._tag = None
        self._began = True
        (values,) = event.inputs
        if values.size == 1 or has_nan(values):  # masks among several outputs are sound
            self._reached(event, values, "the loss")

    def _arrived(self, event: Event) -> None:
        self._tag = None if event.phase == RETURN else self._tag
        gradient = event.inputs[0]
        if not is_finite(gradient):
            self._reached(event, gradient, gradient_of(event.output, self.model))

    def _step(self, event: Event) -> None:
        self._known.clear()  # what the iteration has computed is no longer needed
        if is_finite(event.output) or not all_finite(event.inputs):
            return
        named = () if self.model is None else self.model.named_parameters()
        name = next((name for name, held in named if not is_finite(held.array)), "")
        origin = Origin(event, event.output, self._call_with(name), model=self.model)
        self.faults.append((origin, f"parameter {name}" if name else "a parameter"))

    def _reached(self, event: Event, array: Any, what: str) -> None:
        if is_finite(array):
            return
        origin = self.origin_of(array) or Origin(event, array, call_of(event), outside="code outside of ops")
        if origin.by_scale:
            self.overflows += 1
        else:
            self.faults.append((origin, what))

    def _call_with(self, name: str) -> ModuleCall | None:
        # Of the module that has the parameter of this name.
        return ModuleCall(name.rpartition(".")[0], None, {}) if name else None


# By phase; not in the tracker itself, whose own methods would make it a reference cycle.
_HANDLERS: dict[str, Callable[[NonFiniteTracker, Event], Any]] = {
    observe.FORWARD: NonFiniteTracker._forward, observe.BACKWARD: NonFiniteTracker._kernel,
    observe.REPLAY: NonFiniteTracker._replayed, observe.HOOK: NonFiniteTracker._hook,
    observe.START: NonFiniteTracker._start, observe.ACCUMULATE: NonFiniteTracker._arrived,
    observe.RETURN: NonFiniteTracker._arrived, observe.STEP: NonFiniteTracker._step,
}  # fmt: skip


def _operands(event: Event) -> list[tuple[Tensor, Any]]:
    # The tensors that a forward was called with, and the arrays that were read for them.
    tensors = [item for item in event.operands if isinstance(item, Tensor)]
    return list(zip(tensors, event.inputs, strict=True)) if len(tensors) == len(event.inputs) else []
