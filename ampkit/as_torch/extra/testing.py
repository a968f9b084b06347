"""`torch.testing`: comparisons that raise AssertionError, and random tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ... import ops
from ...base import dtypes
from ...base.errors import ArgumentError
from ...core.tensor import Tensor

# PyTorch's tolerances by dtype, relative and absolute; other dtypes are compared exactly.
_TOLERANCES = {
    dtypes.float16: (1e-3, 1e-5), dtypes.bfloat16: (1.6e-2, 1e-5), dtypes.float32: (1.3e-6, 1e-5),
    dtypes.float64: (1e-7, 1e-7),
}  # fmt: skip


def assert_close(
    actual: Any, expected: Any, *, allow_subclasses: bool = True, rtol: float | None = None, atol: float | None = None,
    equal_nan: bool = False, check_device: bool = True, check_dtype: bool = True, check_layout: bool = True,
    check_stride: bool = False, msg: str | Callable[[str], str] | None = None,
) -> None:  # fmt: skip
    """Raise AssertionError unless `actual` is `expected` up to rounding, in shape, dtype and device too.

    Tensors, numbers, and sequences and mappings of them. rtol, atol: both or neither; by default PyTorch's for the less
    precise of the two dtypes.
    """
    if isinstance(actual, Mapping):
        assert actual.keys() == expected.keys(), f"keys {sorted(actual)} are not {sorted(expected)}"
        actual, expected = [*actual.values()], [expected[key] for key in actual]
    options: dict[str, Any] = {"rtol": rtol, "atol": atol, "equal_nan": equal_nan, "check_device": check_device,
               "check_dtype": check_dtype, "msg": msg}  # fmt: skip
    if isinstance(actual, Sequence) and not isinstance(actual, str):
        assert len(actual) == len(expected), f"length {len(actual)} is not {len(expected)}"
        for one, other in zip(actual, expected, strict=True):
            assert_close(one, other, **options)
        return
    if isinstance(actual, Tensor) and isinstance(expected, Tensor):
        for name, wanted in (("shape", True), ("dtype", check_dtype), ("device", check_device)):
            one, other = getattr(actual, name), getattr(expected, name)
            assert not wanted or one == other, f"{name} {one} is not {other}"
    _compare(actual, expected, rtol, atol, equal_nan, msg)


def _compare(actual: Any, expected: Any, rtol: Any, atol: Any, equal_nan: bool, msg: Any) -> None:
    kinds = [x.array.dtype if isinstance(x, Tensor) else np.asarray(x).dtype for x in (actual, expected)]
    known = [_TOLERANCES.get(kind, (0.0, 0.0)) for kind in kinds]
    rtol, atol = (max(pair) for pair in zip(*known, strict=True)) if rtol is None else (rtol, atol)
    one, other = (x.detach().cpu().double().numpy() if isinstance(x, Tensor) else x for x in (actual, expected))
    try:
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol or 0.0, equal_nan=equal_nan)
    except AssertionError as error:
        raise AssertionError(msg(str(error)) if callable(msg) else msg or str(error)) from None


assert_allclose = assert_close


def make_tensor(
    *shape: Any, dtype: Any, device: Any, low: float | None = None, high: float | None = None,
    requires_grad: bool = False, noncontiguous: bool = False, exclude_zero: bool = False, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """A tensor of uniform random numbers in [low, high), by default [-9, 9); integers from -9 to 9, uint8 from 0.

    noncontiguous: every second element of a longer tensor; memory_format: see `Tensor.contiguous`; exclude_zero: zeros
    become the smallest positive normal number, or 1. Raises ArgumentError for an empty range, or both of noncontiguous
    and memory_format.
    """
    sizes = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
    kind = dtypes.parse(dtype)
    if noncontiguous and memory_format is not None:
        raise ArgumentError("make_tensor", "noncontiguous or memory_format", "both")
    first, end = _range(kind, low, high)
    apart = noncontiguous and np.prod(sizes, dtype=int) > 1
    sizes = (*sizes[:-1], 2 * sizes[-1]) if apart else sizes
    if dtypes.is_float(kind):
        wide = dtypes.accumulator(kind)
        made = (ops.rand(*sizes, dtype=wide, device=device) * (end - first) + first).to(kind)
        made = ops.where(made < end, made, first) if end > first else made  # rounding may reach the end
    else:
        made = ops.randint(int(np.ceil(first)), int(np.ceil(end)), sizes, device=device).to(kind)
    if exclude_zero:
        made = ops.where(made == 0, dtypes.finfo(kind).tiny if dtypes.is_float(kind) else 1, made).to(kind)
    made = made[..., ::2] if apart else made
    made = made if memory_format is None else made.contiguous(memory_format=memory_format)
    return made.requires_grad_() if requires_grad else made


def _range(kind: dtypes.DType, low: float | None, high: float | None) -> tuple[float, float]:
    # The defaults by dtype, within what the dtype can hold.
    if kind == np.bool_:
        least, default, most = 0.0, (0, 2), 2.0
    elif dtypes.is_float(kind):
        info = dtypes.finfo(kind)
        least, default, most = info.min, (-9, 9), info.max
    else:
        least, default, most = np.iinfo(kind).min, (0 if kind == np.uint8 else -9, 10), np.iinfo(kind).max + 1
    first, end = (default[0] if low is None else max(low, least)), (default[1] if high is None else min(high, most))
    if not first <= end or (first == end and not dtypes.is_float(kind)):
        raise ArgumentError("make_tensor", "low below high", f"{low} and {high}")
    return first, end
