"""The kernel of a norm or a softmax of rows with a prologue and an epilogue: its source.

    code, name = source(template, operands, result, steps, inputs, outputs, numbers)

What stands between is a function of a header, such as norm.cuh, which computes its prologue where it loads a row, and
its epilogue where it stores one.
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


class Template(NamedTuple):
    """A kernel over rows, which is a template over what loads and stores them.

    header: which has its function. call: the call of this, with {loads} and {store} in the place of what loads and
    stores. own: declarations of the other parameters. bounds: threads of a block, at most. width: values per access.
    """

    name: str
    header: str
    call: str
    own: str
    bounds: str
    width: int


@lru_cache(1024)
def source(
    template: Template,
    operands: tuple[tuple[str, DType], ...],
    result: DType | None,
    steps: tuple[Step, ...],
    inputs: tuple[RowArray, ...],
    outputs: tuple[tuple[int, DType], ...],
    numbers: int,
) -> tuple[str, str]:
    """The code of a kernel and its name.

    operands: the values that the template loads, and their dtypes; result: the dtype of what it stores, the value 0;
    None where it has no epilogue. outputs: as of row_source. Its own parameters: those of the template.
    """
    name = title([template.name], steps)
    return _TemplateWriter(template, operands, result, steps, inputs, outputs, numbers).written(name), name


class _TemplateWriter(Writer):
    def __init__(
        self,
        template: Template,
        operands: Sequence[tuple[str, DType]],
        result: DType | None,
        steps: Sequence[Step],
        inputs: Sequence[RowArray],
        outputs: Sequence[tuple[int, DType]],
        numbers: int,
    ):
        rows = tuple([RowStep(step, True) for step in steps])
        self.template, self.operands, self.given, self.read = template, operands, f"x{len(inputs)}", inputs
        given = [] if result is None else [RowArray(result, None, GIVEN)]
        super().__init__(rows, (*inputs, *given), (), outputs, numbers, RowShape(template.width, 1, False))
        self.kept = set()

    def output_name(self, place: int) -> str:
        return super().output_name(place) if self.outputs[place][0] else self.given

    def _before(self) -> set[str]:
        """The values that the template needs, which are stored where it loads."""
        found, open_ = set[str](), [name for name, _ in self.operands]
        while open_:
            name = open_.pop()
            step = self.made.get(name)
            if isinstance(step, RowStep) and name not in found:
                found |= {f"v{value[0]}" for value in step.step.values if value is not None}
                open_ += step.step.operands
        return found

    def written(self, name: str) -> str:
        template, before = self.template, self._before()
        early = [i for i, (value, _) in enumerate(self.outputs) if f"v{value}" in before]
        late = [i for i in range(len(self.outputs)) if i not in early]
        loads = [self.needing([one], early if place == 0 else []) for place, (one, _) in enumerate(self.operands)]
        epilogue = [self.needing([], late)] if len(self.inputs) > len(self.read) else []
        lines = [f'#include "include/{header}.cuh"' for header in (template.header, "epilogue")]
        for number, one in enumerate([*loads, *epilogue]):
            lines += ["", *self.function(number, one)]
        dtypes = [dtype for _, dtype in self.outputs], [one.dtype for one in self.read], ()
        given = parameters(*dtypes, self.rows, self.numbers, template.own)
        lines += ["", f"__global__ void __launch_bounds__({template.bounds}) {name}({given}) {{"]
        lines.append("    unsigned zero = layout.zero;")
        functors = list[str]()
        for number, (one, (_, dtype)) in enumerate(zip(loads, self.operands, strict=True)):
            lines += self._functor(f"load{number}", number, one)
            functors.append(f"prologue<{C_NAMES[dtype]}>(load{number})")
        for store in epilogue:
            lines += self._functor("store", len(loads), store)
        lines.append(f"    {template.call.format(loads=', '.join(functors), store='epilogue(store)')};")
        return "\n".join([*lines, "}"]) + "\n"

    def _functor(self, name: str, number: int, one: Pass) -> list[str]:
        """A function of `v`, the values that the template loads or stores, at the element e."""
        width = self.template.width
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
