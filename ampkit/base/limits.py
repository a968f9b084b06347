"""Annotations with bounds: `width: Size = 32` in a constructor is also the check of the key `width` in a recipe.

An editor and a type checker see the plain type. Every number has an upper bound, far above what anybody trains with:
a typing error is reported as such, and sums and products of a few sizes stay within what NumPy can reject.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

LARGEST = 3.4028234e38  # of float32


@dataclass(frozen=True)
class Limits:
    """Bounds of a number (ge, gt, le, lt) or of the length of a sequence, in an `Annotated` type; None for no bound."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    min_length: int | None = None
    max_length: int | None = None

    def allows(self, value: float) -> bool:
        """Whether a number is within the bounds, of which LARGEST is none."""
        low = self.low is None or value > self.low or (value == self.low and self.gt is None)
        return low and (self.high is None or value < self.high or (value == self.high and self.lt is None))

    @property
    def low(self) -> float | None:
        """The lower bound, which `gt` excludes; None for none."""
        low = self.ge if self.gt is None else self.gt
        return None if low == -LARGEST else low

    @property
    def high(self) -> float | None:
        """The upper bound, which `lt` excludes; None for none."""
        high = self.le if self.lt is None else self.lt
        return None if high == LARGEST else high

    def __str__(self) -> str:
        if self.high is None:
            return "as a number" if self.low is None else f"{'>=' if self.gt is None else '>'} {self.low:g}"
        if self.low is None:
            return f"{'<=' if self.lt is None else '<'} {self.high:g}"
        return f"in {'[' if self.gt is None else '('}{self.low:g}, {self.high:g}{']' if self.lt is None else ')'}"

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict[str, Any]:
        """The schema of the annotated type with these bounds; pydantic calls this when it builds a model."""
        return {**handler(source), **{name: bound for name, bound in asdict(self).items() if bound is not None}}


Count = Annotated[int, Limits(ge=1, le=2**31 - 1)]
Whole = Annotated[int, Limits(ge=0, le=2**31 - 1)]
Size = Annotated[int, Limits(ge=1, le=2**20)]  # of an axis: features, channels, pixels, tokens
Sizes = Annotated[Sequence[Size], Limits(min_length=1, max_length=4096)]
Length = Annotated[int, Limits(ge=1, le=2**24)]  # of a sequence
Names = Annotated[Sequence[str], Limits(min_length=1)]
Features = Annotated[int, Limits(ge=1, le=2**12)]
Classes = Annotated[int, Limits(ge=2, le=2**20)]
Items = Annotated[int, Limits(ge=2, le=10_000_000)]
Layers = Annotated[int, Limits(ge=1, le=4096)]
Pixels = Annotated[int, Limits(ge=0, le=2**16)]
Bytes = Annotated[int, Limits(ge=1, le=2**48)]
Seed = Annotated[int, Limits(ge=0, lt=2**63)]
Number = Annotated[float, Limits(ge=-LARGEST, le=LARGEST)]
Positive = Annotated[float, Limits(gt=0, le=LARGEST)]
NotNegative = Annotated[float, Limits(ge=0, le=LARGEST)]
NotPositive = Annotated[float, Limits(ge=-LARGEST, le=0)]
AtLeastOne = Annotated[float, Limits(ge=1, le=LARGEST)]
AboveOne = Annotated[float, Limits(gt=1, le=LARGEST)]
Factor = Annotated[float, Limits(gt=0, le=1024)]  # of a model's channels or blocks
Probability = Annotated[float, Limits(ge=0, lt=1)]  # of dropout; the decay rate of a moment
Fraction = Annotated[float, Limits(gt=0, lt=1)]
UnitInterval = Annotated[float, Limits(ge=0, le=1)]
Channels = Annotated[Sequence[Number], Limits(min_length=1)]
Spreads = Annotated[Sequence[Positive], Limits(min_length=1)]
ImageShape = tuple[Size, Size, Size]  # channels, height, width
