"""PrecisionPlan: in which dtypes the ops of a model run, why, and what that costs, as rows, tables and sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from ..base.dtypes import LOW
from ..core.op import ops
from ..core.policy import Cast, Policy


@dataclass(frozen=True)
class PlanRow:
    """The calls of an op in a module that have the same dtypes.

    path: of the module; "(model)" for the outermost, "(outside modules)" for none. op: its name. calls: how many.
    inputs: the dtypes of its tensors before casts, floating-point ones only. output: the dtype of its result. category:
    its cast category under the policy, None without one. why: the reason for these dtypes. casts: of operands that were
    computed, and their bytes. weight_casts: of parameters, which are cached until the parameter changes. saved: bytes
    of memory kept for backward that is not a parameter's, counted where it is first kept.
    """

    path: str
    op: str
    inputs: tuple[str, ...]
    output: str
    category: str | None
    why: str
    calls: int = 1
    casts: int = 0
    cast_bytes: int = 0
    weight_casts: int = 0
    weight_bytes: int = 0
    saved: int = 0

    @property
    def key(self) -> tuple[Any, ...]:
        """What rows are merged by."""
        return self.path, self.op, self.inputs, self.output, self.category, self.why

    def plus(self, other: PlanRow) -> PlanRow:
        """Both rows as one."""
        names = ("calls", "casts", "cast_bytes", "weight_casts", "weight_bytes", "saved")
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass
class PrecisionPlan:
    """What `plan` has found; print it for a table.

    policy: a Policy, or None for none. rows: of the forward, in the order in which modules first ran. gradient_casts,
    gradient_cast_bytes: casts of gradients in the backward. sources: by (op that computed a tensor, op that it was cast
    for), the number of casts and their bytes. notes: what is missing from the plan, and why.
    """

    policy: Policy | None
    rows: list[PlanRow] = field(default_factory=list)
    gradient_casts: int = 0
    gradient_cast_bytes: int = 0
    sources: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def total(self, name: str) -> int:
        """The sum over all rows of `calls`, `casts`, `cast_bytes`, `weight_casts`, `weight_bytes` or `saved`."""
        return sum(int(getattr(row, name)) for row in self.rows)

    def __str__(self) -> str:
        lines = [f"{self.policy!r}" if self.policy is not None else "without autocast", ""]
        lines += _table(merged(self.rows))
        return "\n".join([*lines, "", *self.sentences(), *(f"note: {note}" for note in self.notes)])

    def sentences(self) -> list[str]:
        """The plan in words."""
        products = [row for row in self.rows if row.op in _products()]
        low, calls = sum(row.calls for row in products if _is_low(row.output)), sum(row.calls for row in products)
        found = [f"{low} of {calls} products and convolutions run in 16 bits."] if calls else []
        found.append(f"Kept for backward: {_bytes(self.total('saved'))}, parameters not counted.")
        casts, weights = self.total("casts"), self.total("weight_casts")
        if casts or weights:
            sizes = [_bytes(self.total(name)) for name in ("cast_bytes", "weight_bytes")]
            of = f"{casts} of activations ({sizes[0]}), {weights} of weights ({sizes[1]}, cached)"
            found.append(f"Casts in the forward: {of}.")
        if self.gradient_casts:
            found.append(f"Casts of gradients: {self.gradient_casts} ({_bytes(self.gradient_cast_bytes)}).")
        if self.sources:
            (source, sink), (count, size) = max(self.sources.items(), key=lambda item: item[1][1])
            times = f"{count} cast{'s' * (count != 1)}, {_bytes(size)}"
            found.append(f"Most of it comes from {source} and goes to {sink}: {times}.{self._saving(source)}")
        return found

    def _saving(self, source: str) -> str:
        # What would avoid the casts of an op's float32 output, if the policy lets it answer in 16 bits.
        policy = self.policy
        if policy is None or source not in ops or policy.category(source) is not Cast.FP32:
            return ""
        cure = f'{source}="low" in the policy would store that output in 16 bits'
        return f" {cure}, but may add other casts: compare both plans."

    def diff(self, other: PrecisionPlan) -> str:
        """What `other` runs differently, and both totals, as a table."""
        mine, others = ({(r.path, r.op): r for r in _joined(merged(p.rows))} for p in (self, other))
        lines = [f"- {self.policy!r}", f"+ {other.policy!r}", ""]
        rows = []
        for key in {**mine, **others}:
            pair = [("-", mine.get(key)), ("+", others.get(key))]
            if len({row and (row.inputs, row.output, row.casts, row.saved) for _, row in pair}) > 1:
                rows += [(sign, *_cells(row)) for sign, row in pair if row is not None]
        lines += _aligned([("", *_HEAD), *rows]) if rows else ["nothing differs"]
        both = [(p.total("saved"), p.total("cast_bytes") + p.gradient_cast_bytes) for p in (self, other)]
        (saved, cast), (other_saved, other_cast) = both
        lines += ["", f"Kept for backward: {_bytes(saved)} -> {_bytes(other_saved)}."]
        return "\n".join([*lines, f"Cast, weights not counted: {_bytes(cast)} -> {_bytes(other_cast)}."])


def _products() -> set[str]:
    return {name for name, op in ops.items() if op.cast is Cast.LOW}


def _is_low(dtype: str) -> bool:
    return dtype in {low.name for low in LOW}


# rows and tables


def merge(rows: Iterable[PlanRow]) -> Iterable[PlanRow]:
    found: dict[tuple[Any, ...], PlanRow] = {}
    for row in rows:
        found[row.key] = found[row.key].plus(row) if row.key in found else row
    return found.values()


def merged(rows: Iterable[PlanRow]) -> list[PlanRow]:
    """Rows in which `*` stands for the numbers of modules that run alike: blocks.*.attn."""
    return list(merge(replace(row, path=re.sub(r"(?<![^.])\d+(?![^.])", "*", row.path)) for row in rows))


def _joined(rows: Iterable[PlanRow]) -> list[PlanRow]:
    # One row for each op of a module, with the dtypes of all its calls.
    found: dict[tuple[str, str], PlanRow] = {}
    for row in rows:
        held = found.get((row.path, row.op))
        if held is not None:
            words: Any = {name: _both(getattr(held, name), getattr(row, name)) for name in ("output", "why")}
            row = replace(held.plus(row), inputs=tuple(dict.fromkeys((*held.inputs, *row.inputs))), **words)
        found[row.path, row.op] = row
    return list(found.values())


def _both(one: str, other: str) -> str:
    return one if other in one else f"{one}, {other}"


_HEAD = ("module", "op", "calls", "dtypes", "casts", "saved", "why")


def _table(rows: Iterable[PlanRow]) -> list[str]:
    return _aligned([_HEAD, *map(_cells, rows)])


def _cells(row: PlanRow) -> tuple[str, ...]:
    inputs = "/".join(dict.fromkeys(map(_short, row.inputs))) or "-"
    output = "/".join(map(_short, row.output.split(", ")))
    casts = f"{row.casts}" + (f"+{row.weight_casts}w" if row.weight_casts else "")
    return row.path, row.op, str(row.calls), f"{inputs} -> {output}", casts, _bytes(row.saved), row.why


def _short(dtype: str) -> str:
    return dtype.replace("bfloat", "bf").replace("float", "f")


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.3g} {unit}" if size else "0"
        size /= 1000
    raise AssertionError


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
