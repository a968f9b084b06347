"""PrecisionPlan: in which dtypes the ops of a model run, why, and what that costs, as rows, tables and sentences."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field

from ..base.byte_sizes import bytes_in_words
from ..base.dtypes import LOW
from ..base.html import ShownText, ShowsItsText, heading, preformatted
from ..base.html import table as html_table
from ..core.op import ops
from ..core.policy import Cast, Policy
from .plan_row import REASONS, PlanRow
from .plan_table import HEAD, WIDTH, cells, joined, merged, signed_table, table


@dataclass(repr=False)
class PrecisionPlan(ShowsItsText):
    """What `plan` has found; print it for a table.

    policy: a Policy, or None for none. rows: of the forward, in the order in which modules first ran. backward: rows of
    the backward. gradient_casts, gradient_cast_bytes: casts of gradients in it. saved_float32: bytes kept for backward
    without autocast, None if that is not known or is what is planned. sources: by (op that computed a tensor, op that
    it was cast for), the number of casts and their bytes. notes: what is missing from the plan, and why.
    """

    policy: Policy | None
    rows: list[PlanRow] = field(default_factory=list)
    backward: list[PlanRow] = field(default_factory=list)
    gradient_casts: int = 0
    gradient_cast_bytes: int = 0
    saved_float32: int | None = None
    sources: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def total(self, name: str) -> int:
        """The sum over all rows of `calls`, `casts`, `cast_bytes`, `weight_casts`, `weight_bytes` or `saved`."""
        return sum(int(getattr(row, name)) for row in self.rows)

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int = WIDTH) -> str:
        """The plan as a table of at most `width` columns where that can be, and in words."""
        lines = [self._title(), ""]
        rows = merged([*self.rows, *self.backward])
        lines += [*table(rows, width), "", *_legend(rows, width)]
        return "\n".join([*lines, *self.sentences(), *(f"note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        shown = html_table(HEAD, map(cells, merged([*self.rows, *self.backward])))
        return heading(self._title()) + shown + preformatted("\n".join([*self.sentences(), *self.notes]))

    def _title(self) -> str:
        return "without autocast" if self.policy is None else repr(self.policy)

    def sentences(self) -> list[str]:
        """The plan in words."""
        products = [row for row in self.rows if row.op in ops and ops[row.op].cast is Cast.LOW]
        low = sum(row.calls for row in products if row.output in {dtype.name for dtype in LOW})
        calls = sum(row.calls for row in products)
        quantized = [row for row in products if ": forward " in row.why]  # see planning._reason
        names = ", ".join(dict.fromkeys(row.why.partition(":")[0] for row in quantized))
        more = f", {sum(row.calls for row in quantized)} of them on operands quantized by {names}" if quantized else ""
        found = [f"{low} of {calls} products and convolutions run in 16 bits{more}."] if calls else []
        kept = f"Kept for backward: {bytes_in_words(self.total('saved'))}, parameters not counted"
        found.append(f"{kept}; in float32 {bytes_in_words(self.saved_float32)}." if self.saved_float32 else f"{kept}.")
        casts, weights = self.total("casts"), self.total("weight_casts")
        if casts or weights:
            sizes = [bytes_in_words(self.total(name)) for name in ("cast_bytes", "weight_bytes")]
            of = f"{casts} of activations ({sizes[0]}), {weights} of weights ({sizes[1]}, cached)"
            found.append(f"Casts in the forward: {of}.")
        if self.gradient_casts:
            found.append(f"Casts of gradients: {self.gradient_casts} ({bytes_in_words(self.gradient_cast_bytes)}).")
        if self.sources:
            (source, sink), (count, size) = max(self.sources.items(), key=lambda item: item[1][1])
            times = f"{count} cast{'s' * (count != 1)}, {bytes_in_words(size)}"
            found.append(f"Most of it comes from {source} and goes to {sink}: {times}.{self._saving(source)}")
        return found

    def _saving(self, source: str) -> str:
        # What would avoid the casts of an op's float32 output, if the policy lets it answer in 16 bits.
        policy = self.policy
        if policy is None or source not in ops or policy.category(source) is not Cast.FP32:
            return ""
        cure = f'{source}="low" in the policy would store that output in 16 bits'
        return f" {cure}, but may add other casts: compare both plans."

    def differences(self, other: PrecisionPlan) -> list[tuple[PlanRow | None, PlanRow | None]]:
        """What `other` runs or keeps differently: the row of this plan and that of `other`, None where there is none.

        A row is that of an op in a module, with the dtypes of all its calls; of modules that run alike, one for all.
        """
        mine, others = (joined(merged([*p.rows, *p.backward])) for p in (self, other))
        pairs = [(mine.get(key), others.get(key)) for key in {**mine, **others}]
        return [pair for pair in pairs if len({r and (r.inputs, r.output, r.casts, r.saved) for r in pair}) > 1]

    def diff(self, other: PrecisionPlan, width: int = WIDTH) -> str:
        """`differences`, and both totals, as a table of at most `width` columns where that can be."""
        lines = [f"- {self._title()}", f"+ {other._title()}", ""]
        pairs = [zip("-+", pair, strict=True) for pair in self.differences(other)]
        rows = [(sign, row) for pair in pairs for sign, row in pair if row is not None]
        legend = _legend([row for _, row in rows], width)
        lines += [*signed_table(rows, width), "", *legend] if rows else ["nothing differs", ""]
        both = [(p.total("saved"), p.total("cast_bytes") + p.gradient_cast_bytes) for p in (self, other)]
        (saved, cast), (other_saved, other_cast) = [[bytes_in_words(size) for size in sizes] for sizes in both]
        lines.append(f"Kept for backward: {saved} -> {other_saved}.")
        return ShownText("\n".join([*lines, f"Cast, weights not counted: {cast} -> {other_cast}."]))


def _legend(rows: list[PlanRow], width: int) -> list[str]:
    """What the categories in the last column of a table of `rows` mean."""
    used = {row.category: row.why for row in rows if row.category and row.why == REASONS[row.category]}
    said = "; ".join(f"{name}: {why.removeprefix(f'{name}: ')}" for name, why in used.items())
    return [*textwrap.wrap(f"({said})", width), ""] if used else []
