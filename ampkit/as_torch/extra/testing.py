"""`torch.testing`: comparisons that raise AssertionError."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...base import dtypes
from ...core.tensor import Tensor

__all__ = ["assert_allclose", "assert_close"]

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
    options = {"rtol": rtol, "atol": atol, "equal_nan": equal_nan, "check_device": check_device,
               "check_dtype": check_dtype, "msg": msg}  # fmt: skip
    if isinstance(actual, Sequence) and not isinstance(actual, str):
        assert len(actual) == len(expected), f"length {len(actual)} is not {len(expected)}"
        for one, other in zip(actual, expected, strict=True):
            assert_close(one, other, **options)  # type: ignore[arg-type]
        return
    if isinstance(actual, Tensor) and isinstance(expected, Tensor):
        for name, wanted in (("shape", True), ("dtype", check_dtype), ("device", check_device)):
            one, other = getattr(actual, name), getattr(expected, name)
            assert not wanted or one == other, f"{name} {one} is not {other}"
    _compare(actual, expected, rtol, atol, equal_nan, msg)


def _compare(actual: Any, expected: Any, rtol: Any, atol: Any, equal_nan: bool, msg: Any) -> None:
    kinds = [x.dtype if isinstance(x, Tensor) else np.asarray(x).dtype for x in (actual, expected)]
    known = [_TOLERANCES.get(kind, (0.0, 0.0)) for kind in kinds]
    rtol, atol = (max(pair) for pair in zip(*known, strict=True)) if rtol is None else (rtol, atol)
    one, other = (x.detach().cpu().double().numpy() if isinstance(x, Tensor) else x for x in (actual, expected))
    try:
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol or 0.0, equal_nan=equal_nan)
    except AssertionError as error:
        raise AssertionError(msg(str(error)) if callable(msg) else msg or str(error)) from None


assert_allclose = assert_close
