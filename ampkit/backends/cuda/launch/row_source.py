"""The kernel of a chain of elementwise functions and reductions of rows: its source.

    code, name = source(steps, inputs, scalars, outputs, numbers, shape)

A warp or a block goes through its row once for each reduction that needs the result of another one, and once more for
what needs the last one's. Arrays that several passes read stay in registers, as they are stored in memory; functions of
them are computed anew in each pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from ampkit.base.dtypes import DType, float32

from ..nvrtc import C_NAMES
from .chain_source import KINDS, NAMED, Step, computed
from .parameters import parameters

KEPT = 96  # registers of a thread for what several passes read; it is loaded again, mostly from a cache, beyond
SCATTERED, WIDE, REPEATED = range(3)  # how eight neighbours of an input are loaded: one by one, at once, as one value
GIVEN = 3  # an input that is not loaded: what a norm has computed, `v`


class RowStep(NamedTuple):
    """An elementwise function. whole: whether it has values for each element of a row, not one for the row.

    Among the operands, `w1` is the input 1 of those that have one value for each row.
    """

    step: Step
    whole: bool


class Reduction(NamedTuple):
    """A row's result. term: of reductions.h. operand: what is reduced; value: the number of the result, and its dtype.

    divisor: the name of the number that it is divided by; root: whether its root is taken then.
    """

    term: str
    operand: str
    value: tuple[int, DType]
    divisor: str
    root: bool


class RowArray(NamedTuple):
    """An array of whole rows that is read. row: of its strides, None for one in row-major order. load: see above."""

    dtype: DType
    row: int | None
    load: int


class RowScalar(NamedTuple):
    """An array with one value for each row, or one for all (single)."""

    dtype: DType
    single: bool


class RowShape(NamedTuple):
    """How a row is read. vector: values per access, 8 or 1; accesses: of a thread; block: whether a row has a block."""

    vector: int
    accesses: int
    block: bool


class Pass(NamedTuple):
    """What is computed in one pass over a row: the values `reduced`, then `stored`, from inputs and what rows have."""

    steps: tuple[RowStep, ...]
    reductions: tuple[Reduction, ...]
    stored: tuple[int, ...]  # places among the outputs
    inputs: tuple[int, ...]
    given: tuple[str, ...]  # row values and scalars
    results: tuple[str, ...]


@lru_cache(1024)
def source(
    steps: tuple[RowStep | Reduction, ...],
    inputs: tuple[RowArray, ...],
    scalars: tuple[RowScalar, ...],
    outputs: tuple[tuple[int, DType], ...],
    numbers: int,
    shape: RowShape,
) -> tuple[str, str]:
    """The code of a kernel and its name. outputs: the number of a value, and its dtype.

    Its parameters: see parameters.py.
    """
    names = [_title(step) for step in steps]
    name = "_".join(["row", *names[:NAMED], *([f"and_{len(names) - NAMED}"] if len(names) > NAMED else [])])
    return Writer(steps, inputs, scalars, outputs, numbers, shape).written(name), name


def _title(step: RowStep | Reduction) -> str:
    if isinstance(step, Reduction):
        return f"{step.term}_of_rows"
    return f"{step.step.name}{'_backward' if step.step.backward else ''}"


class Writer:
    def __init__(
        self,
        steps: Sequence[RowStep | Reduction],
        inputs: Sequence[RowArray],
        scalars: Sequence[RowScalar],
        outputs: Sequence[tuple[int, DType]],
        numbers: int,
        shape: RowShape,
    ):
        self.steps, self.inputs, self.scalars, self.outputs = steps, inputs, scalars, outputs
        self.numbers, self.shape = numbers, shape
        self.level: dict[str, int] = {}  # of a value: how many reductions it needs, one after the other
        self.made: dict[str, RowStep | Reduction] = {}
        for step in steps:
            if isinstance(step, Reduction):
                found = {f"v{step.value[0]}": self.level.get(step.operand, 0) + 1}
            else:
                level = max([self.level.get(one, 0) for one in step.step.operands], default=0)
                found = {f"v{value[0]}": level for value in step.step.values if value is not None}
            self.level |= found
            self.made |= dict.fromkeys(found, step)
        self.passes = [self._pass(level) for level in range(1 + max(self.level.values(), default=0))]
        self.rows = 1 + max([-1 if x.row is None else x.row for x in inputs], default=-1)
        self.kept = self._kept()

    def output_name(self, place: int) -> str:
        """The value that an output stores."""
        return f"v{self.outputs[place][0]}"

    def _is_whole(self, name: str) -> bool:
        step = self.made.get(name)
        return name[0] == "x" if step is None else isinstance(step, RowStep) and step.whole

    def _pass(self, level: int) -> Pass:
        found = [one for one in self.steps if isinstance(one, Reduction)]
        reductions = [one for one in found if self.level.get(one.operand, 0) == level]
        stored = [
            i for i, (v, _) in enumerate(self.outputs) if self._is_whole(f"v{v}") and self.level[f"v{v}"] == level
        ]
        return self.needing([one.operand for one in reductions], stored, reductions)

    def needing(self, first: list[str], stored: list[int], reductions: Sequence[Reduction] = ()) -> Pass:
        """What computes the values `first`, and then the outputs `stored`."""
        results = [*first, *[self.output_name(i) for i in stored]]
        needed, read, given = dict[int, RowStep](), dict[int, None](), dict[str, None]()
        open_ = list(results)
        while open_:
            name = open_.pop()
            step = self.made.get(name)
            if name[0] == "x":
                read[int(name[1:])] = None
            elif isinstance(step, RowStep) and step.whole:
                if id(step) not in needed:
                    needed[id(step)] = step
                    open_ += step.step.operands
            elif name[0] != "s":
                given[name] = None
        ordered = tuple([one for one in self.steps if id(one) in needed and isinstance(one, RowStep)])
        return Pass(ordered, tuple(reductions), tuple(stored), tuple(sorted(read)), tuple(given), tuple(results))

    def _kept(self) -> set[int]:
        """Inputs that stay in registers."""
        found, left = set[int](), KEPT
        counts = {i: sum(i in one.inputs for one in self.passes) for i in range(len(self.inputs))}
        for i, one in enumerate(self.inputs):
            registers = self.shape.accesses * (8 if one.dtype == float32 else 4)
            if counts[i] > 1 and one.load == WIDE and self.shape.vector > 1 and registers <= left:
                found.add(i)
                left -= registers
        return found

    # writing

    def written(self, name: str) -> str:
        lines = ['#include "include/row_chain.cuh"', ""]
        for number, one in enumerate(self.passes):
            if one.results:
                lines += [*self.function(number, one), ""]
        dtypes = [dtype for _, dtype in self.outputs], [x.dtype for x in self.inputs], [z.dtype for z in self.scalars]
        given = parameters(*dtypes, self.rows, self.numbers)
        lines.append(f"__global__ void __launch_bounds__(BLOCK) {name}({given}) {{")
        lines += [f"    Row<{_bool(self.shape.block)}> row;"]
        lines += ["    unsigned zero = layout.zero, cols = layout.vector, start = row.index * cols;"]
        lines.append("    if (start >= layout.count) return;  // the whole warp: no barrier is missed")
        for i, scalar in enumerate(self.scalars):
            at, kind = "0" if scalar.single else "int(row.index)", KINDS[scalar.dtype]
            lines.append(f"    float w{i} = decode(load_bits(z{i}, {kind}, {at}), {kind});")
        lines += [f"    Packed p{i}[{self.shape.accesses}];" for i in sorted(self.kept)]
        loaded = set[int]()
        lines += self._of_rows(0)
        for number, one in enumerate(self.passes):
            if one.results:
                lines += self._loop(number, one, loaded)
            lines += self._of_rows(number + 1)
        places = [(j, value) for j, (value, _) in enumerate(self.outputs) if not self._is_whole(f"v{value}")]
        if places:
            lines.append("    if (row.lane) return;")
        for j, value in places:
            lines.append(f"    store_scalar(y{j}, {KINDS[self.outputs[j][1]]}, int(row.index), v{value});")
        return "\n".join([*lines, "}"]) + "\n"

    def _of_rows(self, level: int) -> list[str]:
        """Functions of what rows have, at this level."""
        lines = []
        for number, one in enumerate(self.steps):
            if isinstance(one, RowStep) and not one.whole:
                operands = one.step.operands
                if max([self.level.get(name, 0) for name in operands], default=0) == level:
                    lines += computed(number, one.step)
        return lines

    def function(self, number: int, one: Pass) -> list[str]:
        given = ["unsigned zero", *[f"float x{i}" for i in one.inputs], *[f"float {name}" for name in one.given]]
        given += [f"float s{i}" for i in range(self.numbers)]
        results = [f"float& y{j}" for j in range(len(one.results))]
        lines = [f"__device__ __forceinline__ void pass{number}({', '.join([*given, *results])}) {{"]
        for step in one.steps:
            lines += computed(self.steps.index(step), step.step)
        return [*lines, *[f"    y{j} = {name};" for j, name in enumerate(one.results)], "}"]

    def _call(self, number: int, one: Pass, inputs: Iterable[str], results: Iterable[str]) -> str:
        numbers = [f"s{i}" for i in range(self.numbers)]
        return f"pass{number}({', '.join(['zero', *inputs, *one.given, *numbers, *results])});"

    def single(self, number: int, one: Pass, results: Sequence[str]) -> list[str]:
        """The values of a pass at the element `e`."""
        inputs = []
        for i in one.inputs:
            kind, row = KINDS[self.inputs[i].dtype], self.inputs[i].row
            if self.inputs[i].load == GIVEN:
                inputs.append(f"handed_on<{kind}>(v[0], zero)")
                continue
            inputs.append(f"decode(load_bits(x{i}, {kind}, {'int(e)' if row is None else f'a[{row}]'}), {kind})")
        lines = [f"int a[{self.rows + 1}];", "chain_offsets(layout, e, a);", f"float {', '.join(results)};"]
        return [*lines, self._call(number, one, inputs, results)]

    def _loop(self, number: int, one: Pass, loaded: set[int]) -> list[str]:
        """One pass over the row, and the results of its reductions."""
        vector = self.shape.vector
        totals = [f"t{_number(each.value)}" for each in one.reductions]
        lines = []
        for total, each in zip(totals, one.reductions, strict=True):
            lines += [f"    float {total}[{vector}];", f"    clear<terms::{each.term}>({total});"]
        if vector == 1:
            names = [f"g{j}" for j in range(len(one.results))]
            lines += ["#pragma unroll 1", "    for (unsigned col = row.lane; col < cols; col += row.lanes) {"]
            body = ["unsigned e = start + col;", *self.single(number, one, names)]
            for total, each, name in zip(totals, one.reductions, names, strict=False):
                body.append(f"float one_{total}[1] = {{{name}}};")
                body.append(f"accumulate<terms::{each.term}>({total}, one_{total});")
            for place, name in zip(one.stored, names[len(totals) :], strict=True):
                body.append(f"store_scalar(y{place}, {KINDS[self.outputs[place][1]]}, int(e), {name});")
        else:
            lines += ["#pragma unroll", f"    for (int k = 0; k < {self.shape.accesses}; k++) {{"]
            body = ["unsigned col = (k * row.lanes + row.lane) * 8, e = start + col;", "if (col >= cols) continue;"]
            body += self.eight(number, one, loaded)
        lines += [f"        {line}" for line in body]
        lines.append("    }")
        for place, (total, each) in enumerate(zip(totals, one.reductions, strict=True)):
            names = [f"g{j}" for j in range(len(one.results))]
            lines.append(f"    auto again_{total} = [&](unsigned col) {{")
            lines += [f"        {line}" for line in ["unsigned e = start + col;", *self.single(number, one, names)]]
            lines += [f"        return g{place};", "    };"]
            kind = f"{_bool(self.shape.block)}, terms::{each.term}, {C_NAMES[each.value[1]]}"
            given = f"row, {total}, cols, {each.divisor}, {_bool(each.root)}, again_{total}"
            found = f"handed_on<{KINDS[each.value[1]]}>(row_result<{kind}>({given}), zero)"
            lines.append(f"    float v{each.value[0]} = {found};")
        return lines

    def eight(self, number: int, one: Pass, loaded: set[int]) -> list[str]:
        lines = [f"int a[{self.rows + 1}];", "chain_offsets(layout, e, a);"]
        for i in one.inputs:
            each = self.inputs[i]
            kind, at = KINDS[each.dtype], "int(e)" if each.row is None else f"a[{each.row}]"
            if each.load in (SCATTERED, GIVEN):
                continue
            name = f"p{i}[k]" if i in self.kept else f"p{i}"
            if i not in loaded:
                declared = name if i in self.kept else f"Packed {name}"
                ends = f"{at}, {at}{'' if each.load == REPEATED else ' + 4'}"
                lines.append(f"{declared} = Packed::load(x{i}, {kind}, true, {_bool(each.load == REPEATED)}, {ends});")
            if i in self.kept:
                loaded.add(i)
        for i in one.inputs:
            each = self.inputs[i]
            lines.append(f"float f{i}[8];")
            if each.load == GIVEN:
                found = f"handed_on<{KINDS[each.dtype]}>(v[j], zero)"
                lines += ["#pragma unroll", f"for (int j = 0; j < 8; j++) f{i}[j] = {found};"]
            elif each.load == SCATTERED:
                at = "int(e + j)" if each.row is None else f"b[{each.row}]"
                found = f"decode(load_bits(x{i}, {KINDS[each.dtype]}, {at}), {KINDS[each.dtype]})"
                lines += ["#pragma unroll", "for (int j = 0; j < 8; j++) {", f"    int b[{self.rows + 1}];"]
                lines += ["    chain_offsets(layout, e + j, b);", f"    f{i}[j] = {found};", "}"]
            else:
                name = f"p{i}[k]" if i in self.kept else f"p{i}"
                lines.append(f"{name}.unpack({KINDS[each.dtype]}, {_bool(each.load == REPEATED)}, f{i});")
        names = [f"g{j}" for j in range(len(one.results))]
        lines += [f"float {name}[8];" for name in names]
        call = self._call(number, one, [f"f{i}[j]" for i in one.inputs], [f"{name}[j]" for name in names])
        lines += ["#pragma unroll", f"for (int j = 0; j < 8; j++) {call}"]
        for reduction, name in zip(one.reductions, names, strict=False):
            lines.append(f"accumulate<terms::{reduction.term}>(t{_number(reduction.value)}, {name});")
        for place, name in zip(one.stored, names[len(names) - len(one.stored) :], strict=True):
            kind = KINDS[self.outputs[place][1]]
            lines.append(f"Packed::store(y{place}, {kind}, true, int(e), int(e) + 4, {name});")
        return lines


def _number(value: tuple[int, DType]) -> int:
    return value[0]


def _bool(value: bool) -> str:
    return "true" if value else "false"
