"""What each choice of a policy costs on this machine: the time and memory of the steps that really run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ... import backends
from ...base import observe
from ...core import module_path
from ...core.autograd.node import Node
from ...core.policy import Policy
from ...core.tensor import Tensor
from ..profiler import profile
from ..repeat.unchanged import unchanged
from ..saved_memory import SavedMemory
from .choices import Choice, Choices
from .sensitivity import Evaluation


class Cost(NamedTuple):
    """What a choice saves in 16 bits, in a forward and backward.

    float32: its seconds in float32. seconds: saved, negative where 16 bits are slower; 0 where the difference is within
    the noise of the measurement. bytes: saved, of what is kept for the backward.
    """

    float32: float
    seconds: float
    bytes: int

    @property
    def value(self) -> float:
        """What the search makes as large as possible: seconds, and of what takes the same time the memory."""
        return self.seconds + self.bytes * _SECONDS_PER_BYTE


# Bytes count only where seconds do not differ: a megabyte is worth a microsecond.
_SECONDS_PER_BYTE = 1e-12
_ROUNDS, _MOST_ROUNDS = 7, 25  # of timing: as many as take _SECONDS
_SECONDS = 2.0


class _Step(NamedTuple):
    # Of one profiled step, by choice.
    seconds: dict[Choice | None, float]
    bytes: dict[Choice | None, int]


def costs(
    evaluation: Evaluation, choices: Choices, batch: Sequence[Any], show: Callable[[int, int], None]
) -> dict[Choice, Cost]:
    """The cost of every choice, from profiles of steps on `batch` in float32 and in 16 bits, one after the other.

    A product's is that of the ops in its module, of the casts of their inputs, and of the ops behind them that take the
    dtype they are given, such as relu. An op's, such as softmax's, is what the whole step saves when it runs in 16 bits
    as well. show(done, total) is called after each step. Medians of at least 7 rounds, after one to warm up.
    """
    base = choices.default()
    extra = [choice for choice in choices.all if not choice.low_by_default]
    policies = [None, choices.policy(base), *(choices.policy([*base, choice]) for choice in extra)]
    rounds = _in_turns([partial(_step, evaluation, choices, batch, policy) for policy in policies], show)
    found = {choice: _of_module([steps[:2] for steps in rounds], choice) for choice in base}
    return found | {choice: _of_op(rounds, 2 + at, choice) for at, choice in enumerate(extra)}


def step_times(
    evaluation: Evaluation, batch: Sequence[Any], policies: Sequence[Policy | None], show: Callable[[int, int], None]
) -> list[Sequence[float]]:
    """The seconds of forwards and backwards under each policy (None: float32), run in turns."""
    rounds = _in_turns([partial(_seconds, evaluation, batch, policy) for policy in policies], show)
    return list(zip(*rounds, strict=True))


def _seconds(evaluation: Evaluation, batch: Sequence[Any], policy: Policy | None) -> float:
    with unchanged(evaluation.model):
        device = backends.backend_of(evaluation.parameters[0].array) if evaluation.parameters else backends.cpu
        start = device.record_event()
        evaluation.backward(evaluation.forward(batch, policy))
        return float(device.elapsed_time(start, device.record_event()))


_T = TypeVar("_T")


def _in_turns(calls: Sequence[Callable[[], _T]], show: Callable[[int, int], None]) -> list[list[_T]]:
    """The results of `calls`, round by round, so that a busy machine slows all of them; a first round warms up."""
    rounds: list[list[_T]] = []
    wanted, done = 1 + _ROUNDS, 0
    while len(rounds) < wanted:
        start, rounds = time.perf_counter(), [*rounds, []]
        for call in calls:
            rounds[-1].append(call())
            done += 1
            show(done, max(done, wanted * len(calls)))
        if len(rounds) == 2:  # the first one is slower: it plans products
            wanted = 1 + min(_MOST_ROUNDS, max(_ROUNDS, int(_SECONDS / (time.perf_counter() - start + 1e-9))))
    return rounds[1:]


def _of_module(rounds: list[list[_Step]], choice: Choice) -> Cost:
    pairs = [(wide.seconds.get(choice, 0.0), low.seconds.get(choice, 0.0)) for wide, low in rounds]
    wide, low = rounds[0]
    saved = wide.bytes.get(choice, 0) - low.bytes.get(choice, 0)
    return Cost(statistics.median(a for a, _ in pairs), _difference(pairs), saved)


def _of_op(rounds: list[list[_Step]], at: int, choice: Choice) -> Cost:
    pairs = [(sum(steps[1].seconds.values()), sum(steps[at].seconds.values())) for steps in rounds]
    saved = sum(rounds[0][1].bytes.values()) - sum(rounds[0][at].bytes.values())
    return Cost(statistics.median(steps[1].seconds.get(choice, 0.0) for steps in rounds), _difference(pairs), saved)


def _difference(pairs: Sequence[tuple[float, float]]) -> float:
    # The median of the first less the second, 0 where twice its standard error, from the median deviation, is larger.
    differences = [a - b for a, b in pairs]
    middle = statistics.median(differences)
    deviation = statistics.median(abs(d - middle) for d in differences)
    error = 1.4826 * deviation * 1.2533 / len(differences) ** 0.5  # of a normal distribution's median
    return middle if abs(middle) > 2 * error else 0.0


def _step(evaluation: Evaluation, choices: Choices, batch: Sequence[Any], policy: Policy | None) -> _Step:
    found = _Attribution(choices)
    with unchanged(evaluation.model), module_path.follow(), found:
        evaluation.backward(evaluation.forward(batch, policy))
    return found.step()


class _Attribution(profile):
    # A profile whose spans belong to the choices that decide their dtypes.

    def __init__(self, choices: Choices):
        super().__init__()
        self._choices = choices
        self._owners: list[Choice | None] = []  # by span
        self._casts: list[int] = []  # spans of casts for an op that has not ended yet
        self._nodes: dict[int, tuple[Node, Choice | None]] = {}  # the node is held: its id is not given again
        self._memory, self._saved = SavedMemory(), list[tuple[int, Choice | None]]()

    def kernel_ended(self, event: observe.Event) -> None:
        before = len(self._spans)
        super().kernel_ended(event)
        is_cast = event.name == "cast" and event.phase == observe.FORWARD
        choice = None if is_cast else self._choice(event)
        if len(self._spans) > before:
            self._casts += [before] if is_cast else []
            self._owners.append(choice)
        if event.phase == observe.FORWARD and event.op is not None:
            for span in self._casts:
                self._owners[span] = choice
            self._casts.clear()
            self._note(event, choice)

    def _choice(self, event: observe.Event) -> Choice | None:
        if event.phase != observe.FORWARD or event.op is None:
            return self._nodes.get(id(event.node), (None, None))[1]
        found = self._choices.of(event.op, self._choices.path())
        return found or next((c for c in map(self._behind, event.operands) if c is not None), None)

    def _behind(self, operand: Any) -> Choice | None:
        # The choice that decides the dtype of an operand.
        edge = operand._tape_edge if isinstance(operand, Tensor) else None
        return None if edge is None else self._nodes.get(id(edge[0]), (None, None))[1]

    def _note(self, event: observe.Event, choice: Choice | None) -> None:
        if event.node is None:
            return
        self._nodes[id(event.node)] = event.node, choice
        self._saved += [(int(array.nbytes), choice) for array in self._memory.add(event)]

    def step(self) -> _Step:
        times: dict[Choice | None, float] = {}
        sizes: dict[Choice | None, int] = {}
        for choice, (_, spent) in zip(self._owners, self._times, strict=True):
            times[choice] = times.get(choice, 0.0) + spent
        for size, choice in self._saved:
            sizes[choice] = sizes.get(choice, 0) + size
        return _Step(times, sizes)
