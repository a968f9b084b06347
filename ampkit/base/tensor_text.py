"""The text of a tensor, as PyTorch prints one, and `set_printoptions`, which changes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from .dtypes import Array, finfo, is_float
from .errors import ArgumentError


@dataclass(frozen=True)
class _Options:
    """precision: digits after the point. threshold: a tensor of more elements is summarized, to edgeitems at both ends
    of each axis. linewidth: characters of a line. sci_mode: scientific notation always, never, or as values need."""

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


_PROFILES = {
    "default": _Options(),
    "short": _Options(precision=2, edgeitems=2),
    "full": _Options(threshold=math.inf),
}
_options = _Options()


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: Literal["default", "short", "full"] | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Change how tensors are printed from now on; None leaves an option as it is, of sci_mode as the values need.

    precision: digits after the point (4). threshold: a tensor of more elements is summarized (1000), to `edgeitems` at
    both ends of each axis (3). linewidth: characters of a line (80). profile: "default", "short" (2 digits, 2 items) or
    "full" (never summarized), on which the other options are set. sci_mode: scientific notation always or never.
    Raises ArgumentError for another profile or a negative number.
    """
    global _options
    if profile is not None and profile not in _PROFILES:
        raise ArgumentError("set_printoptions", f"profile as one of {', '.join(_PROFILES)}", repr(profile)[:80])
    numbers = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems, "linewidth": linewidth}
    given: dict[str, Any] = {name: value for name, value in numbers.items() if value is not None}
    for name, value in given.items():
        if not isinstance(value, (int, float)) or value < 0:
            raise ArgumentError("set_printoptions", f"{name} as a number from 0", repr(value)[:80])
    _options = replace(_PROFILES.get(profile or "", _options), sci_mode=sci_mode, **given)


@contextmanager
def printoptions(**options: Any) -> Iterator[None]:
    """A context in which tensors are printed with options of `set_printoptions`; raises as it does."""
    global _options
    held = _options
    set_printoptions(**options)
    try:
        yield
    finally:
        _options = held


def values_in_words(values: Any) -> str:
    """What a summary says of the values of an array of NumPy: their range, what is not finite, what is below normal.

    Floats between 0 and the smallest normal number of their dtype have lost digits; in 16 bits such gradients want
    loss scaling.
    """
    if not values.size:
        return "no elements"
    if values.dtype.kind in "bc":
        return ""
    if not is_float(values.dtype):
        return f"{values.min():d} to {values.max():d}"
    wide = values.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    found = [f"{finite.min():.4g} to {finite.max():.4g}, mean {finite.mean():.4g}"] if finite.size else []
    magnitudes = np.abs(finite)
    below = np.count_nonzero((magnitudes > 0) & (magnitudes < finfo(values.dtype).tiny))
    counts = {"NaN": np.isnan(wide).sum(), "infinite": np.isinf(wide).sum(), "below the normal range": below}
    return ", ".join([*found, *(f"{count:,} {what}" for what, count in counts.items() if count)])


def tensor_text(array: Array, to_numpy: Callable[[Array], Any], suffixes: Iterable[str], name: str = "tensor") -> str:
    """`name([...], suffix, ...)` of an array on any device; to_numpy copies one to the host."""
    cut = set()
    if array.size > _options.threshold:
        cut = {axis for axis, n in enumerate(array.shape) if n > 2 * _options.edgeitems}
    start = f"{name}("
    values = _ends(array, cut, to_numpy)
    text = _nested(values, cut, len(start), _formatter(values)) if values.size else "[]"
    return _with_suffixes(start + text, suffixes, len(start)) + ")"


def _ends(array: Array, cut: set[int], to_numpy: Callable[[Array], Any], axis: int = 0) -> Any:
    """The values of `array` at both ends of each axis in `cut`, on the host."""
    if axis == array.ndim:
        return to_numpy(array)
    if axis not in cut:
        return _ends(array, cut, to_numpy, axis + 1)
    edge, before = _options.edgeitems, (slice(None),) * axis
    parts = (array[(*before, slice(None, edge))], array[(*before, slice(array.shape[axis] - edge, None))])
    return np.concatenate([_ends(part, cut, to_numpy, axis + 1) for part in parts], axis)


def _formatter(values: Any) -> tuple[Callable[[Any], str], int]:
    """The text of a number among `values`, and its width, which is the same for all finite ones."""
    write = _float_format(values.astype(np.float64)) if is_float(values.dtype) else str
    measured = values[_is_measured(values)] if is_float(values.dtype) else values
    width = max((len(write(value)) for value in measured.reshape(-1).tolist()), default=1)
    return lambda value: write(value).rjust(width), width


def _is_measured(values: Any) -> Any:
    return np.isfinite(values) & (values != 0)


def _float_format(values: Any) -> Callable[[float], str]:
    """How floats are written: `1.`, `1.2500` or `1.2500e+10`, the same for all of `values`."""
    measured = values[_is_measured(values)]
    low, high = (np.abs(measured).min(), np.abs(measured).max()) if measured.size else (1.0, 1.0)
    whole = bool((measured == np.ceil(measured)).all())
    scientific = _options.sci_mode
    if scientific is None:
        scientific = bool(high > 1000 * low or high > 1e8 or (not whole and low < 1e-4))
    if scientific:
        return f"{{:.{_options.precision}e}}".format
    if whole:
        return lambda value: f"{value:.0f}." if math.isfinite(value) else f"{value:.0f}"
    return f"{{:.{_options.precision}f}}".format


def _nested(values: Any, cut: set[int], indent: int, form: tuple[Callable[[Any], str], int], axis: int = 0) -> str:
    write, width = form
    if values.ndim == 0:
        return write(values.item())
    edge = _options.edgeitems
    if values.ndim == 1:
        items, dots, between = [write(value) for value in values.tolist()], " ...", f"\n{' ' * (indent + 1)}"
    else:
        items, dots = [_nested(each, cut, indent + 1, form, axis + 1) for each in values], "..."
        between = "\n" * (values.ndim - 1) + " " * (indent + 1)
    if axis in cut:
        items[edge : len(items) - edge] = [dots]
    if values.ndim == 1:
        per_line = max(1, (_options.linewidth - indent) // (width + 2))
        items = [", ".join(items[i : i + per_line]) for i in range(0, len(items), per_line)]
    return f"[{f',{between}'.join(items)}]"


def _with_suffixes(text: str, suffixes: Iterable[str], indent: int) -> str:
    def parts() -> Iterator[str]:
        yield text
        column = len(text) - text.rfind("\n") + 1
        for suffix in suffixes:
            if column + len(suffix) + 2 > _options.linewidth:
                yield f",\n{' ' * indent}{suffix}"
                column = indent + len(suffix)
            else:
                yield f", {suffix}"
                column += len(suffix) + 2

    return "".join(parts())
