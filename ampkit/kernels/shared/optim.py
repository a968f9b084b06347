"""Registers updates of optimizers, moments in 8 bits, norms and clipping as kernels; the rules of optimizers.h.

A host that reads flags at no cost, that of a CPU, returns early from a skipped step: its backend gives
`is_skipped(all_finite)`. The loops of a GPU read the flag, for its host must not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ampkit import optim
from ampkit.base.dtypes import Array, float32
from ampkit.optim.adafactor import adafactor_update
from ampkit.optim.clip import power_sum, scale_gradients
from ampkit.optim.elementwise import Step, update
from ampkit.optim.flat.blockwise import Blockwise, Code, decode, encode
from ampkit.optim.flat.memory import RandomBits, narrow

from .headers import rules
from .registration import on

Function = Callable[..., Any]
RULES: dict[Callable[..., None], str] = {getattr(optim, name).update_elements: name for name in rules()}


def rule_of(step: Any) -> str | None:
    """The rule of a Step's optimizer, also of a subclass that computes its own scalars; None if kernels have none."""
    return RULES.get(step.rule.update_elements)


def stored(moment: Any) -> Array | None:
    """A moment as it is stored, or its codes; None for None."""
    return moment.codes if isinstance(moment, Blockwise) else moment


def _narrow_all(weights: Array, copies: list[Array]) -> None:
    # What is left of a skipped step: after it copies count as fresh, and one that was just made is not filled yet.
    for each in copies:
        narrow(weights, each)


def register_update(
    backend: str, updated: Function, numbers_of: Function, fits: Function, is_skipped: Function | None = None
) -> None:
    """Register the update by a rule of optimizers.h.

    updated(rule, weights, [gradient and three moments], copies, numbers, step, scales, codes): in place; scales and
    codes are those of moments in 8 bits, None for each other one, and empty if all are float32. numbers_of(step,
    weights) -> the rule's scalars. fits: the predicate, true for steps that have a rule alone.
    """

    def run(weights: Array, gradient: Array, moments: Sequence[Any], copies: list[Array], step: Step) -> None:
        if is_skipped is not None and is_skipped(step.all_finite):
            return _narrow_all(weights, copies)
        held, scales, codes = (*moments, None, None, None)[:3], [], []
        if not all([moment is None or moment.dtype == float32 for moment in held]):  # noqa: C419  # quickly
            in_8_bits = [moment if isinstance(moment, Blockwise) else None for moment in held]
            scales = [None if moment is None else moment.scales for moment in in_8_bits]
            codes = [None if moment is None else moment.code.beside(weights) for moment in in_8_bits]
            held = tuple(map(stored, held))
        updated(rule_of(step), weights, (gradient, *held), copies, numbers_of(step, weights), step, scales, codes)
        return None

    on(update, backend, run, fits)


def register_whole(
    primitive: Any, backend: str, updated: Function, fits: Function, is_skipped: Function | None = None
) -> None:
    """Register LAMB or Adafactor, which read whole parameters. updated: called as the primitive."""

    def run(master: Array, *args: Any, **options: Any) -> None:
        flag, copies = args[5:] if primitive is adafactor_update else (args[-1].all_finite, args[-2])
        if is_skipped is not None and is_skipped(flag):
            _narrow_all(master.reshape(-1), copies)
        else:
            updated(master, *args, **options)

    on(primitive, backend, run, fits)


def register_flat(
    backend: str, decoded: Function, encoded: Function, coded: Function, narrowed: Function, total: Function,
    scaled: Function, fits: Function, narrows: Function | None = None, orders: Any = None,
) -> None:  # fmt: skip
    """Register codes of moments in 8 bits, rounding, norms and clipping: functions called as the primitives.

    decoded and encoded get the table of the code, beside the arrays, in place of the code; coded(*arrays): whether they
    read them. narrows: the predicate of `narrowed`; fits(values): of the norms, of `orders`, and of `scaled`.
    """

    def encode_(values: Array, codes: Array, scales: Array, code: Code, random_bits: RandomBits | None) -> None:
        encoded(values, codes, scales, code.beside(values), random_bits)

    def sums(values: Array, order: float, scratch: Array) -> bool:
        return (orders is None or order in orders) and fits(values)

    on(decode, backend, lambda codes, scales, code: decoded(codes, scales, code.beside(codes)), coded)
    on(encode, backend, encode_, lambda values, codes, *rest: values.dtype == float32 and coded(values, codes))
    on(narrow, backend, narrowed, narrows)
    on(power_sum, backend, total, sums)
    on(scale_gradients, backend, scaled, lambda values, factor, all_finite: fits(values))
