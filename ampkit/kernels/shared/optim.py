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
from ampkit.optim.lamb import LAMB, lamb_update

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


def register_lamb(backend: str, updated: Function, fits: Function, is_skipped: Function | None = None) -> None:
    """Register LAMB. updated: called as the primitive, for a step that is not skipped; fits(*flat arrays)."""

    def run(
        master: Array, gradient: Array, mean: Array, square: Array, slices: list[slice], copies: list[Array], step: Step
    ) -> None:
        if is_skipped is not None and is_skipped(step.all_finite):
            _narrow_all(master, copies)
        else:
            updated(master, gradient, mean, square, slices, copies, step)

    def known(master: Array, gradient: Array, mean: Array, square: Array, slices: Any, copies: Any, step: Step) -> bool:
        same = step.rule.scalars is LAMB.scalars and master.dtype == float32
        return same and fits(master, gradient, mean, square)

    on(lamb_update, backend, run, known)


def register_adafactor(backend: str, updated: Function, fits: Function, is_skipped: Function | None = None) -> None:
    """Register Adafactor. updated: called as the primitive, for a step that is not skipped; fits(*flat arrays)."""

    def run(
        master: Array, gradient: Array, rows: Array, columns: Array | None, steps: Array, lr: Array,
        all_finite: Array | None, copies: list[Array], **options: Any,
    ) -> None:  # fmt: skip
        if is_skipped is not None and is_skipped(all_finite):
            _narrow_all(master.reshape(-1), copies)
        else:
            updated(master, gradient, rows, columns, steps, lr, all_finite, copies, **options)

    def known(
        master: Array,
        gradient: Array,
        rows: Array,
        columns: Any,
        steps: Any,
        lr: Any,
        flag: Any,
        copies: Any,
        **more: Any,
    ) -> bool:
        return bool(master.dtype == float32) and fits(master, gradient, rows, columns, *copies)

    on(adafactor_update, backend, run, known)


def register_blockwise(backend: str, empty: Function, decoded: Function, encoded: Function, fits: Function) -> None:
    """Register the codes of moments in 8 bits.

    empty(codes) -> float32 memory for their values. decoded(codes, scales, table, values), encoded(values, codes,
    scales, table, random_bits): table: the code's, beside the arrays. fits(*arrays) of what is read and of codes.
    """

    def decode_(codes: Array, scales: Array, code: Code) -> Array:
        values = empty(codes)
        decoded(codes, scales, code.beside(codes), values)
        return values

    def encode_(values: Array, codes: Array, scales: Array, code: Code, random_bits: RandomBits | None) -> None:
        encoded(values, codes, scales, code.beside(values), random_bits)

    on(decode, backend, decode_, lambda codes, scales, code: fits(codes, scales))
    on(encode, backend, encode_, lambda values, codes, *rest: values.dtype == float32 and fits(values, codes))


def register_flat(
    backend: str,
    narrowed: Function,
    total: Function,
    scaled: Function,
    narrows: Any,
    fits: Function,
    orders: Any = None,
) -> None:
    """Register rounding, norms and clipping, by functions called as the primitives. narrows: where `narrowed` applies.

    fits(values): where the others do; orders: of the norms, None for any.
    """

    def sums(values: Array, order: float, scratch: Array) -> bool:
        return (orders is None or order in orders) and fits(values)

    on(narrow, backend, narrowed, narrows)
    on(power_sum, backend, total, sums)
    on(scale_gradients, backend, scaled, lambda values, factor, all_finite: fits(values))
