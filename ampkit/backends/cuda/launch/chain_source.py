"""The kernel of a chain of elementwise functions: its source, for the functions, dtypes and layouts of one chain.

    code, name = source(steps, inputs, outputs)

Sizes, strides and numbers are arguments of the kernel, so that the layers of a model share one. CuPy caches what
becomes of a source on disk, by its content, the options and the compiler's version.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ampkit.base.dtypes import DType, bfloat16, bool_, float16, float32

from .parameters import parameters

NAMED = 6  # functions in the name of a kernel
KINDS: dict[DType, str] = {float32: "FLOAT32", float16: "FLOAT16", bfloat16: "BFLOAT16", bool_: "BOOL"}


class Step(NamedTuple):
    """One function. name: in functions.h. operands: `x2` for the input 2, `v3` for the value 3, `s1` for the number 1.

    values: per result, the number of the value and its dtype; None for a result that nobody wants.
    """

    name: str
    backward: bool
    operands: tuple[str, ...]
    values: tuple[tuple[int, DType] | None, ...]


class Select(NamedTuple):
    """A concatenation. pieces: the number of the bound within which each is chosen, and its value; else the last."""

    pieces: tuple[tuple[int | None, str], ...]
    value: tuple[int, DType]
    name: str = "Cat"
    backward: bool = False


class Input(NamedTuple):
    """An array that is read. row: of its strides among those of all such inputs, None for one in the memory order of
    the results; repeated: whether neighbours along the last axis are one element. bounds: the numbers of those within
    which it is read."""

    dtype: DType
    row: int | None
    repeated: bool
    bounds: tuple[int, ...] = ()


class Output(NamedTuple):
    """An array that is stored: the value of this number. row: as of an input."""

    dtype: DType
    value: int
    row: int | None = None


@lru_cache(4096)
def source(
    steps: tuple[Step | Select, ...],
    inputs: tuple[Input, ...],
    outputs: tuple[Output, ...],
    numbers: int,
    bounds: tuple[int, ...] = (),
) -> tuple[str, str]:
    """The code of a kernel and its name. Its parameters: see parameters.py.

    bounds: rows of strides, by which the sum of an index is the position that is compared with two arguments. Its own
    parameters: these, and for each input within bounds the offset of the index 0.
    """
    name = title(["chain"], steps)
    read = *[x.row for x in inputs], *[y.row for y in outputs], *bounds
    rows = 1 + max([-1 if row is None else row for row in read])
    lines = ['#include "include/chain.cuh"', "", *_compute(steps, len(inputs), outputs, numbers, len(bounds)), ""]
    return "\n".join([*lines, *_kernel(name, inputs, outputs, rows, numbers, bounds)]) + "\n", name


def title(first: Sequence[str], steps: Sequence[Step | Select]) -> str:
    """The name of a kernel: `first`, and what it computes."""
    names = [f"{step.name}{'_backward' if step.backward else ''}" for step in steps]
    return "_".join([*first, *names[:NAMED], *([f"and_{len(names) - NAMED}"] if len(names) > NAMED else [])])


def computed(number: int, step: Step | Select) -> list[str]:
    """The lines that compute the values of one function, the `number`-th of the kernel."""
    if isinstance(step, Select):
        *first, (_, last) = step.pieces
        return [f"    float v{step.value[0]} = {''.join([f'c{bound} ? {name} : ' for bound, name in first])}{last};"]
    operands, lines = ", ".join([*step.operands, *["0.0f"] * (4 - len(step.operands))]), []
    if step.backward:
        lines += [f"    float r{number}[3];", f"    {step.name}::backward({operands}, r{number});"]
    for place, value in enumerate(step.values):
        if value is not None:
            found = f"r{number}[{place}]" if step.backward else f"{step.name}::forward({operands})"
            lines.append(f"    float v{value[0]} = handed_on<{KINDS[value[1]]}>({found}, zero);")
    return lines


def _compute(
    steps: Sequence[Step | Select], inputs: int, outputs: Sequence[Output], numbers: int, bounds: int
) -> list[str]:
    given = ["unsigned zero", *[f"float x{i}" for i in range(inputs)], *[f"float s{i}" for i in range(numbers)]]
    given += [f"bool c{i}" for i in range(bounds)]
    results = [f"float& y{j}" for j in range(len(outputs))]
    lines = [f"__device__ __forceinline__ void compute({', '.join([*given, *results])}) {{"]
    for number, step in enumerate(steps):
        lines += computed(number, step)
    lines += [f"    y{j} = v{output.value};" for j, output in enumerate(outputs)]
    return [*lines, "}"]


def _kernel(
    name: str, inputs: Sequence[Input], outputs: Sequence[Output], rows: int, numbers: int, bounds: Sequence[int]
) -> list[str]:
    wide = float32 in (*[x.dtype for x in inputs], *[y.dtype for y in outputs])
    given = parameters(
        [one.dtype for one in outputs], [one.dtype for one in inputs], (), rows, numbers, _own(inputs, bounds)
    )
    scalars = [f"s{i}" for i in range(numbers)]
    results = [f"g{j}[k]" for j in range(len(outputs))]
    lines = [f"__global__ void __launch_bounds__(BLOCK) {name}({given}) {{"]
    lines += ["    Span span(layout);", f"    bool adjacent = {'false' if wide else 'span.vector == PER_THREAD'};"]
    lines += ["    if (span.whole) {"]
    lines += [f"        int a[{rows + 1}], b[{rows + 1}];"]
    lines += ["        chain_offsets(layout, span.first, a), chain_offsets(layout, span.second, b);"]
    lines += [
        f"        bool c{i} = {_within(i, row, 'a')}, d{i} = {_within(i, row, 'b')};" for i, row in enumerate(bounds)
    ]
    for i, one in enumerate(inputs):
        place = _first_and_second(one.row)
        if one.bounds:
            ends = [f"{_all(one, c)} ? {at}[{one.row}] + shift{i} : 0" for c, at in (("c", "a"), ("d", "b"))]
            place = ", ".join(ends)
        given = f"x{i}, {KINDS[one.dtype]}, adjacent, {_bool(one.repeated)}, {place}"
        lines.append(f"        Packed p{i} = Packed::load({given});")
    for i, one in enumerate(inputs):
        lines.append(f"        float f{i}[PER_THREAD];")
        lines.append(f"        p{i}.unpack({KINDS[one.dtype]}, {_bool(one.repeated)}, f{i});")
    lines += [f"        float g{j}[PER_THREAD];" for j in range(len(outputs))]
    lines += ["#pragma unroll", "        for (int k = 0; k < PER_THREAD; k++)"]
    sides = [f"k < PER_THREAD / 2 ? c{i} : d{i}" for i in range(len(bounds))]
    every = ", ".join([*[f"f{i}[k]" for i in range(len(inputs))], *scalars, *sides, *results])
    lines.append(f"            compute(layout.zero, {every});")
    for j, output in enumerate(outputs):
        place = _first_and_second(output.row)
        lines.append(f"        Packed::store(y{j}, {KINDS[output.dtype]}, adjacent, {place}, g{j});")
    lines += ["        return;", "    }", "#pragma unroll 1", "    for (unsigned k = 0; k < PER_THREAD; k++) {"]
    lines += ["        unsigned e = span.element(k);", "        if (e >= layout.count) continue;"]
    lines += [f"        int a[{rows + 1}];", "        chain_offsets(layout, e, a);"]
    lines += [f"        bool c{i} = {_within(i, row, 'a')};" for i, row in enumerate(bounds)]
    lines += [f"        float {', '.join([f'g{j}' for j in range(len(outputs))])};"]
    given_here = []
    for i, one in enumerate(inputs):
        place = f"{_all(one, 'c')} ? a[{one.row}] + shift{i} : 0" if one.bounds else _at(one.row)
        given_here.append(f"decode(load_bits(x{i}, {KINDS[one.dtype]}, {place}), {KINDS[one.dtype]})")
    sides = [f"c{i}" for i in range(len(bounds))]
    every = ", ".join([*given_here, *scalars, *sides, *[f"g{j}" for j in range(len(outputs))]])
    lines.append(f"        compute(layout.zero, {every});")
    lines += [f"        store_scalar(y{j}, {KINDS[one.dtype]}, {_at(one.row)}, g{j});" for j, one in enumerate(outputs)]
    return [*lines, "    }", "}"]


def _own(inputs: Sequence[Input], bounds: Sequence[int]) -> str:
    declared = [f"int low{i}, unsigned length{i}" for i in range(len(bounds))]
    return ", ".join([*declared, *[f"int shift{i}" for i, one in enumerate(inputs) if one.bounds]])


def _within(number: int, row: int, at: str) -> str:
    return f"unsigned({at}[{row}] - low{number}) < length{number}"


def _all(one: Input, name: str) -> str:
    return " && ".join([f"{name}{bound}" for bound in one.bounds])


def _first_and_second(row: int | None) -> str:
    return "int(span.first), int(span.second)" if row is None else f"a[{row}], b[{row}]"


def _at(row: int | None) -> str:
    return "int(e)" if row is None else f"a[{row}]"


def _bool(value: bool) -> str:
    return "true" if value else "false"
