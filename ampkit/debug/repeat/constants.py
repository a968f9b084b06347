"""Numbers of a program that become others in the dtype they are used in, such as an eps of 1e-8 in float16."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ... import backends
from ...base.dtypes import FLOATS, DType, bfloat16, finfo, float16, float32, float64
from ...base.observe import FORWARD, Event
from ...core.tensor import Tensor
from ..origin import COMPUTED, ByIdentity, caller

_MOST = 32  # constants that are remembered of a step


class Changed(NamedTuple):
    """A number of a call that its dtype cannot hold: `number` became `became`, which is 0, 1, -1 or infinite.

    op: that it was given to. where: the file and line of the call. held: the Tensor of one value that it is, or None.
    """

    op: Any
    number: float
    became: float
    dtype: DType
    where: str
    held: Any = None

    def __str__(self) -> str:
        return f"the constant {shown(self.number)} of {self.op.name} becomes {self.became:g} in {self.dtype.name}"

    def spelled(self, value: float) -> str:
        """One of `values` as a program says it."""
        if abs(value) == float(finfo(self.dtype).max):
            return f"ampkit.finfo(ampkit.{self.dtype.name}).{'min' if value < 0 else 'max'}"
        return shown(value)

    def values(self) -> Iterator[float]:
        """Numbers that the dtype holds and that may be meant, the nearest first."""
        info = finfo(self.dtype)
        if math.isinf(self.became):
            yield math.copysign(float(info.max), self.number)
            return
        step = float(info.eps) / 2
        if self.became == 0:
            least = {float16: 1e-6, float32: 1e-30}.get(self.dtype, 1e-30)
            yield from (math.copysign(size, self.number) for size in (least, least * 100, 1e-3, 1e-2) if size >= least)
            return
        inside = abs(self.number) < 1
        for size in (step if inside else 2 * step, 4 * step, 16 * step):
            yield math.copysign(_short(1 - size if inside else 1 + size, self.dtype, inside), self.number)


def _short(value: float, dtype: DType, inside: bool) -> float:
    """The number of the fewest digits that `dtype` rounds to something below 1 (above, unless `inside`)."""
    for digits in range(1, 17):
        rounded = float(f"{value:.{digits}g}")
        held = float(np.asarray(rounded).astype(dtype))
        if abs(rounded - value) <= abs(1 - value) / 2 and (held < 1 if inside else held > 1):
            return rounded
    return value


def shown(number: float) -> str:
    """A number in the fewest digits that tell it from others near it."""
    short = f"{number:g}"
    return short if float(short) == number or abs(float(short) - number) < 1e-12 * abs(number) else repr(number)


class Constants:
    """An observer (see base/observe.py) of numbers that change. found: the latest of a step, each once."""

    def __init__(self) -> None:
        self.found: dict[Any, Changed] = {}
        self._made = ByIdentity()  # what ops computed is no constant

    def __call__(self, event: Event) -> None:
        """Look at an event."""
        if event.phase != FORWARD or event.op is None:
            return
        output = event.output[0] if type(event.output) is tuple else event.output
        dtype = getattr(output, "dtype", None)
        if dtype not in FLOATS:
            return
        for value in (*event.operands, *event.params):
            if type(value) is float or (type(value) is int and abs(value) > 65504):
                self._look(event, float(value), dtype)
            elif type(value) is Tensor and value.array.size == 1 and value._tape_edge is None:
                array = value.array
                if array.dtype in FLOATS and not self._made.holds(array):
                    self._look(event, float(backends.backend_of(array).to_numpy(array).reshape(-1)[0]), dtype, value)
        if output.size == 1 and not isinstance(output, np.generic) and event.op.name not in ("full", "to"):
            self._made[output] = COMPUTED

    def _look(self, event: Event, number: float, dtype: DType, held: Any = None) -> None:
        if dtype == float64 or not math.isfinite(number) or number in (0.0, 1.0, -1.0):
            return
        became = _rounded(number, dtype)
        key = event.op.name, number, dtype
        if (became in (0.0, 1.0, -1.0) or math.isinf(became)) and key not in self.found and len(self.found) < _MOST:
            self.found[key] = Changed(event.op, number, became, dtype, caller(), held)


def _rounded(number: float, dtype: DType) -> float:
    if dtype not in (float16, bfloat16, float32):
        return number
    with np.errstate(all="ignore"):
        return float(np.asarray(number, np.float32).astype(dtype))
