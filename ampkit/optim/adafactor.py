"""Adafactor: second moments of matrices kept as a row and a column."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import backends
from ..base.dtypes import Array, DType, float64
from ..base.errors import ArgumentError
from ..base.limits import AtLeastOne, Limits, NotNegative, NotPositive
from ..base.registry import register_optimizer
from ..core.dispatch import primitive
from .argument_checks import hyperparameters, need_number
from .clip import power_sum
from .flat.arena import Span
from .flat.memory import CHUNK, narrow, select_into
from .flat.segment import Segment
from .optimizer import Optimizer
from .param_group import ParamGroup


@primitive("optim.adafactor")
def adafactor_update(
    master: Array,
    gradient: Array,
    rows: Array,
    columns: Array | None,
    steps: Array,
    lr: Array,
    all_finite: Array | None,
    copies: list[Array],
    beta2_decay: float,
    least: float,
    least_scale: float,
    limit: float,
    weight_decay: float,
    maximize: bool,
) -> None:
    """The update of one parameter; columns None: of a vector; copies: flat."""
    kind, backend = master.dtype, backends.backend_of(master)
    flat, count = master.reshape(-1), (steps + 1).astype(float64)
    wide = backend.empty((min(CHUNK, master.size),), float64)
    new = np.power(count, beta2_decay).astype(kind)
    scale = np.maximum(least_scale, _rms(flat, wide)) * np.minimum(lr, 1 / np.sqrt(count))
    g = -gradient if maximize else gradient
    update = rescaled(_estimate(g, rows, columns, new, least, all_finite), least) * g
    rate = (scale / np.maximum(1.0, _rms(update.reshape(-1), wide) / limit)).astype(kind)
    select_into(master, master * (1 - lr * weight_decay).astype(kind) - update * rate, all_finite)
    for copy in copies:
        narrow(flat, copy)


def _rms(flat: Array, wide: Array) -> Array:
    return np.sqrt(power_sum(flat, 2.0, wide) / flat.size)


def _estimate(
    g: Array, rows: Array, columns: Array | None, new: Array, least: float, all_finite: Array | None
) -> Array:
    square = g * g
    if columns is None:
        select_into(rows, rows + (square - rows) * new, all_finite)
        return rows
    for held, axis in ((rows, -1), (columns, -2)):
        select_into(held, held + (square.mean(axis=axis, keepdims=True) - held) * new, all_finite)
    return rows / np.maximum(rows.mean(axis=-2, keepdims=True), least) * columns


def rescaled(estimate: Array, least: float) -> Array:
    """What gradients are multiplied with, by an estimate of their mean squares."""
    return 1 / np.sqrt(np.maximum(estimate, floor_of(least, estimate.dtype)))


def floor_of(least: float, kind: DType) -> float:
    """The least mean square, and what of it `kind` holds: below, a gradient of 0 would be 0 / 0."""
    return max(least * least, float(np.finfo(kind).tiny))


class Adafactor(Optimizer):
    """u <- g / sqrt(v), v from a running mean square of each row and column; p <- p - alpha u / max(1, RMS(u) / d).

    alpha = max(eps[1], RMS(p)) min(lr, 1 / sqrt(t)); the running means take in the new square with weight
    t^beta2_decay. A parameter of one dimension or none keeps v whole; one of more than two is factored along its last
    two. eps[0] is the least v, squared, None for the spacing of the dtype that is computed in (in PyTorch the
    parameter's). weight_decay shrinks p by lr weight_decay. maximize=True climbs; foreach changes nothing. Computed in
    float32, float64 for float64 parameters; RMS in float64.
    beta2_decay: exponent of t in the weight of a new square. d: limit of the root mean square of an update.
    stochastic_rounding=True stores no float32 master weights of 16-bit parameters (docs/numerics.md).
    Raises ArgumentError for options out of range.
    Shazeer, Stern 2018, arXiv:1804.04235, algorithms 4-6, as PyTorch takes them.
    """

    def __init__(
        self,
        params: Any,
        lr: NotNegative = 1e-2,
        beta2_decay: NotPositive = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: AtLeastOne = 1.0,
        weight_decay: NotNegative = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        stochastic_rounding: bool = False,
    ):
        super().__init__(params, hyperparameters(locals()))

    def check_options(self, options: dict[str, Any]) -> None:
        super().check_options({key: value for key, value in options.items() if key != "eps"})
        eps = options.get("eps", (None, 0.0))
        if not isinstance(eps, (tuple, list)) or len(eps) != 2:
            raise ArgumentError("Adafactor", "two eps, the first None or a number", repr(eps))
        for value in eps[eps[0] is None :]:
            need_number("Adafactor, eps", "each", value, Limits(ge=0))

    def state_shapes(self, segment: Segment) -> dict[str, tuple[int, ...]]:
        shape = tuple(segment.parameter.array.shape)
        if len(shape) < 2:
            return {"variance": shape}
        return {"row_var": (*shape[:-1], 1), "col_var": (*shape[:-2], 1, shape[-1])}

    def update(self, group: ParamGroup, span: Span, all_finite: Array | None) -> None:
        for segment in span.segments:
            if segment.stop > segment.start:
                self._update_segment(group, span, segment, all_finite)

    def _update_segment(self, group: ParamGroup, span: Span, segment: Segment, all_finite: Array | None) -> None:
        arena, (least, least_scale) = segment.arena, group["eps"]
        moments = [segment.state_array(name, shape) for name, shape in self.state_shapes(segment).items()]
        place, shape = slice(segment.start - span.start, segment.stop - span.start), segment.parameter.array.shape
        arrays = [span.master[place].reshape(shape), segment.gradient, *moments]
        if len(moments) == 1:  # flat, for NumPy makes scalars of what it computes with 0-d arrays
            arrays = [array.reshape(-1) for array in arrays]
        adafactor_update(
            *arrays[:3],
            arrays[3] if len(arrays) > 3 else None,
            span.steps,
            group.device["lr"],
            all_finite,
            [flat[segment.start : segment.stop] for flat in arena.copies.values()],
            beta2_decay=group["beta2_decay"],
            least=max(float(np.finfo(arena.dtype).eps) if least is None else least, float(np.finfo(arena.dtype).tiny)),
            least_scale=least_scale,
            limit=group["d"],
            weight_decay=group["weight_decay"],
            maximize=group["maximize"],
        )


register_optimizer(Adafactor, exclude=("eps",))
