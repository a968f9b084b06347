"""PlanRow: the calls of an op in a module that run in the same dtypes, and why they do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

# Why an op of a cast category runs in its dtypes, by the category's value.
REASONS = {
    "low": "low: exact products, float32 sums",
    "float32": "float32: needs its range or precision",
    "widest": "widest of its inputs",
    "keep": "as its input",
    "banned": "",
}


@dataclass(frozen=True)
class PlanRow:
    """The calls of an op in a module that have the same dtypes.

    path: of the module; "(model)" for the outermost, "(outside modules)" for none. op: its name. calls: how many.
    inputs: the dtypes of its tensors before casts, floating-point ones only. output: the dtype of its result. category:
    its cast category under the policy, None without one. why: the reason for these dtypes. casts: of operands that were
    computed, and their bytes. weight_casts: of parameters, which are cached until the parameter changes. saved: bytes
    of memory kept for backward that is not a parameter's, counted where it is first kept. saved_float32: what the same
    op of the module keeps without autocast. phase: "forward", or "backward": then `inputs` are the dtypes of the
    gradients of its outputs, and `output` those of the gradients of its inputs, "float16, float32".
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
    saved_float32: int = 0
    phase: str = "forward"

    @property
    def key(self) -> tuple[Any, ...]:
        """What rows are merged by."""
        return self.phase, self.path, self.op, self.inputs, self.output, self.category, self.why

    @property
    def why_in_short(self) -> str:
        """The name of its category, where that is the reason; else the reason."""
        return self.category if self.category and self.why == REASONS[self.category] else self.why

    def plus(self, other: PlanRow) -> PlanRow:
        """This row and another one of the same op as one, whose counts and bytes are their sums."""
        names = ("calls", "casts", "cast_bytes", "weight_casts", "weight_bytes", "saved", "saved_float32")
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in names})
