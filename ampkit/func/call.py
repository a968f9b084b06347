"""One recorded call of a function, for the transforms of this package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any
from weakref import finalize

from .. import ops
from ..base.errors import ArgumentError, DTypeError, ShapeError, StateError
from ..core.arguments import shown
from ..core.autograd.forward_pass import push_forward
from ..core.autograd.grad_mode import enable_grad, is_grad_enabled
from ..core.autograd.node import GradientEdge, Node
from ..core.autograd.reachable import nodes_below
from ..core.autograd.tape import grad
from ..core.autograd.views import placed_at
from ..core.nested import leaves, tensors_in, with_tensors
from ..core.tensor import Tensor

Structure = Any  # a tensor, or nested lists, tuples and dicts with tensors

_primals: set[int] = set()  # the ids of the leaves that transforms made, as long as they live
_running: ContextVar[tuple[Tensor, ...]] = ContextVar("ampkit.func", default=())  # those of the calls around this one


class Call:
    """`func(*args, **kwargs)`, recorded from the tensors of the arguments `argnums` on.

    inputs: these tensors, as the function got them. out: what it returned; aux: of a pair (out, aux) with has_aux, the
    second one, off the tape. outs: the tensors of out. outer: whether derivatives are recorded in their turn: where
    gradients are on, and the result depends on further tensors that require grad or on the given ones beyond the call.
    Raises DTypeError for arguments and results that hold no float tensors, ArgumentError for a position that is none.
    """

    def __init__(
        self, where: str, func: Callable[..., Any], argnums: Sequence[int] | None, args: Sequence[Any],
        kwargs: dict[str, Any], has_aux: bool = False,
    ):  # fmt: skip
        self.where, recording = where, is_grad_enabled()
        self.numbers = range(len(args)) if argnums is None else [_position(where, n, args) for n in argnums]
        if len(set(self.numbers)) < len(self.numbers):
            raise ArgumentError(where, "argnums that differ", shown(argnums))
        given = [list(tensors_in(args[n])) for n in self.numbers]
        for n, tensors in zip(self.numbers, given, strict=True):
            if not tensors or not all(tensor.is_floating_point() for tensor in tensors):
                got = tensors[0].dtype if tensors else shown(args[n])
                raise DTypeError(where, f"float Tensors as argument {n}", str(got))
        with enable_grad():
            ends: list[Tensor] = []  # where the inputs' gradients end, of those that have none beyond the call
            fresh = [[_input(tensor, recording, ends) for tensor in tensors] for tensors in given]
            chosen = dict(zip(self.numbers, fresh, strict=True))
            self.args = [with_tensors(arg, iter(chosen[n])) if n in chosen else arg for n, arg in enumerate(args)]
            self.inputs = [tensor for tensors in fresh for tensor in tensors]
            self.edges: list[Any] = [tensor._tape_edge for tensor in self.inputs]
            self.beyond = len(ends) < len(self.inputs)
            token = _running.set((*_running.get(), *ends))
            try:
                found = func(*self.args, **kwargs)
            finally:
                _running.reset(token)
        self.aux: Structure = None
        self.out, self.aux = _pair(where, found) if has_aux else (found, None)
        self.outs = list(tensors_in(self.out))
        if not self.outs:
            raise DTypeError(where, "a function that returns Tensors", shown(self.out))
        self.outer = recording and self._depends_on_others()

    def _depends_on_others(self) -> bool:
        # A leaf that another transform made counts while its function runs: this call is in it then.
        if self.beyond:
            return True
        ends = {edge[0] for out in self.outs if (edge := out._tape_edge) is not None}
        below = nodes_below(end for end in ends if isinstance(end, Node))
        sources = ends | {edge[0] for node in below for edge in node.edges if edge is not None}
        around = {id(tensor) for tensor in _running.get()}
        ended = [source for source in sources if not isinstance(source, Node)]
        return any(id(leaf) in around or id(leaf) not in _primals for leaf in ended)

    def gradients(self, seeds: Sequence[Any], retain: bool = True) -> list[Tensor]:
        """The gradients of the inputs, given those of `outs`, None for zeros; zeros where no output depends on one."""
        pairs = [(o, seed) for o, seed in zip(self.outs, seeds, strict=True) if o.requires_grad and seed is not None]
        if not pairs:
            return [ops.zeros_like(tensor) for tensor in self.inputs]
        outs, given = [out for out, _ in pairs], [seed for _, seed in pairs]
        traced = is_grad_enabled() and (self.outer or any(seed.requires_grad for seed in given))
        pairs_of = zip(self.inputs, self.edges, strict=True)  # an input that has changed in place has moved
        to = [x if x._tape_edge is edge else GradientEdge(*edge[:2]) for x, edge in pairs_of]
        found = grad(outs, to, given, retain or self.outer, traced, allow_unused=True)
        return [ops.zeros_like(x) if g is None else g for g, x in zip(found, self.inputs, strict=True)]

    def tangents(self, directions: Sequence[Tensor | None], strict: bool = False) -> list[Tensor]:
        """The tangents of `outs`, given those of the inputs, or None for zeros.

        They are zeros, or with strict a StateError, where an output depends on none of these.
        """
        traced = is_grad_enabled() and (self.outer or any(d is not None and d.requires_grad for d in directions))
        found = push_forward(self.outs, self.edges, directions, traced)
        if strict and any(t is None for t in found):
            raise StateError(self.where, "outputs that depend on the inputs, with strict=True", "one that does not")
        return [ops.zeros_like(out) if t is None else t for t, out in zip(found, self.outs, strict=True)]

    def result(self) -> Structure:
        """What the function returned: on the tape as far as it depends on more than the call's inputs."""
        return self.out if self.outer else detached(self.out)

    def by_argument(self, tensors: Sequence[Tensor]) -> list[Structure]:
        """One tensor per input, in the structures of the arguments."""
        found = iter(tensors)
        return [with_tensors(self.args[n], found) for n in self.numbers]

    def like_inputs(self, structures: Sequence[Structure], what: str) -> list[Tensor]:
        """The tensors of `structures`, one per argument; ShapeError unless their shapes are the inputs'."""
        return matching(self.where, what, [self.args[n] for n in self.numbers], list(structures))


def positions(where: str, argnums: Any) -> tuple[int, ...]:
    """argnums, a position or several, as a tuple. Raises ArgumentError for anything else."""
    if isinstance(argnums, int):
        return (argnums,)
    if not isinstance(argnums, (tuple, list)) or not argnums or not all(isinstance(n, int) for n in argnums):
        raise ArgumentError(where, "argnums as a position, or a tuple of them", shown(argnums))
    return tuple(argnums)


def _position(where: str, number: Any, args: Sequence[Any]) -> int:
    if not isinstance(number, int) or not -len(args) <= number < len(args):
        raise ArgumentError(where, f"argnums below {len(args)}, the number of arguments", shown(number))
    return number % len(args)


def _input(tensor: Tensor, recording: bool, ends: list[Tensor]) -> Tensor:
    # A place on the tape of its own; beyond it the outer graph goes on. It may change in place.
    if recording and tensor.requires_grad:
        return tensor.view_as(tensor)
    leaf = tensor.detach().requires_grad_()
    _primals.add(id(leaf))
    finalize(leaf, _primals.discard, id(leaf)).atexit = False
    ends.append(leaf)
    edge: Any = leaf._tape_edge
    return placed_at(tensor, edge)


def _pair(where: str, found: Any) -> tuple[Any, Any]:
    if not isinstance(found, tuple) or len(found) != 2:
        raise DTypeError(where, "a function that returns (output, aux), as has_aux=True says", shown(found))
    if foreign := [item for item in leaves(found[1]) if not isinstance(item, Tensor)]:
        raise DTypeError(where, "Tensors in aux", shown(foreign[0]))
    return found[0], detached(found[1])


def detached(values: Structure) -> Structure:
    """The same structure with tensors off the tape."""
    return with_tensors(values, iter([tensor.detach() for tensor in tensors_in(values)]))


def matching(where: str, what: str, like: Structure, given: Structure) -> list[Tensor]:
    """The tensors of `given`, whose structure and shapes must be those of `like`; in their dtypes."""
    need_structure(where, what, like, given)
    wanted, found = list(tensors_in(like)), list(tensors_in(given))
    shapes = [[list(tensor.shape) for tensor in tensors] for tensors in (wanted, found)]
    if shapes[0] != shapes[1]:
        raise ShapeError(where, f"{what} of the shapes {_text(shapes[0])}", _text(shapes[1]))
    return [t if t.dtype == x.dtype else t.to(x.dtype) for t, x in zip(found, wanted, strict=True)]


def need_structure(where: str, what: str, like: Structure, given: Structure) -> None:
    """Raise ArgumentError unless tensors stand in `given` where they do in `like`. Lists and tuples are one kind."""
    if not _alike(like, given):
        raise ArgumentError(where, f"{what} in the structure {_outline(like)}", _outline(given))


def _alike(like: Structure, given: Structure) -> bool:
    if isinstance(like, Tensor) or isinstance(given, Tensor):
        return isinstance(like, Tensor) and isinstance(given, Tensor)
    if isinstance(like, dict) and isinstance(given, dict):
        return list(like) == list(given) and all(_alike(like[key], given[key]) for key in like)
    if isinstance(like, (list, tuple)) and isinstance(given, (list, tuple)):
        return len(like) == len(given) and all(map(_alike, like, given))
    return not list(tensors_in(like)) and not list(tensors_in(given))


def _outline(values: Structure) -> str:
    # A structure with * for each tensor.
    if isinstance(values, dict):
        return f"{{{', '.join(f'{key!r}: {_outline(item)}' for key, item in values.items())}}}"
    if isinstance(values, (list, tuple)):
        return f"({', '.join(map(_outline, values))}{',' * (len(values) == 1)})"
    return "*" if isinstance(values, Tensor) else shown(values)


def _text(shapes: list[list[int]]) -> str:
    return ", ".join(map(str, shapes)) or "none"
