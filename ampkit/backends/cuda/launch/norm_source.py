"""The kernel of a norm of rows with a prologue and an epilogue: its source.

    code, name = source(norm, steps, inputs, outputs, numbers)

The norm is that of norm.cuh, which computes its prologue where it loads a row, and its epilogue where it stores one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ampkit.base.dtypes import DType

from ..nvrtc import C_NAMES
from .chain_source import KINDS, Step, title
from .parameters import parameters
from .row_source import GIVEN, Pass, RowArray, RowShape, RowStep, Writer


class Norm(NamedTuple):
    """The norm of a kernel. backward: whether it is the gradient. centered: of layer_norm, not of rms_norm.

    operands: the values that it loads, and their dtypes; result: the dtype of what it stores. width, accesses, block:
    see rows.RowPlan.
    """

    backward: bool
    centered: bool
    operands: tuple[tuple[str, DType], ...]
    result: DType
    width: int
    accesses: int
    block: bool


_FORWARD = "const float* weight, const float* bias, float* mean, float* rstd, long long rows, long long cols, float eps"
_BACKWARD = (
    "const float* weight, const float* mean, const float* rstd, float* dw, float* db, long long rows, long long cols"
)


@lru_cache(1024)
def source(
    norm: Norm,
    steps: tuple[Step, ...],
    inputs: tuple[RowArray, ...],
    outputs: tuple[tuple[int, DType], ...],
    numbers: int,
) -> tuple[str, str]:
    """The code of a kernel and its name. The value 0 is the norm's; outputs: as of row_source.

    Its own parameters: those of the norm (above).
    """
    name = title([f"{'layer' if norm.centered else 'rms'}_norm{'_backward' if norm.backward else ''}"], steps)
    return _NormWriter(norm, steps, inputs, outputs, numbers).written(name), name


class _NormWriter(Writer):
    def __init__(
        self,
        norm: Norm,
        steps: Sequence[Step],
        inputs: Sequence[RowArray],
        outputs: Sequence[tuple[int, DType]],
        numbers: int,
    ):
        given = RowArray(norm.result, None, GIVEN)
        rows = tuple([RowStep(step, True) for step in steps])
        self.norm, self.given = norm, f"x{len(inputs)}"
        super().__init__(rows, (*inputs, given), (), outputs, numbers, RowShape(norm.width, 1, norm.block))
        self.kept = set()

    def output_name(self, place: int) -> str:
        return super().output_name(place) if self.outputs[place][0] else self.given

    def _before(self) -> set[str]:
        """The values that the norm needs, which are stored where it loads."""
        found, open_ = set[str](), [name for name, _ in self.norm.operands]
        while open_:
            name = open_.pop()
            step = self.made.get(name)
            if isinstance(step, RowStep) and name not in found:
                found |= {f"v{value[0]}" for value in step.step.values if value is not None}
                open_ += step.step.operands
        return found

    def written(self, name: str) -> str:
        norm, before = self.norm, self._before()
        early = [i for i, (value, _) in enumerate(self.outputs) if f"v{value}" in before]
        late = [i for i in range(len(self.outputs)) if i not in early]
        loads = [self.needing([one], early if place == 0 else []) for place, (one, _) in enumerate(norm.operands)]
        store = self.needing([], late)
        lines = ['#include "include/norm_chain.cuh"', ""]
        for number, one in enumerate([*loads, store]):
            lines += [*self.function(number, one), ""]
        dtypes = [dtype for _, dtype in self.outputs], [one.dtype for one in self.inputs[:-1]], ()
        given = parameters(*dtypes, self.rows, self.numbers, _BACKWARD if norm.backward else _FORWARD)
        block = "true" if norm.block else "false"
        bounds = f"__launch_bounds__(MAX_BLOCK<{norm.accesses}, {block}>)"
        lines.append(f"__global__ void {bounds} {name}({given}) {{")
        lines.append("    unsigned zero = layout.zero;")
        functors = list[str]()
        for number, (one, (_, dtype)) in enumerate(zip(loads, norm.operands, strict=True)):
            lines += self._functor(f"load{number}", number, one)
            functors.append(f"prologue<{C_NAMES[dtype]}>(load{number})")
        lines += self._functor("store", len(loads), store)
        template = f"{'true' if norm.centered else 'false'}, {norm.width}, {norm.accesses}, {block}"
        affine = "ColumnAffine{weight, nullptr}" if norm.backward else "ColumnAffine{weight, bias}"
        ends = "dw, db, rows, cols, 0" if norm.backward else "rows, cols, 0, eps"
        passed = [*functors, affine, *(["mean", "rstd", "epilogue(store)"] if norm.backward else ["epilogue(store)"])]
        passed += [] if norm.backward else ["mean", "rstd"]
        lines.append(f"    {'backward' if norm.backward else 'forward'}<{template}>({', '.join([*passed, ends])});")
        return "\n".join([*lines, "}"]) + "\n"

    def _functor(self, name: str, number: int, one: Pass) -> list[str]:
        """A function of `v`, the values that the norm loads or stores, at the element e."""
        width = self.norm.width
        lines = [f"    auto {name} = [&](float (&v)[{width}], unsigned e) {{"]
        results = [f"g{j}" for j in range(len(one.results))]
        if width == 1:
            body = self.single(number, one, results) if results else []
            for place, found in zip(one.stored, results[len(results) - len(one.stored) :], strict=True):
                body.append(f"store_scalar(y{place}, {KINDS[self.outputs[place][1]]}, int(e), {found});")
            body += ["v[0] = g0;"] if name != "store" else []
        else:
            body = self.eight(number, one, set())
            body += ["#pragma unroll", "for (int j = 0; j < 8; j++) v[j] = g0[j];"] if name != "store" else []
        return [*lines, *[f"        {line}" for line in body], "    };"]
