"""When results of ampkit and PyTorch agree, and the summary of a run of comparisons. Imports neither library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np


class Tolerance(NamedTuple):
    """The allowed difference: relative to the element, absolute, and relative to the largest element."""

    relative: float
    absolute: float
    of_largest: float


TOLERANCES = {
    "float64": Tolerance(1e-9, 1e-11, 1e-12),
    "float32": Tolerance(1e-5, 2e-6, 2e-6),
    "bfloat16": Tolerance(1.6e-2, 1e-5, 8e-3),
    "float16": Tolerance(2e-3, 1e-5, 1e-3),
}


class Leaf(NamedTuple):
    """One tensor of a result: its values (16-bit floats widened to float32) and the name of its dtype."""

    values: np.ndarray
    dtype: str


@dataclass(frozen=True)
class Difference:
    """One difference between ampkit and PyTorch."""

    name: str  # OpInfo's, ModuleInfo's or OptimizerInfo's name, or the name of an alias
    variant: str  # function, method, inplace, operator; a module's or an optimizer's name has none
    dtype: str
    sample: int
    kind: str  # values, grad, gradgrad, errors, modules, optimizers
    fault: str  # values, dtype, shape, structure, refused, raw error, missing error, no gradient
    detail: str
    call: str

    def line(self) -> str:
        """The difference on one line."""
        where = f"{self.name} {self.variant}".strip()
        return f"{self.kind}: {where} {self.dtype} #{self.sample}: {self.fault}: {self.detail} | {self.call}"


@dataclass
class Tally:
    """Samples of one kind: how many agree, which differ, how many are out of scope per rule; and the names compared."""

    names: set[str] = field(default_factory=set)
    agree: int = 0
    differences: list[Difference] = field(default_factory=list)
    out_of_scope: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        """Add another tally."""
        self.names |= other.names
        self.agree += other.agree
        self.differences += other.differences
        self.out_of_scope += other.out_of_scope


def faults(
    got: Sequence[Leaf], needed: Sequence[Leaf], truth: Callable[[], Sequence[Leaf] | None], numbers: bool = True
) -> list[tuple[str, str]]:
    """Return (fault, detail) for every difference. numbers: whether values are compared; not those of random results.

    `truth` returns the result in float64, or None; it is called only when values differ.
    """
    if len(got) != len(needed):
        return [("structure", f"{len(got)} results, needed {len(needed)}")]
    found: list[tuple[str, str]] = []
    for position, (ours, theirs) in enumerate(zip(got, needed, strict=True)):
        found += _leaf_faults(ours, theirs, lambda p=position: _at(truth(), p), numbers)
    return found


def _at(leaves: Sequence[Leaf] | None, position: int) -> np.ndarray | None:
    return leaves[position].values if leaves is not None and position < len(leaves) else None


def _leaf_faults(
    got: Leaf, needed: Leaf, truth: Callable[[], np.ndarray | None], numbers: bool
) -> list[tuple[str, str]]:
    found = []
    if got.dtype != needed.dtype:
        found.append(("dtype", f"{got.dtype}, needed {needed.dtype}"))
    if got.values.shape != needed.values.shape:
        found.append(("shape", f"{got.values.shape}, needed {needed.values.shape}"))
    elif numbers and (detail := value_fault(got.values, needed.values, truth, _coarser(got.dtype, needed.dtype))):
        found.append(("values", detail))
    return found


def _coarser(*dtypes: str) -> str:
    floats = [dtype for dtype in dtypes if dtype in TOLERANCES]
    return max(floats, key=lambda dtype: TOLERANCES[dtype].relative) if floats else dtypes[0]


def value_fault(got: np.ndarray, needed: np.ndarray, truth: Callable[[], np.ndarray | None], dtype: str) -> str | None:
    """Describe the element that differs most; None if all agree.

    An element agrees if it is within the tolerance of `dtype` of PyTorch's result or of the float64 truth; or if its
    distance from the truth is at most twice that of PyTorch's element, or relatively that of PyTorch's worst element.
    """
    if dtype not in TOLERANCES:
        wrong = got != needed
        return _worst(got, needed, wrong.astype(float), wrong) if wrong.any() else None
    with np.errstate(all="ignore"):
        ours, theirs = got.astype(np.float64), needed.astype(np.float64)
        wrong = ~_close(ours, theirs, TOLERANCES[dtype])
        if wrong.any() and (exact := truth()) is not None and exact.shape == ours.shape:
            exact = exact.astype(np.float64)
            wrong &= ~(
                _nearer(ours, theirs, exact, TOLERANCES[dtype]) | _close(ours, rounded(exact, dtype), TOLERANCES[dtype])
            )
        return _worst(got, needed, np.abs(ours - theirs), wrong) if wrong.any() else None


def _nearer(ours: np.ndarray, theirs: np.ndarray, exact: np.ndarray, tolerance: Tolerance) -> np.ndarray:
    error, their_error = np.abs(ours - exact), np.abs(theirs - exact)
    relative = their_error / np.maximum(np.abs(exact), tolerance.absolute)
    known = relative[np.isfinite(relative)]
    worst = min(known.max(), 100 * tolerance.relative, 0.05) if known.size else 0.0
    return (error <= 2 * their_error) | (error <= worst * np.abs(exact))


LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}


def rounded(exact: np.ndarray, dtype: str) -> np.ndarray:
    """The float64 truth with infinities where `dtype` overflows."""
    largest = LARGEST.get(dtype, np.inf)
    return np.where(np.abs(exact) > largest, np.copysign(np.inf, exact), exact)


def _close(ours: np.ndarray, theirs: np.ndarray, tolerance: Tolerance) -> np.ndarray:
    finite = np.abs(theirs[np.isfinite(theirs)])
    bound = tolerance.absolute + tolerance.relative * np.abs(theirs)
    if finite.size:
        bound = bound + tolerance.of_largest * finite.max()
    near = np.isfinite(theirs) & (np.abs(ours - theirs) <= bound)
    return near | (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))


def _worst(got: np.ndarray, needed: np.ndarray, distance: np.ndarray, wrong: np.ndarray) -> str:
    distance = np.where(wrong, np.where(np.isnan(distance), np.inf, distance), -1.0)
    at = np.unravel_index(int(distance.argmax()), distance.shape)
    place = f" at {tuple(int(i) for i in at)}" if at else ""
    return f"{got[at]!s}, needed {needed[at]!s}{place}, {int(wrong.sum())} of {wrong.size}"


@dataclass(frozen=True)
class Listed:
    """An intended difference: the names, kinds, faults and dtypes that it covers (empty: all), and the reason.

    when: a predicate that restricts it to some differences.
    """

    names: str  # separated by blanks; "*" for all
    reason: str
    kinds: str = ""
    faults: str = ""  # separated by commas
    dtypes: str = ""
    when: Callable[[Difference], bool] | None = None

    def covers(self, one: Difference) -> bool:
        """Whether this entry covers the difference `one`."""
        return (
            (self.names == "*" or one.name in self.names.split())
            and (not self.kinds or one.kind in self.kinds.split())
            and (not self.faults or one.fault in self.faults.split(","))
            and (not self.dtypes or one.dtype in self.dtypes.split())
            and (self.when is None or self.when(one))
        )


class Review(NamedTuple):
    """Listed and unlisted differences, and stale entries of the list, which cover nothing."""

    listed: list[Difference]
    unlisted: list[Difference]
    stale: list[Listed]


def review(differences: Sequence[Difference], entries: Sequence[Listed], names: set[str] | None) -> Review:
    """Split differences by the reviewed list. names: those that ran completely; None if all did."""
    used: set[int] = set()
    listed, unlisted = [], []
    for one in differences:
        about = [i for i, entry in enumerate(entries) if entry.covers(one)]
        used.update(about)
        (listed if about else unlisted).append(one)
    stale = [entry for i, entry in enumerate(entries) if i not in used and _ran(entry, names)]
    return Review(listed, unlisted, stale)


def _ran(entry: Listed, names: set[str] | None) -> bool:
    return names is None or (entry.names != "*" and set(entry.names.split()) <= names)


def summary(tallies: dict[str, Tally], reviewed: Review) -> str:
    """A table with a row per kind."""
    listed, unlisted = (Counter(one.kind for one in part) for part in (reviewed.listed, reviewed.unlisted))
    rows = [("kind", "names", "samples", "agree", "listed", "differ", "out of scope")]
    for kind, tally in tallies.items():
        samples = tally.agree + len({(d.name, d.variant, d.dtype, d.sample) for d in tally.differences})
        aside = sum(tally.out_of_scope.values())
        counts = (len(tally.names), samples, tally.agree, listed[kind], unlisted[kind], aside)
        rows.append((kind, *map(str, counts)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def as_json(tallies: dict[str, Tally], reviewed: Review) -> dict[str, Any]:
    """The results of a run, for json.dump."""
    return {
        "kinds": {k: {"names": sorted(t.names), "agree": t.agree, "out_of_scope": t.out_of_scope}
                  for k, t in tallies.items()},
        "listed": [asdict(one) for one in reviewed.listed],
        "unlisted": [asdict(one) for one in reviewed.unlisted],
        "stale": [entry.reason for entry in reviewed.stale],
    }  # fmt: skip
