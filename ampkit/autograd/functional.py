"""Jacobians and Hessians of functions of tensors, and their products with vectors; PyTorch's names.

A function takes the tensors of `inputs` and returns a tensor or a tuple of tensors; it is called once. Results have the
structure of `inputs`, a tensor or a tuple, and a Jacobian that of the outputs around it. create_graph=True: results are
on the tape, as functions of `inputs`. strict=True: StateError where a result is zero because nothing depends on an
input; otherwise it is a tensor of zeros. Each raises DTypeError for what is no tensor, and StateError for shapes that
do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from .. import ops
from ..base.errors import ArgumentError, DTypeError, StateError, check_choice
from ..core.autograd.grad_mode import enable_grad
from ..core.autograd.tape import grad
from ..core.tensor import Tensor
from ..ops.argument_checks import check_all

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]

Tensors: TypeAlias = Tensor | tuple[Tensor, ...]


def vjp(
    func: Callable[..., Any],
    inputs: Tensors,
    v: Tensors | None = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Tensors, Tensors]:
    """(outputs, v^T J): the product of a vector v, of the shapes of the outputs, and the Jacobian; one backward pass.

    Without v the output must have one element, and v is 1.
    """
    run = _Run("vjp", func, inputs, create_graph, strict)
    found = run.gradients(run.outputs, run.inputs, run.vectors(v, run.outputs))
    return run.structured(run.outputs, run.single_output), run.structured(found, run.single_input)


def jvp(
    func: Callable[..., Any],
    inputs: Tensors,
    v: Tensors | None = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Tensors, Tensors]:
    """(outputs, J v): the product of the Jacobian and a vector v, of the shapes of the inputs, by two backward passes.

    Without v the input must have one element, and v is 1.
    """
    run = _Run("jvp", func, inputs, create_graph, strict)
    vectors = run.vectors(v, run.inputs)
    seeds = [ops.zeros_like(out).requires_grad_() for out in run.outputs]  # of which v^T J is a linear function
    rows = run.gradients(run.outputs, run.inputs, seeds, on_tape=True)
    found = run.gradients(rows, seeds, vectors, of="J v")
    return run.structured(run.outputs, run.single_output), run.structured(found, run.single_output)


def jacobian(
    func: Callable[..., Any],
    inputs: Tensors,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """The Jacobian: [*output, *input], for each output (a tuple if there are several) and each input (likewise).

    One backward pass per element of the outputs. vectorize and strategy, which in PyTorch choose how, change nothing;
    strategy="forward-mode" needs vectorize=True there, and so here.
    """
    check_choice("jacobian", "strategy", strategy, "reverse-mode", "forward-mode")
    if strategy == "forward-mode" and (create_graph or not vectorize):
        raise NotImplementedError("jacobian: strategy='forward-mode' needs vectorize=True and create_graph=False")
    _need_one("jacobian", strict, vectorize)
    run = _Run("jacobian", func, inputs, create_graph, strict)
    rows = tuple([run.structured(run.jacobian(out), run.single_input) for out in run.outputs])
    return rows[0] if run.single_output else rows


def hessian(
    func: Callable[..., Any],
    inputs: Tensors,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """The Hessian of a function of one element: [*input, *input], for several inputs a tuple of tuples of such.

    vectorize and outer_jacobian_strategy change nothing.
    """
    if outer_jacobian_strategy not in ("reverse-mode", "forward-mode"):
        needs = "outer_jacobian_strategy 'reverse-mode' or 'forward-mode'"
        raise ArgumentError("hessian", needs, outer_jacobian_strategy)
    _need_one("hessian", strict, vectorize)
    run = _Run("hessian", func, inputs, create_graph, strict)
    first = run.gradients(run.scalar(), run.inputs, [ops.ones_like(run.outputs[0])], on_tape=True)
    rows = tuple([run.structured(run.jacobian(each), run.single_input) for each in first])
    return rows[0] if run.single_input else rows


def _need_one(where: str, strict: bool, vectorize: bool) -> None:
    if strict and vectorize:
        raise StateError(where, "strict=True or vectorize=True, as in PyTorch", "both")


def vhp(
    func: Callable[..., Any],
    inputs: Tensors,
    v: Tensors | None = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Tensors, Tensors]:
    """(output, v^T H): the product of a vector v, of the shapes of the inputs, and the Hessian; two backward passes.

    Without v the input must have one element, and v is 1.
    """
    run = _Run("vhp", func, inputs, create_graph, strict)
    vectors = run.vectors(v, run.inputs)
    first = run.gradients(run.scalar(), run.inputs, [ops.ones_like(run.outputs[0])], on_tape=True)
    found = run.gradients(first, run.inputs, vectors, of="v^T H")
    return run.structured(run.outputs, run.single_output), run.structured(found, run.single_input)


def hvp(
    func: Callable[..., Any],
    inputs: Tensors,
    v: Tensors | None = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Tensors, Tensors]:
    """(output, H v), as `vhp`: the Hessian is symmetric where the function has continuous second derivatives.

    Three backward passes, so that it is H v where they are not; `vhp` takes two.
    """
    run = _Run("hvp", func, inputs, create_graph, strict)
    vectors = run.vectors(v, run.inputs)
    first = run.gradients(run.scalar(), run.inputs, [ops.ones_like(run.outputs[0])], on_tape=True)
    seeds = [ops.zeros_like(x).requires_grad_() for x in run.inputs]
    second = run.gradients(first, run.inputs, seeds, on_tape=True)
    found = run.gradients(second, seeds, vectors, of="H v")
    return run.structured(run.outputs, run.single_output), run.structured(found, run.single_input)


class _Run:
    """One call of the function. inputs, outputs: lists of tensors; single_input, single_output: whether each is one."""

    def __init__(self, where: str, func: Callable[..., Any], inputs: Any, create_graph: bool, strict: bool):
        self.where, self.create_graph, self.strict = where, create_graph, strict
        given, self.single_input = self._tensors("inputs", inputs)
        with enable_grad():
            kept = [create_graph and x.requires_grad for x in given]
            self.inputs = [x.view_as(x) if k else x.detach().requires_grad_() for x, k in zip(given, kept, strict=True)]
            self.outputs, self.single_output = self._tensors("the outputs of the function", func(*self.inputs))
        if strict:
            self._need_graph("the outputs", self.outputs)

    def _tensors(self, what: str, value: Any) -> tuple[list[Tensor], bool]:
        values = list(value) if isinstance(value, (tuple, list)) else [value]
        for each in values:
            if not isinstance(each, Tensor):
                raise DTypeError(self.where, f"{what} as a Tensor or a tuple of Tensors", f"a {type(each).__name__}")
        return values, not isinstance(value, (tuple, list))

    def _need_graph(self, what: str, tensors: Sequence[Tensor]) -> None:
        for i, tensor in enumerate(tensors):
            if not tensor.requires_grad:
                raise StateError(self.where, f"{what} that depend on the inputs", f"number {i}, which depends on none")

    def scalar(self) -> list[Tensor]:
        """The outputs, which must be a tensor of one element."""
        if not self.single_output:
            raise StateError(self.where, "a function that returns one Tensor", "a tuple")
        if self.outputs[0].numel() != 1:
            raise StateError(self.where, "an output of one element", f"shape {list(self.outputs[0].shape)}")
        return self.outputs

    def vectors(self, v: Any, like: Sequence[Tensor]) -> list[Tensor]:
        """The vectors v, of the shapes of the tensors `like`."""
        if v is None:
            if len(like) != 1 or like[0].numel() != 1:
                raise StateError(self.where, "v, unless it is of one element", "None")
            return [ops.ones_like(like[0])]
        found, _ = self._tensors("v", v)
        if [x.shape for x in found] != [x.shape for x in like]:
            shapes = [[list(x.shape) for x in each] for each in (like, found)]
            raise StateError(self.where, f"v of the shapes {shapes[0]}", f"{shapes[1]}")
        return found

    def gradients(
        self, outs: Sequence[Tensor], inputs: Sequence[Tensor], seeds: Sequence[Tensor], on_tape: bool = False,
        of: str = "the function",
    ) -> list[Tensor]:  # fmt: skip
        """The gradients of the sum of outs * seeds, zeros where nothing depends; on_tape: for another pass."""
        on_tape = on_tape or self.create_graph
        pairs = [(out, seed) for out, seed in zip(outs, seeds, strict=True) if out.requires_grad]
        found: Sequence[Tensor | None] = [None] * len(inputs)
        if pairs:
            with enable_grad():
                found = grad([o for o, _ in pairs], inputs, [s for _, s in pairs], create_graph=on_tape,
                             retain_graph=True, allow_unused=True)  # fmt: skip
        if self.strict and any(x is None for x in found):
            number = next(i for i, x in enumerate(found) if x is None)
            got = f"one that does not depend on number {number}"
            raise StateError(self.where, f"{of} to depend on each input", got)
        made = [ops.zeros_like(x) if g is None else g for g, x in zip(found, inputs, strict=True)]
        if self.strict and on_tape:
            self._need_graph(f"the gradients of {of}", made)
        return made

    def jacobian(self, out: Tensor) -> list[Tensor]:
        """For each input d out / d input, [*out, *input]."""
        with enable_grad():
            elements = out.reshape(-1)
            rows = [self.gradients([each], self.inputs, [ops.ones_like(each)]) for each in elements.unbind()]
            if not rows:
                return [out.new_zeros((*out.shape, *x.shape)) for x in self.inputs]
            stacked = [ops.stack([row[i] for row in rows]) for i in range(len(self.inputs))]
            return [each.reshape(*out.shape, *x.shape) for each, x in zip(stacked, self.inputs, strict=True)]

    def structured(self, tensors: Sequence[Tensor], single: bool) -> Tensors:
        """As one tensor or a tuple; detached unless create_graph."""
        kept = tensors if self.create_graph else [x.detach() for x in tensors]
        return kept[0] if single else tuple(kept)


check_all(globals())
