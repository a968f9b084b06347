"""Elementwise: optimizers whose update of an element reads no other element.

A subclass writes the formula, `scalars` and `update_elements`; the pass over flat memory around it, with skipped steps,
16-bit copies and stochastic rounding, is written once, here and in the backends' kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..backends import Array
from ..core.autograd.traced_array import TracedArray
from ..core.dispatch import primitive
from .flat.arena import Span
from .flat.memory import RandomBits, chunks, narrow
from .flat.moments import Moment, part, store, values_of
from .optimizer import Optimizer
from .param_group import ParamGroup


class Step(NamedTuple):
    """The inputs of an update besides flat memory.

    rule: the optimizer's class. options: the hyperparameters of the group. values: those that live on the device, 0-d
    float64 (betas: [2]). steps: how many steps came before, skipped ones not counted, 0-d int64 on the device.
    all_finite: 0-d bool on the device, whether to step, or None for always. l2: the coefficient of the weights that is
    added to their gradients. random_bits: for the stochastic rounding of 16-bit master weights; that of the
    n-th moment takes the n-th draw after it.
    """

    rule: type[Elementwise]
    options: Mapping[str, Any]
    values: Mapping[str, Array]
    steps: Array
    all_finite: Array | None
    l2: float
    random_bits: RandomBits | None

    @property
    def betas(self) -> tuple[Array, Array]:
        """beta1 and beta2, 0-d float64."""
        betas = self.values["betas"]
        return betas[..., 0], betas[..., 1]

    def bias_correction(self, beta: Array) -> Array:
        """1 - beta^t in step t, which Adam divides a running mean that began at 0 by; 0-d float64."""
        return 1 - np.power(beta, self.steps + 1)  # a 0-d exponent after ** is read by older NumPy, on the host

    @property
    def decay_factor(self) -> Any:
        """1 - lr weight_decay, which decoupled weight decay multiplies the weights by; 1 where the decay is in `l2`."""
        return 1.0 if self.l2 else 1 - self.values["lr"] * self.options["weight_decay"]


@primitive("optim.elementwise")
def update(weights: Array, gradient: Array, moments: Sequence[Moment | None], copies: list[Array], step: Step) -> None:
    """One pass over flat master weights, in place; moments may be None; copies: 16-bit, flat."""
    scalars = scalars_of(step, gradient.dtype)
    for chunk in chunks(weights.size):
        update_chunk(weights, gradient, moments, copies, step, scalars, chunk)


def scalars_of(step: Step, dtype: Any) -> list[Any]:
    """The rule's `scalars`, arrays rounded to `dtype`."""
    return [number.astype(dtype) if hasattr(number, "astype") else number for number in step.rule.scalars(step)]


def update_chunk(
    weights: Array, gradient: Array, moments: Sequence[Moment | None], copies: list[Array],
    step: Step, scalars: list[Any], chunk: slice,
) -> None:  # fmt: skip
    """Update one slice of flat memory in place; a skipped step rewrites the 16-bit copies alone."""
    dtype, flats = gradient.dtype, (weights, *moments)
    stored = [None if flat is None else part(flat, chunk.start, chunk.stop) for flat in flats]
    in_place = step.all_finite is None and all(flat is None or flat.dtype == dtype for flat in stored)
    new = stored if in_place else [None if flat is None else values_of(flat, dtype) for flat in stored]
    step.rule.update_elements(new[0], _effective_gradient(new[0], gradient[chunk], step), new[1:], scalars)
    for number, (old, updated) in enumerate(() if in_place else zip(stored, new, strict=True)):
        if updated is not None:
            bits = None if step.random_bits is None else step.random_bits.later(number).skip(chunk.start)
            store(old, updated, bits, step.all_finite)
    for copy in copies:
        narrow(stored[0], copy[chunk])


def _update_recorded(weights: Any, gradient: Any, moments: Sequence[Any], copies: Any, step: Step) -> None:
    # Of whole traced arrays (see differentiable.py), which are neither chunked nor copied.
    scalars = scalars_of(step, gradient.dtype)
    step.rule.update_elements(weights, _effective_gradient(weights, gradient, step), moments, scalars)


def _effective_gradient(p: Array, g: Array, step: Step) -> Array:
    # Of what is minimized, L2 penalty included; without either it is the memory of the gradient itself.
    g = -g if step.options.get("maximize") else g
    return g + p * step.l2 if step.l2 else g


class Elementwise(Optimizer):
    """The base of optimizers whose update of an element reads no other element; a subclass writes the formula.

    scalars(step) returns what is the same for all elements: 0-d arrays, best in float64, which are then rounded to the
    dtype of the update, and Python numbers. update_elements(p, g, moments, scalars) updates, in place, a chunk of the
    weights p and of the moments, in the order of `moments`; one that `needs_moment` denies is None. g is the gradient
    of what is minimized, L2 weight decay included unless the class is `decoupled`; it is read only. Neither method
    may read the device from the host.

    Skipped steps, 16-bit copies, stochastic rounding, threads and devices are handled around them.
    """

    by_element = True
    decoupled: bool = False  # whether the formula applies weight_decay itself

    @staticmethod
    def scalars(step: Step) -> Sequence[Any]:
        """What is the same for all elements in a step; see the class."""
        raise NotImplementedError("Elementwise.scalars")

    @staticmethod
    def update_elements(p: Array, g: Array, moments: Sequence[Any], scalars: Sequence[Any]) -> None:
        """Update weights and moments in place; see the class."""
        raise NotImplementedError("Elementwise.update_elements")

    def needs_moment(self, group: ParamGroup, name: str) -> bool:
        """Whether an update of `group` reads the moment `name`."""
        return True

    def update(self, group: ParamGroup, span: Span, all_finite: Array | None) -> None:
        moments = [span.moment(name) if self.needs_moment(group, name) else None for name in self.moments]
        weights = span.weights
        run = _update_recorded if isinstance(weights, TracedArray) else update
        run(weights, span.gradient, moments, span.copies, self.step_inputs(group, span, all_finite))

    def step_inputs(self, group: ParamGroup, span: Span, all_finite: Array | None) -> Step:
        """What an update of `span` reads besides flat memory."""
        decoupled = self.decoupled or group.get("decoupled_weight_decay", False)
        l2 = 0.0 if decoupled else group.get("weight_decay", 0.0)
        values = self.device_values(group, span)
        return Step(type(self), group, values, span.steps, all_finite, l2, span.random_bits)

    def device_values(self, group: ParamGroup, span: Span) -> Mapping[str, Array]:
        """The 0-d arrays on the device that `scalars` finds in `step.values`."""
        return group.device


def has_momentum(group: ParamGroup) -> bool:
    """Whether the group has momentum now, or a schedule may set it on the device."""
    return group.may_be_set("momentum")
