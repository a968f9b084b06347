"""Registers the products, sums and time steps of recurrent layers, which a backend computes in place."""

from __future__ import annotations

from typing import Any

from ampkit.backends.passthrough import runs_as_stored
from ampkit.base.dtypes import Array
from ampkit.ops.nn.rnn import OPS
from ampkit.ops.nn.rnn_cell import (
    column_sums,
    gru_step,
    gru_step_backward,
    lstm_step,
    lstm_step_backward,
    matmul_into,
)

from .registration import on

_STEPS = {lstm_step: 5, lstm_step_backward: 6, gru_step: 6, gru_step_backward: 7}  # the numbers of their arrays


def register_recurrent(
    backend: str,
    multiplied: Any,
    multiplies: Any,
    summed: Any,
    sums: Any,
    step_of: Any,
    fits_of: Any,
    worth: Any,
    min_elements: int = 0,
) -> None:
    """Register them, and the layers in 16 bits where `worth` says so of their inputs (see `runs_as_stored`).

    multiplied(a, b, out, bias, accumulate=) -> whether it did what matmul_into does; summed: column_sums. step_of(name,
    count): the step of that many arrays, fits_of(name) its predicate.
    """

    def multiply(a: Array, b: Array, out: Array, bias: Array | None = None, accumulate: bool = False) -> None:
        if not multiplied(a, b, out, bias, accumulate=accumulate):
            matmul_into.reference.run(a, b, out, bias, accumulate)

    on(matmul_into, backend, multiply, multiplies)
    on(column_sums, backend, summed, sums, min_elements=min_elements)
    for step, count in _STEPS.items():
        on(step, backend, step_of(step.name, count), fits_of(step.name))
    for op in OPS:
        runs_as_stored(op, backend, worth)
