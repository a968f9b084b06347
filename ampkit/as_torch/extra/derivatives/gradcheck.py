"""`torch.autograd.gradcheck` and `gradgradcheck` with PyTorch's arguments, by those of ampkit.testing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .... import testing
from ....base.dtypes import float64
from ....core.tensor import Tensor
from ....ops.sparse import SparseTensor

__all__ = ["GradcheckError", "gradcheck", "gradgradcheck"]


class GradcheckError(RuntimeError, AssertionError):
    """A gradient that differs from the differences of its function."""


def gradcheck(func: Callable[..., Any], inputs: Any, *, raise_exception: bool = True, **options: Any) -> bool:
    """Check the gradients of a function of float64 tensors along random directions.

    Other floats are checked as float64.
    Raises GradcheckError for a wrong gradient, or returns False without raise_exception. Of the options, the sum of
    atol and rtol is the tolerance of ampkit.testing.gradcheck, nondet_tol is its own, and check_backward_ad=False
    leaves it out; check_forward_ad=True checks forward mode too. The others, which choose a method or further checks,
    change nothing.
    """
    backward, forward = options.get("check_backward_ad", True), options.get("check_forward_ad", False)
    if not backward and not forward:
        raise GradcheckError("gradcheck: needs check_backward_ad or check_forward_ad, got neither")
    good = not backward or _checked(testing.gradcheck, func, inputs, raise_exception, options)
    if not forward or not good:
        return good
    return _checked(testing.check_tangents, func, inputs, raise_exception, options)


def gradgradcheck(
    func: Callable[..., Any], inputs: Any, grad_outputs: Any = None, *, raise_exception: bool = True, **options: Any
) -> bool:
    """Check the second derivatives likewise; grad_outputs, which ampkit draws itself, changes nothing."""
    return _checked(testing.gradgradcheck, func, inputs, raise_exception, options)


_OPTIONS = frozenset([
    "eps", "atol", "rtol", "nondet_tol", "check_undefined_grad", "check_grad_dtypes", "check_batched_grad",
    "check_batched_forward_grad", "check_forward_ad", "check_backward_ad", "check_fwd_over_rev", "check_rev_over_rev",
    "gen_non_contig_grad_outputs", "fast_mode", "masked",
])  # fmt: skip


def _checked(check: Any, func: Any, inputs: Any, raises: bool, options: dict[str, Any]) -> bool:
    unknown = set(options) - _OPTIONS
    if unknown:
        raise TypeError(f"{check.__name__}() got an unexpected keyword argument {sorted(unknown)[0]!r}")
    given = [_wide(one) for one in ((inputs,) if isinstance(inputs, Tensor) else inputs)]
    if any(isinstance(one, SparseTensor) for one in given):
        func, given = _of_stored(func, given)
    try:
        tolerance = float(options.get("atol", 1e-5)) + float(options.get("rtol", 1e-3))
        if check is testing.check_tangents:
            return bool(check(func, given, tolerance))
        return bool(check(func, given, tolerance, float(options.get("nondet_tol", 0.0))))
    except AssertionError as error:
        if raises:
            raise GradcheckError(str(error)) from None
        return False


def _of_stored(func: Callable[..., Any], given: list[Any]) -> tuple[Callable[..., Any], list[Any]]:
    # Of sparse tensors the stored elements move, as with PyTorch's masked=True.
    def of_stored(*values: Any) -> Any:
        pairs = zip(given, values, strict=True)
        return func(*(one._with(value) if isinstance(one, SparseTensor) else value for one, value in pairs))

    return of_stored, [one._values() if isinstance(one, SparseTensor) else one for one in given]


def _wide(item: Any) -> Any:
    if not isinstance(item, Tensor) or not item.requires_grad or item.dtype == float64:
        return item
    return item.detach().to(float64).requires_grad_()
