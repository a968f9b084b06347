"""The kernel of a reduction of columns with a prologue: its source.

    code, name = source(columns, steps, inputs, numbers)

The reduction is that of columns.cuh, which computes its prologue where it loads an element.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ampkit.base.dtypes import DType

from ..nvrtc import C_NAMES
from .chain_source import Step, title
from .parameters import parameters
from .row_source import RowArray, RowShape, RowStep, Writer


class Columns(NamedTuple):
    """The reduction. term: of reductions.h. operand: the value that it reads, and its dtype.

    result: the dtype of what it stores. vector: columns of a thread, 8 or 1.
    """

    term: str
    operand: tuple[str, DType]
    result: DType
    vector: int


_OWN = (
    "long long outer, long long n, long long inner, long long part_size, long long parts, float divisor, bool root, "
    "int depth"
)


@lru_cache(1024)
def source(columns: Columns, steps: tuple[Step, ...], inputs: tuple[RowArray, ...], numbers: int) -> tuple[str, str]:
    """The code of a kernel and its name. Its own parameters: those of `reduce_columns` that say what is reduced."""
    name = title([f"{columns.term}_of_columns"], steps)
    return _ColumnWriter(columns, steps, inputs, numbers).written(name), name


class _ColumnWriter(Writer):
    def __init__(self, columns: Columns, steps: Sequence[Step], inputs: Sequence[RowArray], numbers: int):
        rows = tuple([RowStep(step, True) for step in steps])
        self.columns = columns
        super().__init__(rows, inputs, (), (), numbers, RowShape(columns.vector, 1, False))
        self.kept = set()

    def written(self, name: str) -> str:
        (operand, dtype), result = self.columns.operand, self.columns.result
        load, vector = self.needing([operand], []), self.columns.vector
        given = parameters([result], [one.dtype for one in self.inputs], (), self.rows, self.numbers, _OWN)
        lines = ['#include "include/column_chain.cuh"', "", *self.function(0, load), ""]
        lines += [f"__global__ void __launch_bounds__(BLOCK) {name}({given}) {{"]
        lines += ["    __shared__ float shared[COLUMN_TOTALS];", "    unsigned zero = layout.zero;"]
        lines += _lambda("one", 1, [*self.single(0, load, ["g0"]), "v[0] = g0;"])
        functions = "one"
        if vector > 1:
            lines += _lambda(
                "eight", 8, [*self.eight(0, load, set()), "#pragma unroll", "for (int j = 0; j < 8; j++) v[j] = g0[j];"]
            )
            functions = "eight, one"
        lines.append(f"    columns<terms::{self.columns.term}, {vector}>(prologue<{C_NAMES[dtype]}>({functions}), y0,")
        lines.append("        nullptr, outer, n, inner, part_size, parts, depth, divisor, root, shared);")
        return "\n".join([*lines, "}"]) + "\n"


def _lambda(name: str, width: int, body: Sequence[str]) -> list[str]:
    """A function of `v`, which computes the values from element e on."""
    return [
        f"    auto {name} = [&](float (&v)[{width}], unsigned e) {{",
        *[f"        {line}" for line in body],
        "    };",
    ]
