"""The elementwise losses: the loss of each element is a function of functions.h, computed in float32, then summed; and
the losses of class labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from ampkit.base.dtypes import Array, DType, bool_, float32
from ampkit.core.autograd.saved import Saved
from ampkit.ops.loss import bce, regression

from .launcher import Launcher, supports, supports_backward
from .registration import on

Chooser = Callable[..., tuple[str, tuple[float, ...]]]  # the op's parameters -> function name, scalars


def register_losses(launcher: Launcher) -> None:
    """Register the losses on the launcher's backend."""
    _register(launcher, regression.mse_loss, lambda: ("MSELoss", ()))
    _register(launcher, regression.l1_loss, lambda: ("L1Loss", ()))
    _register(launcher, regression.smooth_l1_loss, lambda beta: ("SmoothL1Loss", (beta,)))
    _register(launcher, regression.huber_loss, lambda delta: ("HuberLoss", (delta,)))
    _register(launcher, regression.kl_div, lambda log_target: ("KLDivOfLogs" if log_target else "KLDiv", ()))
    _register_bce_with_logits(launcher)
    _register_bce(launcher)


def _reduced(launcher: Launcher, name: str, operands: Sequence[Any], reduction: str, dtype: DType) -> Any:
    """The loss `name` of operands that broadcast to the first one's shape, reduced by `reduction`, in `dtype`."""
    if reduction == "none":
        return launcher.forward(name, operands, dtype)
    return launcher.total(name, operands, _divisor(reduction, operands[0].shape), dtype)


def _gradients(
    launcher: Launcher,
    name: str,
    dy: Array,
    operands: Sequence[Any],
    dtypes: Sequence[DType | None],
    reduction: str,
    weight: Any = None,
) -> Any:
    """The gradients of the first operands, in `dtypes`, None where that is None.

    weight: the factor of each element's loss, or None.
    """
    divisor = _divisor(reduction, operands[0].shape)
    if divisor != 1 or weight is not None:
        dy = launcher.forward("AddCMul", (0.0, dy, 1.0 if weight is None else weight, 1 / divisor), float32)
    return launcher.backward(name, dy, operands, dtypes)


def _divisor(reduction: str, shape: tuple[int, ...]) -> int:
    """What a mean divides the sum by, at least 1; 1 for a sum."""
    return max(1, prod(shape) if reduction == "mean" else (*shape, 1)[0] if reduction == "batchmean" else 1)


def _register(launcher: Launcher, op: Any, choose: Chooser) -> None:
    """Register forward and backward of a loss of input and target of one shape."""

    def forward(input: Array, target: Array, reduction: str, *params: Any, dtype: DType, **more: Any) -> Any:
        name, numbers = choose(*params, *more.values())
        out = _reduced(launcher, name, (input, target, *numbers), reduction, dtype)
        return out, Saved(input=input, target=target)

    def backward(dy: Array, saved: Any, needs: Any, reduction: str, **params: Any) -> Any:
        name, numbers = choose(*params.values())
        return _gradients(launcher, name, dy, (saved.input, saved.target, *numbers), needs, reduction)

    launcher.on(op, forward, supports)
    _on_backward(launcher, op, backward, supports_backward)


def _on_backward(launcher: Launcher, op: Any, run: Any, when: Any) -> None:
    # dy of a reduced loss is one number: the size that counts is the input's.
    def fits(dy: Array, saved: Any, needs: Any, **params: Any) -> bool:
        return saved.input.size >= launcher.min_elements and when(dy, saved, needs, **params)

    on(op.backward_primitive, launcher.backend, run, fits)


# Binary cross entropies. The references compute the gradients of their weights.


def _first_two(dy: Array, saved: Any, needs: Any, **params: Any) -> bool:
    return supports_backward(dy, saved, needs) and not any(need is not None for need in needs[2:])


def _or_1(weight: Any) -> Any:
    return 1.0 if weight is None else weight


def _register_bce_with_logits(launcher: Launcher) -> None:
    op = bce.binary_cross_entropy_with_logits

    def forward(input: Array, target: Array, weight: Any, reduction: str, pos_weight: Any, *, dtype: DType) -> Any:
        operands = input, target, _or_1(weight), _or_1(pos_weight)
        out = _reduced(launcher, "BCEOfLogits", operands, reduction, dtype)
        return out, Saved(input=input, target=target, weight=weight, pos_weight=pos_weight)

    def backward(dy: Array, saved: Any, needs: Any, reduction: str) -> Any:
        operands = saved.input, saved.target, _or_1(saved.pos_weight)
        return *_gradients(launcher, "BCEOfLogits", dy, operands, needs[:2], reduction, saved.weight), None, None

    launcher.on(op, forward, supports)
    _on_backward(launcher, op, backward, _first_two)


def _register_bce(launcher: Launcher) -> None:
    op = bce.binary_cross_entropy

    def forward(input: Array, target: Array, weight: Any, reduction: str, *, dtype: DType) -> Any:
        outside = launcher.forward("OutsideUnit", (input,), bool_)
        out = _reduced(launcher, "BCELoss", (input, target, _or_1(weight)), reduction, dtype)
        bce.check_unit_interval(input, outside)
        return out, Saved(input=input, target=target, weight=weight)

    def backward(dy: Array, saved: Any, needs: Any, reduction: str) -> Any:
        operands = saved.input, saved.target
        return *_gradients(launcher, "BCELoss", dy, operands, needs[:2], reduction, saved.weight), None

    launcher.on(op, forward, supports)
    _on_backward(launcher, op, backward, _first_two)


# losses of class labels


def register_label_loss(
    backend: str, op: Any, statistic: str, losses: Any, gradient: Any, fits: Any, readable: Any, min_elements: int = 0,
    in_place: bool = False, launches: bool = False,
) -> None:  # fmt: skip
    """Register cross_entropy or nll_loss.

    losses(input, target, weight, ignore_index, reduction, *smoothing, dtype) -> (the loss; a number of each row, saved
    as `statistic`; the divisor of a mean, for `gradient`). gradient(dy, saved, dtype, ...) -> that of the scores.
    readable(dy, saved, dtype): its predicate. in_place: whether `gradient` takes buffer=, memory to write to or None,
    which may be that of the scores. launches: see Kernel.
    """

    def forward(
        input: Array, target: Array, weight: Any, ignore_index: int, reduction: str, *smoothing: Any, dtype: DType
    ) -> Any:
        out, of_rows, total = losses(input, target, weight, ignore_index, reduction, *smoothing, dtype)
        saved = Saved(input=input, target=target, weight=weight, total=total)
        saved.__dict__[statistic] = of_rows
        if statistic == "lse" and reduction == "mean" and weight is not None:
            saved.out = out
        return out, saved

    def backward(
        dy: Array, saved: Saved, needs: Any, versions: Any = (), grad_buffers: Any = (None,), **options: Any
    ) -> Any:
        more = {"buffer": grad_buffers[0]} if in_place else {}
        return gradient(dy, saved, needs[0], **options, **more), None, None

    def wanted(dy: Array, saved: Saved, needs: Any, **options: Any) -> bool:
        known = needs[0] is not None and needs[2] is None and saved.__dict__[statistic].dtype == float32
        return bool(known) and readable(dy, saved, needs[0])

    on(op, backend, forward, fits, min_elements=min_elements, launches=launches)
    on(op.backward_primitive, backend, backward, wanted, wants_cache=in_place, launches=launches)
