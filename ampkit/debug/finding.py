"""Finding: what is known of a value that is not finite, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..base.html import preformatted
from ..base.observe import FORWARD, STEP, Event
from ..core.fp_errors import ignore_fp_errors
from .cures import explained, flushed, is_overflow, samples_of
from .finite import arrays_in, largest, share
from .origin import Origin


@dataclass(frozen=True)
class Finding:
    """Where infinity or NaN came from.

    path: of the module, "(model)" for the outermost and "(outside modules)" for none. op: its name, or what else made
    the value. phase: "forward", "backward" or "step", that of the optimizer. dtype: of the output. inf, nan: the shares
    of the output that are infinite and NaN. largest: the largest finite magnitude among the inputs, None if there is
    none. reached: what became non-finite by it: the loss, or the gradient of a parameter. cause: why. cure: what helps.
    mask: for what was made of a mask's infinity, where that came from. where: the file and line of the call, "" where
    it is not known. samples: where the data are at fault, the indices of the samples, the batch's axis 0. kind:
    "nonfinite", or "underflow" for a gradient of a leaf that 16 bits flushed to zero. tried: whether the step succeeded
    when it was repeated with the cure.
    """

    path: str
    op: str
    phase: str
    dtype: str
    inf: float
    nan: float
    largest: float | None
    reached: str
    cause: str
    cure: str
    mask: str = ""
    where: str = ""
    kind: str = "nonfinite"
    samples: tuple[int, ...] = ()
    tried: bool = False

    def __str__(self) -> str:
        return f"{self.account}\n  cure: {self.advice}"

    def _repr_html_(self) -> str:
        return preformatted(str(self))

    @property
    def advice(self) -> str:
        """The cure, and whether it was not tried."""
        return self.cure if self.tried else f"{self.cure} (not tried)"

    @property
    def account(self) -> str:
        """All but the cure, in two lines."""
        mask = f"; the infinity came from {self.mask}" if self.mask else ""
        place = self.path if self.path.startswith("(outside") else f"in {self.path}"
        state = "zero" if self.kind == "underflow" else "not finite"
        what = f"{self.reached} is {state}: {self.op} {place}, {self.phase}, gave {self._shares()}"
        return what + (f" ({self.where})" if self.where else "") + f"\n  cause: {self.cause}{mask}"

    def _shares(self) -> str:
        shares = [f"{100 * part:.3g} % {what}" for part, what in ((self.inf, "inf"), (self.nan, "NaN")) if part]
        largest = "" if self.largest is None else f", from inputs up to {self.largest:.3g}"
        return f"{' and '.join(shares) or 'zeros'} of {self.dtype}{largest}"


def finding_of(origin: Origin, reached: str, kind: str = "nonfinite") -> Finding:
    """The finding for an origin that reached `reached`. Reads the device."""
    event, mask = origin.event, origin.parent
    with ignore_fp_errors():
        origin.overflows = is_overflow(origin)  # now, since the step may go on to change what was read
        cause, cure = explained(origin) if kind == "nonfinite" else flushed(origin)
    return Finding(
        path=origin.path,
        op=origin.outside or origin.caster or _name(event),
        phase=event.phase if event.phase in (FORWARD, STEP) else "backward",
        dtype=origin.output.dtype.name,
        inf=share(origin.output, "isinf"),
        nan=share(origin.output, "isnan"),
        largest=largest(list(arrays_in(event.inputs))),
        reached=reached,
        cause=cause,
        cure=cure,
        mask="" if mask is None else mask.outside or f"{_name(mask.event)} in {mask.path}",
        where=origin.where,
        kind=kind,
        samples=tuple(samples_of(origin)),
    )


def _name(event: Event) -> str:
    hook = "a hook on the gradient"
    names = {"hook": hook, "BackwardHook": hook, "sum_of_two": "a sum of two gradients"}
    name: Any = event.name
    if event.phase not in (FORWARD, STEP) and event.node is not None and event.name not in names:
        name = event.node.op.name
    return names.get(name, name).removesuffix("_update")
