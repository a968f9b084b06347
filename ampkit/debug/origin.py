"""Origin: the call that made infinity or NaN, and what is needed to explain it once it has reached a loss."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import ref

import numpy as np

from ..base.html import cell_of
from ..base.observe import FORWARD, Event
from ..core import dispatch
from ..core.autograd.grad_mode import no_grad
from ..core.autograd.traced_array import TracedArray, plain
from ..core.casts import cast
from ..core.module_path import ModuleCall, current, path_in_words
from ..core.policy import Policy
from ..core.tensor import Tensor
from ..nn.module import Module
from .finite import all_finite, is_finite, is_minus_infinity

LINEAR = ("cast", "sum_over", "sum_of_two")  # what happens to a gradient between two nodes
_MOST = 4000  # entries: an origin holds what its op read
_INSTALLED = (str(Path(__file__).parents[1]), sys.prefix, sys.base_prefix, "<")  # this package, others, `python -m`


@dataclass(eq=False)
class Origin:
    """A call of an op that made infinity or NaN.

    event: the call. output: what it made, None for a mask. call: of the module it ran in, or None. parent: for what was
    made of a mask's infinity, the origin of that. outside: what it is if no op made it, such as "parameter
    head.weight". by_scale: whether it is finite at a loss scale of 1. saved: what a backward's node had saved, which it
    frees. caster: of a cast of an operand, the op that it was for. model: the model that ran. where: the file and line
    of the call. policy: that of the last region of autocast, None if there was none. computed: by `id`, the operands of
    one value that an op has computed, and that are no constants of the program. overflows: whether the dtype of the
    output is too small for it, once that was found out.
    """

    event: Event
    output: Any
    call: ModuleCall | None
    parent: Origin | None = None
    outside: str = ""
    by_scale: bool = False
    saved: Any = None
    caster: str = ""
    model: Any = None
    where: str = ""
    policy: Policy | None = None
    computed: tuple[int, ...] = ()
    overflows: bool = False

    @property
    def is_mask(self) -> bool:
        """Whether the infinity was meant: by a call that writes an infinite number, or a tensor of -inf.

        Arithmetic with such a number is not: 0 times infinity is NaN.
        """
        meant = self.parent is None and self.constant is not None and not is_arithmetic(self.event.op)
        return (self.outside != "" and is_minus_infinity(self.output)) or meant

    @property
    def constant(self) -> float | None:
        """The first number that the call was given and is not finite; None if all are."""
        numbers = (value for value in (*self.event.operands, *self.event.params) if type(value) is float)
        return next((number for number in numbers if not math.isfinite(number)), None)

    def without_arrays(self) -> Origin:
        """This origin, of a mask, without its arrays: a step makes many, and only their name is ever asked for."""
        numbers = tuple([value for value in self.event.operands if type(value) is float])
        event = Event(self.event.name, (), None, self.event.phase, operands=numbers, params=self.event.params)
        return replace(self, event=event, output=None, saved=None)

    @property
    def path(self) -> str:
        """The path of the module it ran in."""
        return path_in_words(self.call)


COMPUTED = Origin(Event("", (), None, FORWARD), None, None)  # of a value that is known to be an op's, and no more


class ByIdentity:
    """Origins by the identity of the arrays that they explain, which it does not keep alive; the latest `_MOST`."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Any, Origin]] = {}

    def __setitem__(self, array: Any, origin: Origin) -> None:
        if len(self._held) >= _MOST:
            alive = [(key, held) for key, held in self._held.items() if held[0]() is not None]
            self._held = dict(alive[-_MOST // 2 :])
        for item in (array, memory_of(array)):
            # A number of NumPy, as a backward returns for a 0-d tensor, has no weak references; it takes no memory.
            self._held[id(item)] = ((lambda item=item: item) if isinstance(item, np.generic) else ref(item)), origin

    def clear(self) -> None:
        """Forget all."""
        self._held.clear()

    def get(self, array: Any) -> Origin | None:
        """The origin of an array, or of the array whose memory it shows; None if it is not known."""
        for item in (array, memory_of(array)):
            reference, origin = self._held.get(id(item), (None, None))
            if reference is not None and reference() is item:
                return origin
        return None

    def holds(self, array: Any) -> bool:
        """Whether the array, or the one whose memory it shows, is known."""
        return any(self._held.get(id(item), (lambda: None,))[0]() is item for item in (array, memory_of(array)))

    def known(self, array: Any) -> Origin | None:
        """The origin of this very array, not of its memory; None if it is not known."""
        reference, origin = self._held.get(id(array), (None, None))
        return origin if reference is not None and reference() is array else None


def memory_of(array: Any) -> Any:
    """The array that owns the memory which `array` shows."""
    while (base := getattr(array, "base", None)) is not None and hasattr(base, "dtype"):
        array = base
    return array


def call_of(event: Event) -> ModuleCall | None:
    """The call of the module in which a kernel ran; casts and sums of gradients belong to the node they are for."""
    return current() or getattr(event.node, "module_call", None)


def caller() -> str:
    """The file and line of the innermost call in code that is not installed, or its cell; "" if there is none."""
    frame: Any = sys._getframe(1)
    while frame is not None and (file := frame.f_code.co_filename).startswith(_INSTALLED) and not cell_of(file):
        frame = frame.f_back
    if frame is None:
        return ""
    if cell := cell_of(file):
        return f"{cell}, line {frame.f_lineno}"
    path = Path(file)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{frame.f_lineno}"


def outside_origin(event: Event, array: Any, model: Any) -> Origin:
    """The origin of an array that is not finite, and that no op has computed: a parameter, an input, or unknown."""
    unknown = "what code outside of ops computed"
    made = Origin(event, array, call_of(event), outside=unknown, model=model, where=caller())
    for operand in event.operands:
        if isinstance(operand, Tensor) and memory_of(operand._array) is memory_of(array):
            kind, name = name_in_model(operand, model)
            if name:
                made.outside = f"{kind} {name}"
                return made
            module, argument = _argument_of(array)
            if module is not None and made.call is not None:
                made.outside = f"argument {argument}"
                made.call = made.call._replace(path=made.call.paths.get(id(module), made.call.path))
            elif event.op is not None:
                place = next(i for i, item in enumerate(event.operands) if item is operand)
                made.outside = f"`{event.op.signature.name_of(place)}` of {event.name}"
    return made


def name_in_model(tensor: Tensor, model: Any) -> tuple[str, str]:
    """("parameter" or "buffer", its name) of a tensor of the model; both are empty if it is none of its."""
    if model is not None:
        for kind, found in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
            for name, held in found:
                if held is tensor or held._array is tensor._array:
                    return kind, name
    return "", ""


def gradient_of(leaf: Tensor, model: Any) -> str:
    """What the gradient of a leaf is called."""
    name = name_in_model(leaf, model)[1] or getattr(leaf, "_dotted_name", "") or f"a leaf {list(leaf.shape)}"
    return f"the gradient of {name}"


def _argument_of(array: Any) -> tuple[Module | None, str]:
    # The outermost running module with `array` among its arguments, and the argument's name. They are read from the
    # frames of the running calls, so that no call has to remember its arguments.
    found: tuple[Module | None, str] = (None, "")
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code is Module.__call__.__code__:
            module, args, kwargs = (frame.f_locals[name] for name in ("self", "args", "kwargs"))
            code = getattr(type(module).forward, "__code__", None)
            names = () if code is None else code.co_varnames[1 : code.co_argcount]  # none of *args, as of a wrapper
            for name, value in (*zip(names, args, strict=False), *kwargs.items()):
                if isinstance(value, Tensor) and memory_of(value.array) is memory_of(array):
                    found = module, name
        frame = frame.f_back
    return found


def is_arithmetic(op: Any) -> bool:
    """Whether an op computes with the numbers that it is given, such as a sum, and does not only write them."""
    return hasattr(op, "forward") and op.forward.module == "pointwise.arithmetic"


# Whether the loss scale alone made a gradient overflow.


def is_by_scale(event: Event) -> bool:
    """Whether a backward that gave non-finite gradients gives finite ones at a loss scale of 1.

    A backward is linear in the gradient of its output, so that gradient is divided by the scale and the reference runs
    again; what it gives is rounded to the dtypes that were asked for.
    """
    if event.name == "scale_loss":
        return True
    if event.tag is None or event.tag.factor is None or (scale := float(event.tag.factor)) <= 1:
        return False
    double = np.dtype(np.float64)
    if event.name in LINEAR:
        return all(is_finite(cast(cast(array, double) / scale, event.output.dtype)) for array in event.inputs)
    dys = [None if dy is None else cast(cast(dy, double) / scale, dy.dtype) for dy in event.operands]
    if not hasattr(event.op, "backward_primitive"):
        return all_finite(_function_gradients(event.node, dys))
    needs = event.op.needs(event.node)
    gradients = run_backward(event, dys, needs, event.node.saved)
    pairs = zip(gradients, needs, strict=False)
    return all(is_finite(cast(g, need)) for g, need in pairs if hasattr(g, "dtype") and need is not None)


def _function_gradients(node: Any, dys: list[Any]) -> tuple[Any, ...]:
    # Of an autograd.Function, or of a node that is no op's.
    with no_grad():
        given = [None if dy is None else TracedArray(Tensor(dy)) for dy in dys]
        found = node.op.replay(node, given, node.op.needs(node), SimpleNamespace(tag=None))
    return tuple([plain(gradient) for gradient in found])


def run_backward(event: Event, dys: list[Any], needs: tuple[Any, ...], saved: Any) -> tuple[Any, ...]:
    """The gradients that the op of a backward's event gives for other gradients of its outputs, as it returns them.

    The reference computes them, or the backward of the kernel that saved what only itself can read.
    """
    op, node, dy = event.op, event.node, dys[0] if len(dys) == 1 else tuple(dys)
    params = dict(zip(op.signature.param_names, node.params, strict=True)) if node.params else {}
    kernel = node.kernel.own_backward or op.backward_primitive.reference
    found, _ = dispatch.backward(op, kernel, dy, saved, needs, params, node.plan.compute)
    return found if isinstance(found, tuple) else (found,)
