"""`torch.utils.flop_counter`, by `ampkit.debug.FlopCounter`."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

from ....base.observe import Event
from ....core.module_path import current
from ....debug import FlopCounter
from ...refused import refused

__all__ = ["FlopCounterMode", "register_flop_formula"]

register_flop_formula = refused(
    "torch.utils.flop_counter.register_flop_formula", "products of ampkit are counted by their shapes"
)


class FlopCounterMode(FlopCounter):
    """Counts the operations of products in its block; with `display` it prints a table at the end, to `depth` modules.

    Ops have ampkit's names, and are counted in the module that runs them and in all above.
    """

    def __init__(self, mods: Any = None, depth: int = 2, display: bool = True, custom_mapping: Any = None):
        super().__init__()
        self.depth, self.display = depth, display
        self._counts: dict[str, Counter[str]] = {}

    def __enter__(self) -> FlopCounterMode:
        super().__init__()
        self._counts = {}
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self.display and not any(error):
            sys.stdout.write(f"{self.get_table()}\n")

    def _count(self, event: Event) -> None:
        before = self.total
        super()._count(event)
        if (found := self.total - before) and event.op is not None:
            call = current()
            parts = [] if call is None or call.model is None else [type(call.model).__name__, *call.path.split(".")]
            above = [".".join(parts[: n + 1]) for n in range(len(parts)) if parts[n]]
            for module in ("Global", *above):
                self._counts.setdefault(module, Counter())[event.op.name] += found

    def get_total_flops(self) -> int:
        """The operations of all products."""
        return self.total

    def get_flop_counts(self) -> dict[str, dict[str, int]]:
        """By module, "Global" for all, and by op."""
        return {module: dict(found) for module, found in self._counts.items()}

    def get_table(self, depth: int | None = None) -> str:
        """Module, operations and their share, a line each."""
        deepest, total = self.depth if depth is None else depth, max(self.total, 1)
        lines = [f"{'Module':40}{'FLOP':>16}{'% Total':>10}"]
        for module, found in self._counts.items():
            if module.count(".") < deepest:
                flops = sum(found.values())
                lines.append(f"{module:40}{flops:16}{flops / total:10.2%}")
                lines += [f" - {op:37}{count:16}{count / total:10.2%}" for op, count in found.items()]
        return "\n".join(lines)
