"""Gradient clipping, on the flat gradient memory of the arena for parameters of an optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .. import backends
from ..backends import Array
from ..base import dtypes
from ..base.errors import ArgumentError, DTypeError, NonFiniteError, ShapeError, StateError, switch
from ..core.autograd.scale_tag import count_scaled
from ..core.capture.recorder import asks_gradients, recorders
from ..core.dispatch import primitive
from ..core.fp_errors import ignore_fp_errors
from ..core.tensor import Tensor, note_changes
from ..ops.argument_checks import check_all
from .argument_checks import refuse_scaled, to_python
from .flat.arena import spans
from .flat.memory import CHUNK, chunks, flag_mask, mask_bits, read_scalar
from .flat.rows import power_sum_by_rows
from .flat.segment import Segment

_CURE = "call scaler.unscale_(optimizer) first"


@primitive("optim.elementwise")
def power_sum(values: Array, order: float, scratch: Array) -> Array:
    """The float64 sum of |v|^order of flat values, or the largest |v| for infinity."""
    # Summed in float64, where the square of a float32 cannot overflow.
    total = backends.backend_of(values).zeros((), dtypes.float64)
    for part in chunks(values.size):
        wide = scratch[: part.stop - part.start]
        np.copyto(wide, values[part])
        if order == math.inf:
            np.maximum(total, np.abs(wide, out=wide).max(), out=total)
        elif order == 2:
            np.add(total, np.dot(wide, wide), out=total)
        else:
            np.add(total, np.power(np.abs(wide, out=wide), order, out=wide).sum(), out=total)
    return total


@primitive("optim.elementwise")
def scale_gradients(values: Array, factor: Array, all_finite: Array) -> None:
    """In place: flat values times factor, or zeros where not all_finite."""
    bits, by = flag_mask(all_finite, values.dtype), factor.astype(values.dtype)
    for part in chunks(values.size):
        np.multiply(mask_bits(values[part], bits, values[part]), by, out=values[part])


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float | str = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale the gradients in place so that their total norm is at most max_norm; returns the norm before, 0-d.

    norm_type: the p of the p-norm of all gradients as one vector; inf or "inf" for the largest magnitude. It is summed
    in float64 and returned in float32 (float64 with a float64 gradient). If it is not finite, all gradients are set to
    zero, so that no parameter becomes NaN; error_if_nonfinite=True raises NonFiniteError instead, and waits for the
    device. foreach is ignored.
    Raises StateError for gradients that are still scaled, ArgumentError for a negative max_norm or norm_type <= 0.
    Pascanu et al. 2013, arXiv:1211.5063, algorithm 1.
    """
    strict = switch("clip_grad_norm_", "error_if_nonfinite", error_if_nonfinite)
    limit = _need_non_negative("clip_grad_norm_", "max_norm", max_norm)
    order = _need_order("clip_grad_norm_", norm_type)
    owners = _with_gradients("clip_grad_norm_", parameters)
    if not owners:
        return Tensor(backends.get(None).zeros((), dtypes.float32))
    pieces = _flat(owners)
    with ignore_fp_errors(), backends.device_guard(pieces[0]):
        stages = next((owner._stages for owner in owners if owner._stages is not None), None)
        if any(owner._norm_by_rows for owner in owners):
            norm = _root(power_sum_by_rows(owners, order), order, stages)
        else:
            norm = _norm(_by_sharding(owners, _flat), order, stages)
        if strict:
            _need_finite("clip_grad_norm_", norm, "error_if_nonfinite=False returns it and sets the gradients to zero")
        _scale_down(pieces, limit, norm)
    _mark_changed(owners)
    return _norm_tensor(norm, pieces)


def get_total_norm(
    tensors: Tensor | Iterable[Tensor],
    norm_type: float | str = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The norm_type-norm of all `tensors` as one vector, summed in float64 -> 0-d.

    The result is float32, or float64 with a float64 tensor.
    error_if_nonfinite=True raises NonFiniteError for inf and NaN, and waits for the device. foreach is ignored.
    Raises StateError for gradients that are still scaled, ArgumentError for norm_type <= 0.
    """
    strict = switch("get_total_norm", "error_if_nonfinite", error_if_nonfinite)
    order, found = _need_order("get_total_norm", norm_type), _tensors("get_total_norm", tensors)
    if count_scaled("get_total_norm", found):
        raise StateError("get_total_norm", "unscaled gradients", "some still scaled by a GradScaler", _CURE)
    if not found:
        return Tensor(backends.get(None).zeros((), dtypes.float32))
    with ignore_fp_errors(), backends.device_guard(found[0].array):
        pieces = [t.array.reshape(-1) for t in found]
        norm = _norm(_by_sharding(found, lambda tensors: [t.array.reshape(-1) for t in tensors]), order)
        if strict:
            _need_finite("get_total_norm", norm, "error_if_nonfinite=False returns it")
    return _norm_tensor(norm, pieces)


def clip_grads_with_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Scale the gradients in place as `clip_grad_norm_` does, with a norm that was computed before.

    They are multiplied by max_norm / total_norm if that is below 1, and set to zero if total_norm is not finite.
    foreach is ignored.

    Raises StateError for gradients that are still scaled, ArgumentError for a negative max_norm, ShapeError unless
    total_norm is a Tensor of one element.
    """
    limit = _need_non_negative("clip_grads_with_norm_", "max_norm", max_norm)
    if not isinstance(total_norm, Tensor) or total_norm.numel() != 1:
        got = f"shape {tuple(total_norm.shape)}" if isinstance(total_norm, Tensor) else type(total_norm).__name__
        raise ShapeError("clip_grads_with_norm_", "total_norm as a Tensor of one element", got)
    owners = _with_gradients("clip_grads_with_norm_", parameters)
    if owners:
        with ignore_fp_errors(), backends.device_guard(total_norm.array):
            _scale_down(_flat(owners), limit, total_norm.array.reshape(()).astype(dtypes.float64))
        _mark_changed(owners)


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None) -> None:
    """Clamp every element of the gradients to [-clip_value, clip_value], in place; foreach is ignored.

    Raises StateError for gradients that are still scaled, ArgumentError for a negative clip_value.
    """
    limit = _need_non_negative("clip_grad_value_", "clip_value", clip_value)
    owners = _with_gradients("clip_grad_value_", parameters)
    for piece in _flat(owners):
        bound = backends.backend_of(piece).asarray(np.array(limit, piece.dtype))
        with backends.device_guard(piece):
            np.maximum(np.minimum(piece, bound, out=piece), -bound, out=piece)
    _mark_changed(owners)


def _scale_down(pieces: list[Array], limit: float, norm: Array) -> None:
    factor, finite = np.minimum(limit / (norm + 1e-6), 1.0), np.isfinite(norm)
    factor = np.where(finite, factor, 0.0)
    for piece in pieces:
        scale_gradients(piece, backends.to_device_of(factor, piece), backends.to_device_of(finite, piece))


def _need_finite(where: str, norm: Array, cure: str) -> None:
    if not math.isfinite(read_scalar(norm)):
        raise NonFiniteError(where, "a finite norm of the gradients", "inf or nan", cure)


def _norm_tensor(norm: Array, pieces: list[Array]) -> Tensor:
    wide = dtypes.promote(dtypes.float32, *(p.dtype for p in pieces))
    with ignore_fp_errors():  # a norm above 3.4e38 is inf in float32
        return Tensor(backends.backend_of(pieces[0]).asarray(norm, wide))


def _by_sharding(tensors: list[Tensor], flat: Callable[[list[Tensor]], list[Array]]) -> list[tuple[Any, list[Array]]]:
    # The flat arrays of tensors that this process has all of, and per group of ranks of those that they share out.
    kinds: dict[Any, tuple[Any, list[Tensor]]] = {}
    for tensor in tensors:
        sharding = tensor._sharding
        kinds.setdefault(None if sharding is None else sharding.groups, (sharding, []))[1].append(tensor)
    return [(sharding, flat(alike)) for sharding, alike in kinds.values()]


def _norm(kinds: list[tuple[Any, list[Array]]], order: float, stages: Any = None) -> Array:
    total: Array = None
    for sharding, pieces in kinds:
        found = _power_sums(pieces, order)
        if sharding is not None:
            found = sharding.largest(found) if order == math.inf else sharding.total(found)
        if total is None:
            total = found
        else:
            (np.maximum if order == math.inf else np.add)(total, backends.to_device_of(found, total), out=total)
    return _root(total, order, stages)


def _root(total: Array, order: float, stages: Any) -> Array:
    if stages is not None:  # which have other parameters of the same model
        total = stages.largest(total) if order == math.inf else stages.total(total)
    return total if order == math.inf else np.sqrt(total) if order == 2 else np.power(total, 1 / order)


def _power_sums(pieces: list[Array], order: float) -> Array:
    scratch = backends.backend_of(pieces[0]).empty((min(max(p.size for p in pieces), CHUNK),), dtypes.float64)
    total = backends.backend_of(pieces[0]).zeros((), dtypes.float64)
    for piece in pieces:
        add = np.maximum if order == math.inf else np.add
        part = power_sum(piece, order, backends.to_device_of(scratch, piece))
        add(total, backends.to_device_of(part, total), out=total)
    return total


def _with_gradients(where: str, parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    tensors = _tensors(where, parameters)
    if recorders:
        asks_gradients(tensors)
    owners = list({id(p): p for p in tensors if p._grad is not None}.values())
    refuse_scaled(where, [p._grad for p in owners], _CURE)
    return owners


def _tensors(where: str, tensors: Tensor | Iterable[Tensor]) -> list[Tensor]:
    found = [tensors] if isinstance(tensors, Tensor) or not isinstance(tensors, Iterable) else list(tensors)
    for item in found:
        if not isinstance(item, Tensor):
            raise DTypeError(where, "Tensors", type(item).__name__, "pass model.parameters()")
    return found


def _flat(owners: list[Tensor]) -> list[Array]:
    # Flat views of the gradients: one per contiguous span of an arena, one per parameter outside of arenas.
    held: list[Segment | None] = [getattr(owner, "_arena_segment", None) for owner in owners]
    arenas = {s.arena: None for s in held if s is not None}  # in an order that follows from the parameters
    place = {arena: number for number, arena in enumerate(arenas)}
    segments = sorted((s for s in held if s is not None), key=lambda s: (place[s.arena], s.index))
    for segment in segments:
        segment.take_gradient()
    others = [owner._grad for owner, segment in zip(owners, held, strict=True) if segment is None]
    return [*(span.gradient for span in spans(segments)), *(g.array.reshape(-1) for g in others if g is not None)]


def _mark_changed(owners: list[Tensor]) -> None:
    note_changes([owner._grad for owner in owners if owner._grad is not None])


def _need_order(where: str, norm_type: Any) -> float:
    order = _need_non_negative(where, "norm_type", math.inf if norm_type == "inf" else norm_type)
    if order == 0:
        raise ArgumentError(where, "norm_type > 0", "0")
    return order


def _need_non_negative(where: str, name: str, value: Any) -> float:
    value = to_python(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise ArgumentError(where, f"{name} >= 0", repr(value))
    return float(value)


check_all(globals())
