"""The search for a policy below 16 bits: the laboratory's errors, a budget, and the policy measured as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...base.byte_sizes import bytes_in_words
from ...base.errors import ArgumentError
from ...base.html import ShowsItsText
from ...core.policy import Policy
from ...core.policy.recipe import QuantizationRecipe
from .formats import FORMATS, Laboratory, lab
from .sensitivity import Evaluation, Loss, Sensitivity, sensitivities
from .tuning import Progress, as_toml, percent, solver_in_words, within


@dataclass(frozen=True, repr=False)
class FormatTuning(ShowsItsText):
    """What `tune_formats` found; str() is a table.

    policy: the one to take. found: what the laboratory measured. chosen: the recipe of each layer that is quantized.
    error, memory: the budgets, of which one is None. predicted: the errors of the chosen, added up. measured: their
    error together. solver: "milp" or "greedy".
    """

    policy: Policy
    found: Laboratory
    chosen: dict[str, str]
    error: float | None
    memory: float | None
    predicted: float
    measured: float
    solver: str

    @property
    def work(self) -> float:
        """The products' work relative to that in 16 bits, see `Cost`."""
        return self._relative(0)

    @property
    def kept(self) -> float:
        """What the layers keep for the backward, relative to 16 bits."""
        return self._relative(1)

    def _relative(self, which: int) -> float:
        wide = self.found.wide
        by_recipe = {(row.layer, row.recipe): row.cost for row in self.found.layers}
        costs = [by_recipe[layer, self.chosen[layer]] if layer in self.chosen else cost for layer, cost in wide.items()]
        return sum(cost[which] for cost in costs) / (sum(cost[which] for cost in wide.values()) or 1)

    def tightened(self, error: float) -> Policy:
        """The policy for another budget of the loss, from what was measured."""
        return self.found.policy(error)

    def toml(self) -> str:
        """The [amp] section of a recipe that runs the policy."""
        return as_toml(self.policy)

    def summary(self) -> str:
        """A line on the search: its solver, the errors, the work and the memory, and the budget."""
        how = solver_in_words(self.solver)
        budget = f"of at most {percent(self.error)}" if self.error is not None else "the least"
        whole = sum(cost.kept for cost in self.found.wide.values())
        kept = f"layers keep {bytes_in_words(self.kept * whole)} for backward"
        limit = "" if self.memory is None else f", of at most {self.memory:.0%}"
        return (
            f"searched {how}: errors add up to {percent(self.predicted)}, together {percent(self.measured)}, {budget}; "
            f"the products' work is {self.work:.0%} of that in 16 bits, {kept}, {self.kept:.0%}{limit}"
        )

    def __str__(self) -> str:
        width = max(map(len, self.found.wide))
        lines = [f"{layer:{width}}  {self.chosen.get(layer, self.found.dtype)}" for layer in self.found.wide]
        return "\n".join([str(self.found), "", *lines, "", self.summary(), repr(self.policy)])


def tune_formats(
    model: Any, batches: Iterable[Any], loss: Loss, dtype: Any = "bfloat16", *,
    formats: Sequence[str | QuantizationRecipe] = FORMATS, error: float | None = None, memory: float | None = None,
    show: Callable[[Progress], None] = lambda progress: None,
) -> FormatTuning:  # fmt: skip
    """Which layer to run by which recipe below 16 bits: the least work within a budget.

    model, batches, loss, dtype, formats, show: as `lab` has them, whose errors it takes. error: relative, of the loss
    against the 16-bit policy, 0.01 without `memory`; the least work within it is searched, see `Cost`. memory: instead,
    the share that layers may keep for the backward of what they keep in 16 bits; the least error within it is searched.
    The policy found is measured as a whole; where it errs more or less than predicted, the search is repeated with
    another limit, twice at most. Raises what `lab` and `Laboratory.policy` raise.
    """
    given = [*batches]
    if error is None and memory is None:
        error = 0.01
    if error is not None and memory is not None:
        raise ArgumentError("debug.tune_formats", "a budget of the loss or of memory", "both")
    found = lab(model, given, loss, dtype, formats=formats, show=show)
    evaluation, base = Evaluation(model, loss), Policy(found.dtype)
    pairs = [batch if isinstance(batch, (tuple, list)) else (batch,) for batch in given]

    def find(limit: float) -> tuple[Policy, dict[str, str], str]:
        return found.choice(limit, None) if memory is None else found.choice(None, memory)

    def measure(choice: tuple[Policy, dict[str, str], str]) -> Sensitivity:
        return sensitivities(evaluation, pairs, [(base, choice[0])], lambda done: None)[0]

    show(Progress("search", 0, 1))
    if error is not None:
        choice, measured = within(error, find, measure)
    else:
        choice = find(0.0)
        measured = measure(choice)
    show(Progress("search", 1, 1))
    policy, chosen, solver = choice
    errors = {(row.layer, row.recipe): row.sensitivity.error for row in found.layers}
    predicted = sum(errors[each] for each in chosen.items())
    return FormatTuning(policy, found, chosen, error, memory, predicted, measured.error, solver)
