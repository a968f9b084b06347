"""`linear` under a policy with a recipe: its three products on quantized operands.

The kernel quantizes what it saves for backward in forward, from the values in 16 or 32 bits, so that memory is that of
the codes. A second derivative runs the reference on the dequantized operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from ampkit.base.dtypes import Array, DType
from ampkit.base.version_counter import derived_value
from ampkit.core.autograd.grad_mode import grad_scope
from ampkit.core.autograd.saved import Saved
from ampkit.core.casts import cast
from ampkit.core.dispatch import Kernel, run_op, run_op_backward
from ampkit.core.policy import delayed
from ampkit.core.policy.delayed import GRAD_OUTPUT, INPUT, WEIGHT, DelayedScaling, scaling_of
from ampkit.core.policy.recipe import E2M1, Quantization, QuantizationRecipe

from ..reduction.reductions import sum
from .matmul import as_matrix, linear
from .quantization import Quantized, dequantize, quantize, quantize_both, scaled_mm, undo_hadamard


@cache
def _by(recipe: QuantizationRecipe) -> Callable[[Any], Kernel]:
    return lambda inputs: _LinearCall(recipe, inputs).kernel()


linear.quantized = _by


class _LinearCall:
    """One call of `linear` by a recipe.

    needs_input, needs_weight: whether the gradient of the input or the weight will be wanted. Without gradients, as in
    an evaluation, delayed scaling records nothing.
    """

    def __init__(self, recipe: QuantizationRecipe, inputs: Any):
        input, weight, _ = inputs
        self.recipe, self.trains = recipe, grad_scope().value
        self.needs_input = self.trains and getattr(input, "_tape_edge", None) is not None
        self.needs_weight = self.trains and getattr(weight, "_tape_edge", None) is not None
        self.scaling: DelayedScaling | None = scaling_of(weight, recipe) if recipe.delayed else None
        self.scales: dict[int, Array] = {}  # of this call, by role

    def kernel(self) -> Kernel:
        """The kernel that runs it, with its backward."""
        kernel = Kernel(self._forward, None, wants_cache=True)
        kernel.name, kernel.replays = f"linear_{self.recipe.name}", True
        kernel.own_backward = Kernel(self._backward, None, wants_cache=True)
        return kernel

    def _forward(self, input: Array, weight: Array, bias: Array | None, *, dtype: DType, versions: Any) -> Any:
        rows, version, product = as_matrix(input), versions[1], self.recipe.forward
        first = second = turned_rows = turned_weight = None
        if product is None:
            out = run_op(linear, (rows, cast(weight, dtype), bias), dtype=dtype)
        else:
            of_input = self.recipe.weight_gradient if self.needs_weight else None
            of_weight = self.recipe.input_gradient if self.needs_input else None
            first, turned_rows = self._both(rows, product.first, of_input and of_input.second, INPUT)
            later = of_weight and of_weight.second
            second, turned_weight = self._both_of_weight(weight, product.second, later, version)
            out = scaled_mm(first, second, dtype, bias)
        saved = Saved(shapes=(input.shape, weight.shape))
        if self.needs_weight:
            product = self.recipe.weight_gradient
            kept = None if product is None else turned_rows or _transposed(first, product.second)
            if product is not None and kept is None:
                kept = self._quantize(rows.T, product.second, INPUT)
            _save(saved, "input", kept, rows)
        if self.needs_input:
            product = self.recipe.input_gradient
            kept = None if product is None else turned_weight or _transposed(second, product.second)
            if product is not None and kept is None:
                kept = self._quantize_weight(weight, True, product.second, version)
            _save(saved, "weight", kept, weight if kept is not None else cast(weight, dtype))
        return out.reshape(*input.shape[:-1], weight.shape[0]), saved

    def _backward(self, dy: Array, saved: Saved, needs: Any, versions: Any, grad_buffers: Any) -> Any:
        rows, grad, turned, dx, dw, db = as_matrix(dy), None, None, None, None, None
        if needs[0]:
            product = self.recipe.input_gradient
            if product is None:
                dx, _, _ = _in_16_bits(rows, saved, (needs[0], None, None))
            else:
                later = self.recipe.weight_gradient if needs[1] else None
                grad, turned = self._both(rows, product.first, later and later.first, GRAD_OUTPUT, (True, True))
                dx = scaled_mm(grad, _saved(saved, "weight"), needs[0])
            dx = dx.reshape(saved.shapes[0])
        if needs[1]:
            product = self.recipe.weight_gradient
            if product is None:
                _, dw, _ = _in_16_bits(rows, saved, (None, needs[1], None), grad_buffers)
            else:
                turned = turned or _transposed(grad, product.first)
                turned = turned or self._quantize(rows.T, product.first, GRAD_OUTPUT, read_soon=True)
                dw = scaled_mm(turned, _saved(saved, "input"), needs[1], buffer=grad_buffers[1])
        if needs[2]:
            db = run_op(sum, (rows,), 0, False, None, dtype=needs[2])
        return dx, dw, db

    def _quantize(self, array: Array, how: Quantization, role: int, read_soon: bool = False) -> Quantized:
        return self._both(array, how, None, role, (read_soon, False))[0]

    def _both(
        self, array: Array, how: Quantization, turned: Quantization | None, role: int, read_soon: Any = (True, False)
    ) -> tuple[Quantized, Quantized | None]:
        """A matrix and, where a kernel makes it in the same reading, its transpose, which another product takes.

        turned: how that one is quantized; None where no product takes it. read_soon: of each, see `quantize`.
        """
        scale, records = None, False
        if how.delayed and self.scaling is not None:
            if role not in self.scales:
                now, log = self.scaling.scale(role), delayed.running.get()
                self.scales[role], records = (now, self.trains) if log is None else log.take(now)
            scale = self.scales[role]
        both = None if turned is None else quantize_both(array, how, turned, scale, read_soon)
        if both is None:
            (first, largest), second = quantize(array, how, scale, read_soon[0]), None
        else:
            first, second, largest = both
        if records and self.scaling is not None:
            self.scaling.record(role, largest, how, self.recipe)
        return first, second

    def _both_of_weight(
        self, weight: Array, how: Quantization, turned: Quantization | None, version: Any
    ) -> tuple[Quantized, Quantized | None]:
        if turned is not None and (how.delayed or how.stochastic or turned.stochastic):
            return self._both(weight, how, turned, WEIGHT)
        if turned is not None:
            make = partial(quantize_both, weight, how, turned)
            both = derived_value(version, weight, ("quantized both", how, turned), make) or make(
                read_soon=(True, False)
            )
            if both is not None:
                return both[0], both[1]
        return self._quantize_weight(weight, False, how, version, read_soon=True), None

    def _quantize_weight(
        self, weight: Array, turned: bool, how: Quantization, version: Any, read_soon: bool = False
    ) -> Quantized:
        matrix = weight.T if turned else weight
        if not (how.delayed or how.stochastic):
            key = ("quantized", how, turned)
            found = derived_value(version, weight, key, lambda: self._quantize(matrix, how, WEIGHT))
            if found is not None:
                return found
        return self._quantize(matrix, how, WEIGHT, read_soon)


def _in_16_bits(rows: Array, saved: Saved, needs: Any, grad_buffers: Any = (None, None, None)) -> Any:
    return run_op_backward(linear, rows, saved, needs, versions=((0,),) * 3, grad_buffers=grad_buffers)


def _transposed(found: Quantized | None, how: Quantization) -> Quantized | None:
    # The transpose of what another product quantized, where it is what quantizing the transpose gives.
    same = found is not None and found.how == how and how.symmetric and how.format != E2M1
    return found.transposed if found is not None and same else None


def _save(saved: Saved, name: str, quantized: Quantized | None, array: Array) -> None:
    # As arrays, which tools can count and hooks can pack; an operand in 16 bits by its own name.
    if quantized is None:
        setattr(saved, name, array)
        return
    parts = {"codes": quantized.codes, "scales": quantized.scales, "factor": quantized.factor}
    for part, value in parts.items():
        setattr(saved, f"{name}_{part}", value)
    setattr(saved, f"{name}_form", (quantized.shape, quantized.how))


def _saved(saved: Saved, name: str) -> Quantized:
    parts = [getattr(saved, f"{name}_{part}") for part in ("codes", "scales", "factor")]
    return Quantized(*parts, *getattr(saved, f"{name}_form"))


# What second derivatives take for an operand that was saved as codes of its transpose.


@linear.stand_in("input")
def _input(saved: Saved) -> Array | None:
    found = _stand_in(saved, "input")
    return None if found is None else found.reshape(saved.shapes[0])


@linear.stand_in("weight")
def _weight(saved: Saved) -> Array | None:
    return _stand_in(saved, "weight")


def _stand_in(saved: Saved, name: str) -> Array | None:
    if not hasattr(saved, f"{name}_codes"):
        return None
    quantized = _saved(saved, name)
    values = dequantize(quantized)
    values = undo_hadamard(values) if quantized.how.hadamard else values
    rows = math.prod(saved.shapes[0][:-1]) if name == "input" else saved.shapes[1][0]
    return values[:, :rows].T
