"""Function: an operation whose forward and backward a script writes over Tensors.

    class Cube(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            return 3 * x**2 * dy

    y = Cube.apply(x)

Use `@ampkit.op` instead for an op that needs a cast category, faster kernels or second derivatives by replay.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .. import backends
from ..base import observe
from ..base.dtypes import DIFFERENTIABLE
from ..base.errors import DTypeError, StateError, UndefinedError
from ..base.version_counter import is_unchanged
from ..core import policy
from ..core.autograd.grad_mode import enable_grad, is_grad_enabled, no_grad
from ..core.autograd.node import Node, alias, attach, named_node_type
from ..core.autograd.saved_hooks import pack, unpack
from ..core.autograd.views import move, need_changeable, share
from ..core.dispatch.batching.array import innermost, live_levels
from ..core.dispatch.batching.boundary import lifted
from ..core.nested import tensors_in
from ..core.tensor import Tensor
from ..ops.sparse.tensor import SparseTensor
from .function_node import Call, FunctionNode, Once
from .function_vmap import VmapInfo, by_ops, mapped

__all__ = ["Function", "FunctionCtx", "once_differentiable"]


class FunctionCtx:
    """The context that a Function's forward fills for its backward; any attribute may be set on it.

    needs_input_grad: per argument of forward, whether its gradient is wanted.
    """

    def __init__(self, name: str, args: tuple[Any, ...], region: Any):
        self.needs_input_grad = tuple([isinstance(a, Tensor) and a.requires_grad for a in args])
        self._name, self._region = name, region  # the second for `amp.custom_bwd`
        self._to_save: tuple[Any, ...] = ()
        self._saved: list[Any] | None = None  # once recorded: (array, version, edge or output index)
        self._freed = False  # whether a backward pass has let go of them
        self._non_differentiable: Sequence[Any] = ()  # the outputs that forward marks; once recorded, their indices
        self._dirty: tuple[Tensor, ...] = ()
        self._materializes = True
        self._serial = 0
        self._node: Node | None = None  # only while its backward runs, to avoid a reference cycle
        self._for_jvp: tuple[Any, ...] = ()  # what save_for_forward kept
        self._runs_jvp = False

    def save_for_backward(self, *tensors: Tensor | SparseTensor | None) -> None:
        """Keep tensors, above all inputs and outputs, for `saved_tensors`; called once, at the end of the forward.

        Raises DTypeError for anything else, which can be set as an attribute.
        """
        for position, item in enumerate(tensors):
            if item is not None and not isinstance(item, (Tensor, SparseTensor)):
                got = f"a {type(item).__name__} at {position}"
                raise DTypeError("save_for_backward", "Tensors or None", got, "set it on ctx: ctx.name = value")
        self._to_save = tensors

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for `saved_tensors` in `jvp`."""
        self._for_jvp = tuple([item.detach() if isinstance(item, Tensor) else item for item in tensors])

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What was saved, on the tape where it was.

        Raises StateError if it was changed in place since, or freed by a backward pass.
        """
        if self._runs_jvp:
            return self._for_jvp
        if self._freed:
            cure = "Specify retain_graph=True in the first backward"
            raise StateError("saved_tensors", "a graph that was not used before", "one that is already freed", cure)
        return self._to_save if self._saved is None else tuple([self._unpack(item) for item in self._saved])

    @property
    def saved_variables(self) -> tuple[Any, ...]:
        """The old name of `saved_tensors`, which warns."""
        warnings.warn("'saved_variables' is deprecated: use 'saved_tensors'", DeprecationWarning, stacklevel=2)
        return self.saved_tensors

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        """Say that these outputs have no gradient; integers and booleans have none anyway."""
        self._non_differentiable = (*self._non_differentiable, *outputs)

    def mark_dirty(self, *inputs: Tensor) -> None:
        """Say that forward has changed these inputs in place, and returns them: the outputs are the inputs themselves.

        Raises StateError for an input that must not change in place (see `views.need_changeable`), and `apply` for one
        that forward does not return.
        """
        for item in inputs:
            with enable_grad():
                need_changeable(item)
        self._dirty = inputs

    def set_materialize_grads(self, value: bool) -> None:
        """Whether an output that received no gradient gets zeros in backward (so it is at first), or None."""
        self._materializes = value

    def _free(self) -> None:
        if self._saved:
            self._saved, self._freed = [], True

    def _record(self, args: tuple[Any, ...], outs: tuple[Any, ...], node: Node) -> None:
        # A saved tensor keeps its edge: that of an input, or the index of an output, whose node does not exist yet.
        edges = {id(a): a._tape_edge for a in args if isinstance(a, Tensor)}
        places = {id(out): i for i, out in enumerate(outs)}
        self._saved = [_saved_item(t, edges, places) for t in self._to_save]
        marked = self._non_differentiable
        self._non_differentiable = [i for i, out in enumerate(outs) if any(out is each for each in marked)]
        self._to_save, self._serial = (), node.serial

    def _unpack(self, item: Any) -> Any:
        if item is None:
            return None
        if isinstance(item, _Sparse):
            return item.like._with(self._unpack(item.values))
        if isinstance(item, Tensor):
            item = item.array, item._version_counter, (item, 0)
        (kept, version, edge), array = item, unpack(item[0])
        packed = array is not kept
        if version[0] > self._serial and not packed and not is_unchanged(array, version, self._serial):
            what, cure = f"a tensor that {self._name} saved changed in place since", "change it after backward"
            raise StateError("backward", "the values that the forward saved", what, cure)
        if type(edge) is int:
            differs = self._node is not None and array.dtype in DIFFERENTIABLE and edge not in self._non_differentiable
            edge = (self._node, edge, array.shape, array.dtype) if differs else None
        if edge is not None and isinstance(edge[0], Tensor):
            return alias(array, edge) if packed else edge[0]
        out = Tensor(array)
        out._tape_edge, out._version_counter = edge, out._version_counter if packed else version
        return out


class _Sparse(NamedTuple):
    """A saved sparse tensor: its indices, and what is saved of its values."""

    like: SparseTensor
    values: Any


def _saved_item(tensor: Any, edges: dict[int, Any], places: dict[int, int]) -> Any:
    # A constant among the inputs is kept as the object that it is.
    if tensor is None:
        return None
    if isinstance(tensor, SparseTensor):
        return _Sparse(tensor.detach(), _saved_item(tensor._held, edges, places))
    kept, place = pack(tensor.array, tensor._version_counter), id(tensor)
    if kept is tensor.array and place in edges and tensor._tape_edge is None and place not in places:
        return tensor
    return kept, tensor._version_counter, edges.get(place, places.get(place))


class Function:
    """An operation with a backward of its own: subclass it, define both as static methods, and call `apply`.

    forward(ctx, *args) -> a Tensor or a tuple of Tensors and other things; or forward(*args) beside
    setup_context(ctx, inputs, output). It runs off the tape, in the autocast region of the call. backward(ctx, *dys)
    -> one gradient per argument of forward, None where there is none; dys has one per output. It runs with autocast off
    (see `ampkit.amp.custom_bwd`), and is recorded under create_graph=True. A gradient is re-typed to its input's dtype
    (float32 for a Parameter of 16 bits), and summed over the axes that broadcasting added.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        name = type(self).__name__
        raise StateError(name, f"a call: {name}.apply(...)", "an instance")

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Compute the output; subclasses define it."""
        raise UndefinedError("Function", "a static method `forward`", "a class without one")

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Any) -> None:
        """Save for backward, where forward takes no ctx; subclasses define it."""
        raise StateError("Function", "a static method `setup_context`", "a class without one")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """The gradients of forward's arguments; subclasses define it, or `vjp`."""
        raise UndefinedError("Function", "a static method `backward`", "a class without one")

    @staticmethod
    def vjp(ctx: Any, *grad_outputs: Any) -> Any:
        """Another name of `backward`, beside `jvp`; subclasses define one of the two."""
        raise UndefinedError("Function", "a static method `vjp`", "a class without one")

    @classmethod
    def _pull(cls, ctx: FunctionCtx, *grad_outputs: Any) -> Any:
        if cls.vjp is Function.vjp:
            return cls.backward(ctx, *grad_outputs)
        if cls.backward is not Function.backward:
            raise StateError(cls.__name__, "one of the static methods `backward` and `vjp`", "both")
        return cls.vjp(ctx, *grad_outputs)

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Any:
        """The tangents of forward's outputs, given those of its arguments: None for what is no tensor of floats.

        Where an argument has no tangent it is zeros, or None after `set_materialize_grads(False)`. Subclasses may
        define it, with `ctx.save_for_forward`; otherwise forward mode differentiates their backward.
        """
        raise StateError("Function", "a static method `jvp`", "a class without one")

    # Under `vmap`, whether forward and backward run on batched tensors, as they do where there is no method `vmap`.
    generate_vmap_rule = False

    @staticmethod
    def vmap(info: VmapInfo, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        """(output, out_dims) of all samples of a `vmap` at once; subclasses may define it.

        args: as `apply` got them, with the samples of each Tensor along the axis in in_dims; None there for one that
        all samples share, and for what is no Tensor. out_dims: the axis of the samples in each output, None where they
        share it. Without the method, forward itself runs, on tensors that show one sample.
        """
        raise StateError("Function", "a static method `vmap`", "a class without one")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run forward on the arguments and record it, so that a gradient comes back through backward.

        Raises DTypeError for a forward that returns arrays, or Tensors in lists or dicts; in the backward pass, for
        gradients that are no Tensors, ArgumentError for too few or too many, ShapeError for misshapen ones.
        """
        split = cls.setup_context is not Function.setup_context
        args = lifted(_bound(cls.forward, args, kwargs, split))
        if live_levels and (level := innermost([t.array for t in tensors_in(args)])) is not None:
            if cls.vmap is not Function.vmap:
                return mapped(cls, args, level)
            return by_ops(cls.__name__, lambda: cls._run(args, split))
        return cls._run(args, split)

    @classmethod
    def _run(cls, args: tuple[Any, ...], split: bool) -> Any:
        ctx = FunctionCtx(cls.__name__, args, None if hasattr(cls.forward, "casts_inputs") else policy.region())
        with no_grad():
            out = cls.forward(*args) if split else cls.forward(ctx, *args)
            if split:
                cls.setup_context(ctx, args, out)
        outs = out if isinstance(out, tuple) else (out,)
        if not all(any(one is out for out in outs) for one in ctx._dirty):
            needs, got = "each tensor that mark_dirty names among its outputs", "one that is not"
            raise StateError(f"{cls.__name__}.forward", needs, got, "return the tensor that forward changed")
        node = _recorded(cls, ctx, args, outs) if is_grad_enabled() and any(ctx.needs_input_grad) else None
        made = _outputs(outs, node, ctx._dirty)
        ctx._dirty = ()  # they are outputs now, whose node holds ctx
        if observe.observers:
            observe.notify_end(cls.__name__, _arrays(args), _arrays(made), observe.FORWARD, operands=args, node=node)
        return tuple(made) if isinstance(out, tuple) else made[0]


def _bound(forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any], split: bool) -> tuple[Any, ...]:
    # All arguments in forward's order: each has its gradient.
    if not kwargs and not split:
        return args
    parameters = list(inspect.signature(forward).parameters.values())
    bound = inspect.Signature(parameters if split else parameters[1:]).bind(*args, **kwargs)
    if split:
        bound.apply_defaults()
    return bound.args


def _recorded(function: Any, ctx: FunctionCtx, args: tuple[Any, ...], outs: tuple[Any, ...]) -> Node:
    for out in outs:
        if not isinstance(out, Tensor) and (backends.is_array(out) or next(tensors_in(out), None) is not None):
            cure = "wrap arrays: ampkit.tensor(...); return several Tensors as a tuple"
            raise DTypeError(f"{ctx._name}.forward", "a Tensor or a tuple of them", f"a {type(out).__name__}", cure)
    made = named_node_type(f"{ctx._name}Backward", FunctionNode)
    op = Call(function)
    op.changes = bool(ctx._dirty)
    node = made(op, [a._tape_edge if isinstance(a, Tensor) else None for a in args], ctx)
    node.outputs = tuple([(o.array.shape, o.array.dtype) if isinstance(o, Tensor) else None for o in outs])
    if function.jvp is not Function.jvp:
        floats = [isinstance(a, Tensor) and a.is_floating_point() for a in args]
        op.inputs = [(a.array.shape, a.array.dtype) if f else None for a, f in zip(args, floats, strict=True)]
    ctx._record(args, outs, node)
    return node


def _outputs(outs: tuple[Any, ...], node: Node | None, dirty: tuple[Tensor, ...]) -> list[Any]:
    # A tensor that forward returns twice stays one.
    made: dict[int, Any] = {}
    for index, out in enumerate(outs):
        if id(out) not in made:
            made[id(out)] = _output(out, node, index, dirty)
    return [made[id(out)] for out in outs]


def _output(out: Any, node: Node | None, index: int, dirty: tuple[Tensor, ...]) -> Any:
    # A new Tensor, since forward may have returned an input or a tensor that others hold.
    if not isinstance(out, Tensor):
        return out
    if any(out is one for one in dirty):
        if node is not None and out.is_floating_point():
            move(out, (node, index, out.array.shape, out.array.dtype))
        return out
    if node is None or index in node.saved._non_differentiable:
        made = Tensor(out.array)
    else:
        made = attach(out.array, node, index)
    share(out, made)
    return made


def _arrays(items: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([item.array for item in items if isinstance(item, Tensor)])


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a backward that is no differentiable function itself: it runs off the tape.

    Where a second derivative passes through what it returned, StateError is raised.
    """

    @functools.wraps(backward)
    def once(ctx: FunctionCtx, *grad_outputs: Any) -> Any:
        with no_grad():
            found = backward(ctx, *grad_outputs)
        if not is_grad_enabled() or ctx._node is None:
            return found
        outs = found if isinstance(found, (tuple, list)) else (found,)
        edges = [*ctx._node.edges, *(dy._tape_edge for dy in grad_outputs if isinstance(dy, Tensor))]
        node = Node(Once(ctx._name), [edge for edge in edges if edge is not None], ())
        node.outputs = (None,) * len(outs)
        return tuple([attach(o.array, node, i) if isinstance(o, Tensor) else o for i, o in enumerate(outs)])

    return once
