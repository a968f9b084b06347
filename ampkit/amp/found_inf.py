"""found_inf: the flag on the device that an optimizer's gradients are not all finite.

`unscale` divides flat gradients by the loss scale and finds the first value that is not finite, in one pass. FoundInf
collects the flag for one optimizer between two updates of a GradScaler, StepResult hands it to the user.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any
from weakref import ref

import numpy as np

from .. import backends
from ..backends import Array
from ..base import dtypes, observe
from ..core.dispatch import primitive
from ..core.fp_errors import ignore_fp_errors
from ..core.tensor import Tensor
from ..optim.flat.arena import Span
from ..optim.flat.memory import chunks, read_scalar
from ..optim.flat.segment import Segment


@primitive("amp.found_inf")
def unscale(gradient: Array, inverse_scale: Array | None, scratch: Array) -> Array:
    """Multiply the flat gradient in place, in one pass; inverse_scale: 0-d; scratch: bool.

    -> the index of the first value that is not finite then, the size if all are.
    """
    first = np.add(backends.backend_of(gradient).zeros((), dtypes.int64), gradient.size)
    for chunk in chunks(gradient.size):
        values, nonfinite = gradient[chunk], scratch[: chunk.stop - chunk.start]
        if inverse_scale is not None:
            np.multiply(values, inverse_scale, out=values)
        np.logical_not(np.isfinite(values, out=nonfinite), out=nonfinite)
        first = np.minimum(first, np.where(nonfinite.any(), chunk.start + np.argmax(nonfinite), gradient.size))
    return first


class OptState(Enum):
    """Where an optimizer is between two updates of a GradScaler."""

    READY = 0
    UNSCALED = 1
    STEPPED = 2


class FoundInf:
    """Whether an optimizer's gradients overflowed since the GradScaler's last update.

    state: whether they are unscaled, and stepped with. flag: found_inf, 0-d bool on the device; None before a check.
    first_nonfinite: by checked span, where it starts, weak references to its segments, and the index of the first value
    that is not finite, the span's length if none.
    """

    __slots__ = ("first_nonfinite", "flag", "state")

    def __init__(self) -> None:
        self.state = OptState.READY
        self.flag: Array | None = None
        self.first_nonfinite: list[tuple[int, list[ref[Segment]], Array]] = []

    def check(self, present: list[Span], inverse_scale: Array | None) -> None:
        """Multiply the gradients of `present` by `inverse_scale`, if any, and combine into `flag` if all are finite."""
        with ignore_fp_errors():
            shardings: dict[frozenset[Any], Any] = {}
            for span in present:
                gradient = span.gradient
                with backends.device_guard(gradient):
                    self._check_span(span, gradient, inverse_scale)
                if span.arena.shardings:
                    shardings.update(span.arena.shardings)
            for groups, sharding in shardings.items():  # each rank has checked its part
                if not any(groups < others for others in shardings):
                    self.flag = sharding.largest(self.flag)
            stages = next((span.arena.stages for span in present if span.arena.stages is not None), None)
            if stages is not None:
                self.flag = stages.largest(self.flag)

    def _check_span(self, span: Span, gradient: Array, inverse_scale: Array | None) -> None:
        if observe.profilers:
            observe.notify_start("unscale", "", gradient)
        if inverse_scale is not None:
            inverse_scale = backends.to_device_of(inverse_scale, gradient).astype(span.arena.dtype)
        first = unscale(gradient, inverse_scale, span.arena.nonfinite_scratch())
        found = np.less(first, gradient.size)
        self.flag = found if self.flag is None else np.logical_or(backends.to_device_of(self.flag, gradient), found)
        self.first_nonfinite.append((span.start, [segment.reference for segment in span.segments], first))
        if observe.observers:
            observe.notify_end("unscale", (gradient,), first, observe.STEP)

    def nonfinite_parameters(self) -> Iterable[tuple[int, str]]:
        """The first parameter of each span whose gradient is not finite: number and description. Reads the device."""
        for start, references, first in self.first_nonfinite:
            at = start + int(read_scalar(first))
            segments = [segment for reference in references if (segment := reference()) is not None]
            if segments and at < segments[-1].stop:
                segment = [segment for segment in segments if segment.start <= at][-1]
                yield segment.number, segment.describe_element(at)


class StepResult:
    """What `scaler.step` did.

    skipped: whether the gradients overflowed, so that nothing changed; reads the device when asked. value: what the
    optimizer's step returned. It stands for that value where a number is needed: as `float(result)`, and by methods of
    a loss, as `result.item()`.
    """

    __slots__ = ("_found_inf", "value")

    def __init__(self, found_inf: Array | None, value: Any = None):
        self._found_inf, self.value = found_inf, value

    @property
    def overflow(self) -> Tensor | None:
        """found_inf, a bool on the device: whether the gradients overflowed; None if the GradScaler is disabled."""
        flag = self._found_inf
        # NumPy's functions return scalars for 0-d arrays
        return None if flag is None else Tensor(np.asarray(flag) if isinstance(flag, np.generic) else flag)

    @property
    def skipped(self) -> bool:
        return self._found_inf is not None and bool(read_scalar(self._found_inf))

    def __float__(self) -> float:
        return float(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value if spec else self, spec)

    def __getattr__(self, name: str) -> Any:
        if self.value is None or name.startswith("__"):
            raise AttributeError(f"'StepResult' object has no attribute {name!r}")
        return getattr(self.value, name)

    def __repr__(self) -> str:
        return f"StepResult(skipped={self.skipped})"
