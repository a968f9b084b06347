"""Ranges in words: a table of the layers that lose most, and what the numbers recommend."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from ..amp.exponents import FORMATS
from ..base.dtypes import NAMES, finfo
from .range_rows import ACTIVATION, GRADIENT, LOW, PARAMETER_GRADIENT, Range, Updates

ROWS = 30  # of the table
LAYERS = 3  # named by one recommendation
WORTH_SAYING = 0.01  # the least share of a layer's values that a recommendation is about
NEAR = 0.5  # of a format's largest number
_FLOAT16_LARGEST = 65504.0
HEAD = ("", "layer", "dtype", "largest", "zero", "subnormal", "flushed", *(f"in {name}" for name in FORMATS))


def table(ranges: Sequence[Range]) -> str:
    """The layers as lines, those that lose most now first, then those that would lose most in float16.

    largest: without the loss scale. zero, subnormal, flushed: shares of the values, in the dtype that they are stored
    in. in float16, ...: the share that the format would lose, to overflow, subnormal numbers or zero.
    """
    rows = [HEAD, *rows_of(ranges)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    lines = ["  ".join(_aligned(row, widths)).rstrip() for row in rows]
    return "\n".join([*lines, *left_out(ranges)])


def rows_of(ranges: Sequence[Range]) -> list[tuple[str, ...]]:
    """The rows of `table`, for the columns of HEAD."""
    worst = sorted(ranges, key=lambda r: (-_share(r, r.lost()), -_share(r, r.would_lose("float16"))))
    return [*map(_cells, worst[:ROWS])]


def left_out(ranges: Sequence[Range]) -> list[str]:
    """A line about the layers that `table` has no row for, if there are any."""
    left = len(ranges) - ROWS
    return [f"and {left} more that lose less"] if left > 0 else []


def _cells(found: Range) -> tuple[str, ...]:
    lost = found.lost()
    would = (percent(_share(found, found.would_lose(name))) for name in FORMATS)
    dtype = found.dtype if found.stored == found.dtype else f"{found.dtype} to {found.stored}"
    now = (found.zero, lost.subnormal, lost.flushed)
    shares = (percent(n / max(found.count, 1)) for n in now)
    return found.of, _layer(found), dtype, f"{found.largest / found.scale:.2g}", *shares, *would


def _aligned(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
        yield cell.ljust(width) if i < 3 else cell.rjust(width)


def percent(share: float) -> str:
    """`share` as percents of two digits; "-" for none."""
    return "-" if share == 0 else "<0.01 %" if share < 1e-4 else f"{100 * share:.2g} %" if share < 0.995 else "100 %"


def _share(found: Range, lost: Iterable[int]) -> float:
    return sum(lost) / max(found.count, 1)


def _layer(found: Range) -> str:
    return f"{found.path} {found.op}".strip()


def recommendations(ranges: Sequence[Range], updates: Sequence[Updates]) -> list[str]:
    """What the numbers recommend, the most important first: overflow, underflow, what is near either, lost updates."""
    ranges = [found for found in ranges if found.count]  # an empty batch has none
    return [
        *_overflow(ranges), *_underflow(ranges), *_near_overflow(ranges), *_would_overflow(ranges),
        *_would_underflow(ranges), *_lost_updates(updates),
    ]  # fmt: skip


def _worst(found: Iterable[tuple[float, Range]]) -> list[tuple[float, Range]]:
    # The largest shares first, one for each layer.
    layers: dict[tuple[str, str], tuple[float, Range]] = {}
    for share, layer in sorted(found, key=lambda pair: -pair[0]):
        layers.setdefault((layer.of, layer.path), (share, layer))
    return list(layers.values())


def _others(found: Sequence[object], named: int = LAYERS) -> str:
    left = len(found) - named
    return f" ({left} more layers do so, too)" if left > 0 else ""


def _overflow(ranges: Sequence[Range]) -> Iterator[str]:
    found = _worst((r.lost().overflow / r.count, r) for r in ranges if r.of == ACTIVATION and r.lost().overflow)
    for share, layer in found[:LAYERS]:
        others = _others(found) if layer is found[0][1] else ""
        yield (
            f"activations of {_layer(layer)}: {percent(share)} are infinite in {layer.stored}: "
            f"bfloat16, or float32 for {layer.path}{others}"
        )


def _underflow(ranges: Sequence[Range]) -> Iterator[str]:
    gradients = [r for r in ranges if r.of == GRADIENT and r.stored == "float16"]
    found = _worst(
        (share, r) for r in gradients if (share := (r.lost().subnormal + r.lost().flushed) / r.count) >= WORTH_SAYING
    )
    if not found:
        return
    largest = max(r.largest for r in gradients)
    for share, layer in found[:LAYERS]:
        zero = f", {percent(layer.zero / layer.count)} are zero" if layer.zero else ""
        others = _others(found) if layer is found[0][1] else ""
        what = "flushed" if layer.lost().flushed > layer.lost().subnormal else "subnormal"
        yield (
            f"gradients of {_layer(layer)}: {percent(share)} are {what} in float16 at scale {layer.scale:g}{zero}: "
            f"{_raise_scale(layer.scale, largest)}{others}"
        )
    gone = [r for r in gradients if r.zero == r.count]
    if gone:
        yield f"gradients of {_layer(gone[0])} are all zero in float16 at scale {gone[0].scale:g}{_others(gone, 1)}"


def _raise_scale(scale: float, largest: float) -> str:
    # As far as the largest gradient allows, with a factor of 2 to spare.
    factor = 2.0 ** math.floor(math.log2(_FLOAT16_LARGEST / 2 / largest)) if 0 < largest < math.inf else 1.0
    return f"raise init_scale (up to {scale * factor:.12g} none overflows), or bfloat16" if factor >= 4 else "bfloat16"


def _near_overflow(ranges: Sequence[Range]) -> Iterator[str]:
    limits = {name: finfo(NAMES[name]).max for name in LOW}
    for share, layer in _worst(
        (r.largest / limits[r.stored], r)
        for r in ranges
        if r.of == ACTIVATION and r.stored in LOW and not r.lost().overflow and r.largest >= NEAR * limits[r.stored]
    )[:LAYERS]:
        yield (
            f"activations of {_layer(layer)} reach {layer.largest:.2g}, {percent(share)} of {layer.stored}'s largest: "
            f"{'bfloat16, or ' if layer.stored == 'float16' else ''}float32 for {layer.path}"
        )


def _would_overflow(ranges: Sequence[Range]) -> Iterator[str]:
    found = _worst(
        (r.would_lose("float16").overflow / r.count, r)
        for r in ranges
        if r.of == ACTIVATION and r.stored != "float16" and r.would_lose("float16").overflow
    )
    for share, layer in found[:LAYERS]:
        others = _others(found) if layer is found[0][1] else ""
        yield (
            f"activations of {_layer(layer)} reach {layer.largest:.2g}; in float16 {percent(share)} would be infinite: "
            f"bfloat16, or float32 for {layer.path}{others}"
        )


def _would_underflow(ranges: Sequence[Range]) -> Iterator[str]:
    """Whether float16 would need a loss scale, where there is none, and which."""
    gradients = [r for r in ranges if r.of in (GRADIENT, PARAMETER_GRADIENT)]
    if any(r.stored == "float16" or r.scale != 1.0 for r in gradients):
        return
    found = _worst(
        (share, r) for r in gradients if (share := sum(r.would_lose("float16")[1:]) / r.count) >= WORTH_SAYING
    )
    largest = max((r.largest for r in gradients), default=0.0)
    if not found or not 0 < largest < math.inf:
        return
    share, layer = found[0]
    exponent = math.floor(math.log2(_FLOAT16_LARGEST / 2 / largest))
    left = _share_below(layer, -14 - exponent)
    what = "parameter " if layer.of == PARAMETER_GRADIENT else ""
    yield (
        f"{what}gradients of {_layer(layer)}: float16 would lose {percent(share)} of them without loss scaling, "
        f"{percent(left) if left else 'none'} at a scale of {2.0**exponent:.12g}{_others(found, 1)}"
    )


def _share_below(layer: Range, exponent: int) -> float:
    first, counts = layer.exponents()
    return sum(counts[: max(exponent - first, 0)]) / layer.count


def _lost_updates(updates: Sequence[Updates]) -> Iterator[str]:
    for dtype in LOW:
        shares = {u.path: getattr(u, dtype) / u.changed for u in updates if u.changed}
        lost = sorted((path for path in shares if shares[path] >= NEAR), key=lambda path: -shares[path])
        if lost:
            named = ", ".join(f"{path} ({percent(shares[path])})" for path in lost[:LAYERS])
            more = f" and {len(lost) - LAYERS} more" if len(lost) > LAYERS else ""
            yield f"{dtype} weights would not notice the updates of {named}{more}: keep float32 masters"
