"""SOAP: Adam in the eigenbasis of Shampoo's second moments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from ampkit import backends
from ampkit.backends import Array
from ampkit.base import dtypes
from ampkit.base.dtypes import DType
from ampkit.base.errors import NonFiniteError, check_choice
from ampkit.base.limits import Count, Limits, NotNegative, Probability, Size
from ampkit.base.registry import register_optimizer
from ampkit.ops.linalg.solvers import call_lapack

from ..argument_checks import hyperparameters, need_number
from ..flat.arena import Span
from ..flat.memory import narrow, read_scalar
from ..flat.segment import Segment
from ..optimizer import Optimizer
from ..param_group import ParamGroup

LEAST = 1e-30  # added to a diagonal before its eigenbasis is worked out, and to a mean square; the authors'


class Slot(NamedTuple):
    """A parameter's arrays in an update. moments, bases: Shampoo's [n, n] and their eigenvectors, by axis."""

    master: Array
    gradient: Array
    mean: Array
    square: Array
    moments: dict[int, Array]
    bases: dict[int, Array]


def rotated(x: Array, bases: dict[int, Array], back: bool = False) -> Array:
    """x with each axis that has a basis in its coordinates, or back from them."""
    for axis, basis in bases.items():
        x = np.moveaxis(np.moveaxis(x, axis, -1) @ (basis.T if back else basis), -1, axis)
    return x


def soap_update(slot: Slot, lr: float, betas: tuple[float, float], taken: int, options: ParamGroup) -> None:
    """Update one parameter and its state in place, after `taken` steps; the plain array code that defines SOAP."""
    p, kind = slot.master, slot.master.dtype
    g = -slot.gradient if options["maximize"] else slot.gradient
    if taken:
        projected = rotated(g, slot.bases)
        slot.mean[...] = slot.mean + (g - slot.mean) * kind.type(1 - betas[0])
        slot.square[...] = slot.square + (projected * projected - slot.square) * kind.type(1 - betas[1])
        move = rotated(slot.mean, slot.bases) / (np.sqrt(slot.square) + kind.type(options["eps"]))
        move = rotated(move, slot.bases, back=True)
        if options["normalize_grads"]:
            move = move / (np.sqrt((move * move).mean()) + kind.type(LEAST))
        p[...] = p - move * kind.type(lr * _correction(betas, taken, options["correct_bias"]))
        p[...] = p * kind.type(1 - lr * options["weight_decay"])
    shampoo_beta = betas[1] if options["shampoo_beta"] is None else options["shampoo_beta"]
    for axis, moment in slot.moments.items():
        rows = np.moveaxis(g, axis, 0).reshape(g.shape[axis], -1)
        moment[...] = moment + (rows @ rows.T - moment) * kind.type(1 - shampoo_beta)
    dtype = dtypes.float64 if kind == dtypes.float64 else dtypes.parse(options["basis_dtype"])
    if not taken:
        for axis, moment in slot.moments.items():
            slot.bases[axis][...] = eigenbasis(moment, dtype)
    elif taken % options["precondition_frequency"] == 0:
        refresh(slot, dtype)


def _correction(betas: tuple[float, float], taken: int, wanted: bool) -> float:
    return float(np.sqrt(1 - betas[1] ** taken) / (1 - betas[0] ** taken)) if wanted else 1.0


def eigenbasis(moment: Array, dtype: DType) -> Array:
    """The eigenvectors of a symmetric matrix [n, n], those of the largest eigenvalues first."""
    wide = moment.astype(dtype) + dtype.type(LEAST) * backends.backend_of(moment).asarray(np.eye(len(moment)), dtype)
    vectors = call_lapack("SOAP", "finite second moments", np.linalg.eigh, wide)[1]
    return vectors[:, ::-1].astype(moment.dtype)


def refresh(slot: Slot, dtype: DType) -> None:
    """Renew the bases: one step of a power iteration from the old one and a QR decomposition, largest first."""
    for axis, moment in slot.moments.items():
        wide, old = moment.astype(dtype), slot.bases[axis].astype(dtype)
        product = wide @ old
        order = np.argsort(-(old * product).sum(0), kind="stable")
        slot.square[...] = np.take(slot.square, order, axis)
        slot.bases[axis][...] = call_lapack("SOAP", "finite second moments", np.linalg.qr, product[:, order])[0]


@register_optimizer
class SOAP(Optimizer):
    """Adam in the eigenbasis of Shampoo's moments of each axis: L <- b L + (1 - b) g g^T, and R of g^T g for a matrix.

    The gradient and its mean are rotated, g' = Q_L^T g Q_R; v is the running mean of g'^2; the step is Adam's there,
    rotated back; then p <- (1 - lr weight_decay) p. The first step finds the bases and moves nothing. A parameter of
    more than two dimensions has a basis for each; one of fewer is Adam's, and so is an axis of more than
    max_precond_dim. maximize=True climbs.
    shampoo_beta: b, None for betas[1]. precondition_frequency: steps from one renewal of the bases to the next, by one
    product and a QR decomposition. max_precond_dim: the longest axis that has a basis. precondition_1d: also those of
    parameters with one dimension. normalize_grads: divide a step by its root mean square. correct_bias: divide the
    means by 1 - b^t, as Adam. basis_dtype: in which the bases are renewed.
    Computed in float32, float64 for float64 parameters. A step reads on the host how many came before and, with a
    GradScaler, whether it is skipped; so it cannot be recorded (`ampkit.compile` raises StateError).
    stochastic_rounding=True stores no float32 master weights of 16-bit parameters (docs/numerics.md).
    Raises ArgumentError for options out of range, NonFiniteError in a step on a CPU for a gradient with inf or NaN.
    Vyas et al. 2024, arXiv:2409.11321, algorithm 3; the defaults and the first step are those of the authors' code.
    """

    moments = ("exp_avg", "exp_avg_sq")
    device_keys = ("lr", "betas")

    def __init__(
        self,
        params: Any,
        lr: NotNegative = 3e-3,
        betas: tuple[Probability, Probability] = (0.95, 0.95),
        shampoo_beta: Probability | None = None,
        eps: NotNegative = 1e-8,
        weight_decay: NotNegative = 1e-2,
        precondition_frequency: Count = 10,
        max_precond_dim: Size = 10000,
        precondition_1d: bool = False,
        normalize_grads: bool = False,
        correct_bias: bool = True,
        *,
        maximize: bool = False,
        basis_dtype: Literal["float32", "float64"] = "float32",
        stochastic_rounding: bool = False,
    ):
        super().__init__(params, hyperparameters(locals()))

    def check_options(self, options: dict[str, Any]) -> None:
        super().check_options(options)
        if options.get("shampoo_beta") is not None:
            need_number("SOAP", "shampoo_beta", options["shampoo_beta"], Limits(ge=0, lt=1))
        check_choice("SOAP", "basis_dtype", options.get("basis_dtype", "float32"), "float32", "float64")

    def state_shapes(self, segment: Segment) -> dict[str, tuple[int, ...]]:
        group = next(group for group in self._held_groups() if segment in group.segments)
        squares = {
            f"{name}_{axis}": (segment.shape[axis],) * 2 for axis in _axes(segment.shape, group) for name in _KEPT
        }
        return {**super().state_shapes(segment), **squares}

    def advance(self, present: list[Span], all_finite: Array | None) -> None:
        if all_finite is None and not all(_is_finite(span.gradient) for span in present):
            cure = "skip such a step: a GradScaler does, and ampkit.debug finds the cause"
            raise NonFiniteError("SOAP.step", "finite gradients", "inf or NaN", cure)
        super().advance(present, all_finite)

    def update(self, group: ParamGroup, span: Span, all_finite: Array | None) -> None:
        master = span.master
        if all_finite is None or read_scalar(all_finite):
            taken, lr, betas = read_scalar(span.steps), group["lr"], group["betas"]
            for segment in span.segments:
                if segment.stop > segment.start:
                    place = slice(segment.start - span.start, segment.stop - span.start)
                    soap_update(self._slot(segment, master[place], group), lr, betas, taken, group)
        for copy in span.copies:
            narrow(master, copy)

    def _slot(self, segment: Segment, master: Array, group: ParamGroup) -> Slot:
        mean, square = (segment.moment(name).reshape(segment.shape) for name in self.moments)
        kept = [
            {axis: segment.state_array(f"{name}_{axis}", (segment.shape[axis],) * 2) for axis in axes}
            for axes in [_axes(segment.shape, group)]
            for name in _KEPT
        ]
        return Slot(master.reshape(segment.shape), segment.gradient, mean, square, *kept)


_KEPT = ("GG", "Q")  # by axis: Shampoo's moments, and their eigenvectors


def _axes(shape: tuple[int, ...], group: Mapping[str, Any]) -> list[int]:
    """The axes that have a basis."""
    if len(shape) < 2 and not group["precondition_1d"]:
        return []
    return [axis for axis, size in enumerate(shape) if size <= group["max_precond_dim"]]


def _is_finite(gradient: Array) -> bool:
    with backends.device_guard(gradient):
        return bool(read_scalar(np.isfinite(gradient).all()))
