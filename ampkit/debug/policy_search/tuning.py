"""The policy search: what of a model runs in 16 bits, so that it is fast and its loss stays near that of float32."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from ... import backends
from ...base.errors import ArgumentError
from ...base.html import ShowsItsText
from ...base.search import search
from ...core.policy import Policy, get_autocast_dtype, low
from ..repeat.unchanged import unchanged
from .choices import Choice, Choices, policy_of
from .cost import Cost, costs, step_times
from .sensitivity import Evaluation, Loss, Sensitivity, sensitivities

_Found = TypeVar("_Found")
_RETRIES = 2  # searches with another limit, where the choices together err more or less than they do one by one
_EARNED = 0.98  # of the time of a simpler policy: what a longer one may take at most


class Progress(NamedTuple):
    """How far a stage of the search is: `done` of `total` forwards and backwards."""

    stage: str
    done: int
    total: int


class Row(NamedTuple):
    """A choice: what it changes alone in 16 bits, what it saves, and whether the policy found runs it in 16 bits."""

    choice: Choice
    sensitivity: Sensitivity
    cost: Cost
    low: bool


class Timed(NamedTuple):
    """A whole policy, None for float32: its error against float32, and the seconds of its steps, taken in turns."""

    name: str
    policy: Policy | None
    error: float
    times: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """The median of a step."""
        return statistics.median(self.times)

    def speed(self, other: Timed) -> tuple[float, float, float]:
        """How many times as fast as `other` it is: the first quartile, the median and the third, of pairs of steps."""
        ratios = [
            theirs / mine if mine < math.inf else 0.0 for mine, theirs in zip(self.times, other.times, strict=False)
        ]
        low, middle, high = statistics.quantiles(ratios * 2 if len(ratios) == 1 else ratios, n=4, method="inclusive")
        return low, middle, high


@dataclass(frozen=True, repr=False)
class Tuning(ShowsItsText):
    """What `tune` found.

    policy: the one to take, None for float32; note: one line that says why. rows: the choices, those that save the most
    first. policies: float32, the default policy and what the search found, where it is another one, each measured as a
    whole. error: the limit. predicted: the sum of the errors of the choices that the search runs in 16 bits. measured:
    their error together. solver: "milp" or "greedy". str() is a table.
    """

    policy: Policy | None
    note: str
    rows: tuple[Row, ...]
    policies: tuple[Timed, ...]
    error: float
    predicted: float
    measured: float
    solver: str

    def tightened(self, error: float) -> Policy | None:
        """The policy that the search finds for another limit, from what was measured; None for float32."""
        choices = [row.choice for row in self.rows]
        values, errors = [row.cost.value for row in self.rows], [row.sensitivity.error for row in self.rows]
        taken, _ = search(values, errors, error)
        low = [choice for choice, is_low in zip(choices, taken, strict=True) if is_low]
        default = self.policies[1].policy
        return None if default is None else policy_of(choices, low, default.low_dtype)

    def toml(self) -> str:
        """The [amp] section of a recipe that runs the policy."""
        return as_toml(self.policy)

    def summary(self) -> str:
        """A line on the search: its solver, the errors of what it runs in 16 bits, and the limit."""
        errors = f"errors add up to {percent(self.predicted)}, together {percent(self.measured)}"
        return f"searched {solver_in_words(self.solver)}: {errors}, of at most {percent(self.error)}"

    def __str__(self) -> str:
        dtype = self.policies[1].policy.dtype.name if self.policies[1].policy else ""
        lines = [f"{'in 16 bits':44}{'error':>11}{'saves ms':>10}{'saves MB':>10}  found"]
        for choice, found, spent, taken in self.rows:
            saved = f"{spent.seconds * 1e3:10.3f}{spent.bytes / 1e6:10.2f}"
            lines.append(f"{choice.name:44.43}{percent(found.error):>11}{saved}  {dtype if taken else 'float32'}")
        lines += ["", f"{'':44}{'error':>11}{'ms':>10}"]
        lines += [f"{each.name:44}{percent(each.error):>11}{each.seconds * 1e3:10.2f}" for each in self.policies]
        lines += [self.summary(), self.note]
        return "\n".join([*lines, repr(self.policy) if self.policy else "float32, without autocast"])


def tune(
    model: Any,
    batches: Iterable[Any],
    loss: Loss,
    dtype: Any = None,
    *,
    error: float = 0.01,
    show: Callable[[Progress], None] = lambda progress: None,
) -> Tuning:
    """The fastest policy on this machine whose error against float32 is at most `error`.

    batches: a few that the model trains on, tuples of Tensors. loss: loss(model, *batch) -> Tensor [], the mean loss of
    a batch, without autocast. dtype: bfloat16 or float16; by default the one autocast uses on the model's device.
    error: relative, of the loss (see Sensitivity.error). show: called as it proceeds.
    Each choice alone in 16 bits is compared with float32 on every batch, its time is profiled on the first one, and a
    0/1 programme takes those that save the most: by SciPy's milp, or greedily where SciPy is not installed. The policy
    is then measured as a whole; where it errs more or less than predicted, the search is repeated with another limit,
    twice at most. The model, its buffers, its gradients and the default random stream stay as they are.
    Raises ArgumentError without a batch, for an `error` that is not positive and for a model of which nothing can run
    in 16 bits, DTypeError for another dtype or parameters that are not float32, NonFiniteError if float32 is not
    finite, StateError if `loss` enters autocast itself.
    """
    if not (isinstance(error, (int, float)) and 0 < error < math.inf):
        raise ArgumentError("debug.tune", "an error above 0", repr(error))
    given = [batch if isinstance(batch, (tuple, list)) else (batch,) for batch in batches]
    if not given:
        raise ArgumentError("debug.tune", "at least one batch", "none")
    evaluation = Evaluation(model, loss)
    choices = _choices(evaluation, given[0], dtype)
    alone = choices.alone()
    found = sensitivities(
        evaluation, given, alone, lambda done: show(Progress("sensitivity", done, len(alone) * len(given)))
    )
    errors = dict(zip(choices.all, found, strict=True))
    table = costs(evaluation, choices, given[0], lambda *at: show(Progress("cost", *at)))
    show(Progress("search", 0, 1))
    low, measured, solver = _searched(evaluation, given, choices, errors, table, error)
    show(Progress("search", 1, 1))
    policies = _policies(evaluation, given, choices, (choices.policy(low), measured), show)
    best, note = decide(error, policies)
    rows = [Row(choice, errors[choice], table[choice], choice in low) for choice in choices.all]
    rows.sort(key=lambda row: -row.cost.value)
    predicted = sum(errors[choice].error for choice in low)
    return Tuning(best.policy, note, tuple(rows), tuple(policies), error, predicted, measured.error, solver)


def _choices(evaluation: Evaluation, batch: Sequence[Any], dtype: Any) -> Choices:
    model = evaluation.model
    if dtype is None:
        device = next((backends.backend_of(p.array).name for p in model.parameters()), "cpu")
        dtype = get_autocast_dtype(device)
    wanted = low(dtype, "debug.tune")
    with unchanged(model):
        choices = Choices(model, lambda: evaluation.loss(model, *batch), wanted)
    if not choices.all:
        got = "none: its ops run in the dtype of their inputs, float32"
        raise ArgumentError("debug.tune", "a model with an op that autocast can run in 16 bits", got)
    return choices


def _policies(
    evaluation: Evaluation,
    batches: Sequence[Any],
    choices: Choices,
    found: tuple[Policy | None, Sensitivity],
    show: Callable[[Progress], None],
) -> list[Timed]:
    """float32, the default policy and the one found, if it is another one, with their times."""
    default = Policy(choices.dtype)
    measured = [("float32", None, 0.0), ("default", default, evaluation.sensitivity(batches, default).error)]
    if found[0] not in (None, default):
        measured.append(("found", found[0], found[1].error))
    times = step_times(evaluation, batches[0], [each[1] for each in measured], lambda *at: show(Progress("time", *at)))
    return [Timed(*each, tuple(spent)) for each, spent in zip(measured, times, strict=True)]


def _searched(
    evaluation: Evaluation,
    batches: Sequence[Any],
    choices: Choices,
    errors: Mapping[Choice, Sensitivity],
    table: Mapping[Choice, Cost],
    error: float,
) -> tuple[list[Choice], Sensitivity, str]:
    """The choices to run in 16 bits, their sensitivity together, and the solver."""
    values, alone = [table[c].value for c in choices.all], [errors[c].error for c in choices.all]

    def find(limit: float) -> tuple[list[bool], str]:
        return search(values, alone, limit)

    def low(found: tuple[list[bool], str]) -> list[Choice]:
        return [choice for choice, is_low in zip(choices.all, found[0], strict=True) if is_low]

    def measure(found: tuple[list[bool], str]) -> Sensitivity:
        policy = choices.policy(low(found))
        return evaluation.sensitivity(batches, policy) if policy else Sensitivity(0.0, 0.0)

    found, measured = within(error, find, measure)
    return low(found), measured, found[1]


def within(
    error: float, find: Callable[[float], _Found], measure: Callable[[_Found], Sensitivity]
) -> tuple[_Found, Sensitivity]:
    """What `find` finds for a limit of errors that add up, so that their error together is at most `error`.

    The first limit is `error`. Together choices may err more than one by one, or less, as roundings often cancel: then
    the limit is moved, twice at most, and the last found within the error counts.
    """
    limit, best = error, None
    for _ in range(1 + _RETRIES):
        found = find(limit)
        measured = measure(found)
        if measured.error <= error:
            best = found, measured
            limit *= min(4.0, error / measured.error) if measured.error else 4.0
        else:
            limit *= min(0.5, max(0.1, error / measured.error))
        if best is not None and (measured.error > error or find(limit) == found):
            break
    return best or (found, measured)


def decide(error: float, measured: Sequence[Timed]) -> tuple[Timed, str]:
    """The policy to take of float32, the default and others, and why.

    It is the fastest whose error is at most `error`; each has to be 2 % faster than those before it, and faster in
    three quarters of the steps, so that a longer policy earns its place and noise takes none.
    """
    best, dtype = measured[0], next((each.policy.dtype.name for each in measured if each.policy), "16 bits")
    near = [each for each in measured[1:] if each.error <= error]
    for each in near:
        low, middle, _ = each.speed(best)
        if middle * _EARNED > 1 and low > 1:
            best = each
    if not near:
        return best, f"float32: nothing in {dtype} saves time within an error of {percent(error)}"
    if best is measured[0]:
        speeds = max((each.speed(best) for each in near), key=lambda found: found[1])
        return best, f"float32: {dtype} is not faster on this machine, at best {_in_words(speeds)} its speed"
    faster = f"{best.name}: {_in_words(best.speed(measured[0]))} the speed of float32"
    if best.name == "default":
        return best, f"{faster}, and nothing else is faster within an error of {percent(error)}"
    default = measured[1]
    why = f"its error is {percent(default.error)}" if default not in near else "it is slower"
    return best, f"{faster}, within an error of {percent(error)}; not the default policy: {why}"


def _in_words(speed: tuple[float, float, float]) -> str:
    low, middle, high = speed
    if round(low, 2) == round(high, 2):
        return f"{middle:.2f} times"
    return f"{middle:.2f} times ({low:.2f} to {high:.2f} in half of the steps)"


def as_toml(policy: Policy | None) -> str:
    """The [amp] section of a recipe that runs `policy`; None: float32."""
    if policy is None:
        return '[amp]\ndtype = "float32"\n'
    lines = ["[amp]", f'dtype = "{policy.dtype.name}"', f'policy = "{"fast" if policy.preset else "default"}"']
    lines += [f'recipe = "{policy.recipe.name}"', 'output_layer = "recipe"'] if policy.recipe is not None else []
    overrides = ", ".join(f'{op} = "{category.value}"' for op, category in policy.overrides)
    modules = ", ".join(f'"{path}" = "{dtype.name}"' for path, dtype in policy.modules)
    lines += [f"{name} = {{ {table} }}" for name, table in (("overrides", overrides), ("modules", modules)) if table]
    return "\n".join(lines) + "\n"


def solver_in_words(solver: str) -> str:
    """How a search went, by its solver, "milp" or "greedy"."""
    return "by SciPy's milp" if solver == "milp" else "greedily; `pip install 'ampkit[tune]'` finds the best"


def percent(share: float) -> str:
    """A share in percent, to two digits."""
    return f"{share * 100:.2g} %" if math.isfinite(share) else "not finite"
