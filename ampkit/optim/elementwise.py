"""Elementwise: optimizers that treat every element alike, and the one frame of their updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import backends
from ..backends import Array
from ..core.primitive import Primitive
from .flat.arena import Run
from .flat.memory import Draw, chunks, narrow, narrow_at_random, select_into
from .optimizer import Optimizer
from .param_group import Group


class Step(NamedTuple):
    """What an update reads besides flat memory.

    rule: the optimizer's class. options: those of the group. values: the hyperparameters that live on the device, 0-d
    float64 (betas: two of them). steps: the real steps before this one, 0-d int64. go: whether this one is real, or
    None for always. penalty: how much of the weights is added to their gradients. draw: what rounds 16-bit masters.
    """

    rule: type[Elementwise]
    options: Mapping[str, Any]
    values: Mapping[str, Array]
    steps: Array
    go: Array | None
    penalty: float
    draw: Draw | None

    @property
    def betas(self) -> tuple[Array, Array]:
        """The two of them, 0-d float64."""
        both = self.values["betas"]
        return both[..., 0], both[..., 1]

    def bias(self, beta: Array) -> Array:
        """1 - beta^t in step t, what Adam divides a mean that began at 0 by; 0-d float64."""
        return 1 - np.power(beta, self.steps + 1)  # a 0-d exponent after ** is read by older NumPy, on the host

    @property
    def shrink(self) -> Any:
        """What weight decay that is no part of the gradient multiplies weights with: 1 - lr weight_decay, else 1."""
        return 1.0 if self.penalty else 1 - self.values["lr"] * self.options["weight_decay"]


def _update(home: Array, gradient: Array, moments: Sequence[Array | None], copies: list[Array], step: Step) -> None:
    numbers = numbers_of(step, gradient.dtype)
    for part in chunks(home.size):
        update_piece(home, gradient, moments, copies, step, numbers, part)


def numbers_of(step: Step, kind: Any) -> list[Any]:
    """What the rule computes with, besides elements: 0-d arrays in dtype `kind`, and Python numbers."""
    found = step.rule.numbers(step)
    return [number.astype(kind) if hasattr(number, "astype") else number for number in found]


def update_piece(
    home: Array, gradient: Array, moments: Sequence[Array | None], copies: list[Array],
    step: Step, numbers: list[Any], part: slice,
) -> None:  # fmt: skip
    """The update of one slice of flat memory; a step that is not real leaves masters and moments as they are."""
    kind, held = gradient.dtype, [array if array is None else array[part] for array in (home, *moments)]
    there = step.go is None and home.dtype == kind
    made = held if there else [array if array is None else _wide(array, kind) for array in held]
    step.rule.piece(made[0], _direction(made[0], gradient[part], step), made[1:], numbers)
    for old, new in () if there else zip(held, made, strict=True):
        if new is not None:
            _settle(old, new, step, part.start)
    for copy in copies:
        narrow(held[0], copy[part])


def _wide(array: Array, kind: Any) -> Array:
    return array.copy() if array.dtype == kind else backends.backend_of(array).cast(array, kind)


def _direction(p: Array, g: Array, step: Step) -> Array:
    """The gradient of what is minimized, L2 penalty included; without either the gradient's own memory."""
    d = -g if step.options.get("maximize") else g
    return d + p * step.penalty if step.penalty else d


def _settle(old: Array, new: Array, step: Step, start: int) -> None:
    if old.dtype == new.dtype:
        select_into(old, new, step.go)
        return
    assert step.draw is not None
    if step.go is not None:
        new = np.where(step.go, new, _wide(old, new.dtype))
    narrow_at_random(new, old, step.draw.beyond(start))


# (masters, gradients, moments or None, copies, Step): one pass over flat memory, in place
update = Primitive("update", "optim.elementwise", _update)


class Elementwise(Optimizer):
    """An optimizer that does the same to every element; a subclass brings the arithmetic, the frame does the rest.

    numbers(step) -> what is the same for all elements: 0-d arrays, best in float64, which are then rounded to the dtype
    of the masters, and Python numbers. piece(p, d, moments, numbers) moves a slice of the weights p and of the moments,
    in their order, in place; a moment that `uses` denies is None. d, the gradient of what is minimized, weight decay
    included unless it is `decoupled`, is not to be written to. Nothing in them may read the device from the host.

    A skipped step, 16-bit copies, rounding at random, threads on a CPU and devices are the frame's.
    """

    decoupled: bool = False  # whether weight_decay is left to the rule

    @staticmethod
    def numbers(step: Step) -> Sequence[Any]:
        """What is the same for all elements in a step; see the class."""
        raise NotImplementedError("Elementwise.numbers")

    @staticmethod
    def piece(p: Array, d: Array, moments: Sequence[Any], numbers: Sequence[Any]) -> None:
        """Move weights and moments, in place; see the class."""
        raise NotImplementedError("Elementwise.piece")

    def uses(self, group: Group, name: str) -> bool:
        """Whether an update of `group` needs the moment `name`."""
        return True

    def update(self, group: Group, run: Run, go: Array | None) -> None:
        step = self.given(group, run, go)
        update(run.home, run.gradient, list(self._moments(group, run)), run.copies, step)

    def given(self, group: Group, run: Run, go: Array | None) -> Step:
        """What an update of `run` reads."""
        decoupled = self.decoupled or group.get("decoupled_weight_decay", False)
        penalty = 0.0 if decoupled else group.get("weight_decay", 0.0)
        return Step(type(self), group, self.values(group, run), run.steps, go, penalty, run.draw)

    def values(self, group: Group, run: Run) -> Mapping[str, Array]:
        """The 0-d arrays on the device that `numbers` finds in `step.values`."""
        return group.device

    def _moments(self, group: Group, run: Run) -> Iterator[Array | None]:
        return (run.moment(name) if self.uses(group, name) else None for name in self.moments)


def moving(group: Group) -> bool:
    """Whether there is momentum, now or when a schedule says so."""
    return "momentum" in group.scheduled or group["momentum"] != 0
