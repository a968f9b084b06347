"""Draw docs/formats-values.svg and docs/formats-casts.svg: `python -m tests.bench.format_pictures`.

The first has all finite magnitudes of each format on one logarithmic axis; the second what casts make of a number, and
how far neighbouring values are apart.
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np

import ampkit
from ampkit import ops
from ampkit.base import dtypes
from ampkit.base.formats import FORMATS, values_of

DOCS = Path(__file__).parents[2] / "docs"
INK = ("#1f5fae", "#c2471d", "#15795a", "#7a4fa3")  # on light and on dark pages
GREY = "#777"
SHOWN = ("float4_e2m1fn_x2", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
WIDTH, LEFT, RIGHT = 760, 20, 20


def main() -> None:
    (DOCS / "formats-values.svg").write_text(values_picture())
    (DOCS / "formats-casts.svg").write_text(casts_picture())


def magnitudes(name: str) -> np.ndarray:
    """The finite values above zero, in order."""
    found = np.unique(values_of(getattr(dtypes, name)))
    return found[np.isfinite(found) & (found > 0)]


def values_picture() -> str:
    low, high, row, top = -17, 17, 62, 26
    height = top + row * (len(SHOWN) + 1) + 34

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log2(value) - low) / (high - low)

    lines = [start(WIDTH, height)]
    for power in range(low + 1, high, 2):
        at = x(2.0**power)
        lines.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{height - 34}" stroke="#999" stroke-opacity=".3"/>'
        )
        lines.append(text(at, height - 18, f"2<tspan dy='-5' font-size='9'>{power}</tspan>", "middle"))
    for number, name in enumerate((*SHOWN, "bfloat16")):
        y, ink = top + row * number + 30, INK[number % len(INK)]
        held = magnitudes(name) if name in SHOWN else steps_of_bfloat16(low, high)
        shown = held[(held >= 2.0**low) & (held <= 2.0**high)]
        lines.append(text(LEFT, y - 16, words(name, held), "start", ink, 13))
        ticks = "".join(f"M{x(float(value)):.2f} {y - 8}v16" for value in shown)
        lines.append(f'<path d="{ticks}" stroke="{ink}" stroke-width="1" fill="none"/>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def steps_of_bfloat16(low: int, high: int) -> np.ndarray:
    """Its values between two powers of two, every eighth: more would be an area."""
    return np.concatenate([2.0**power * (1 + np.arange(0, 128, 8) / 128) for power in range(low, high)])


def words(name: str, held: np.ndarray) -> str:
    if name == "bfloat16":
        return "bfloat16, one of eight values drawn"
    limits = ampkit.finfo(getattr(ampkit, name))
    beyond = ", and on to both sides" if name == "float8_e8m0fnu" else ""
    kind = "powers of two" if FORMATS[getattr(dtypes, name)].powers_of_two else f"{len(held)} magnitudes"
    return f"{name}: {kind}, largest {limits.max:g}, smallest {float(held[0]):.3g}{beyond}"


def casts_picture() -> str:
    height, top = 620, 24
    lines = [start(WIDTH, height)]
    half = (WIDTH - 3 * LEFT) / 2
    staircase(lines, LEFT, top, half, 250, ampkit.float4_e2m1fn_x2, 8.0, 1.0)
    staircase(lines, 2 * LEFT + half, top, half, 250, ampkit.float8_e4m3fn, 600.0, 100.0)
    spacing(lines, LEFT, top + 300, WIDTH - 2 * LEFT, 250)
    return "\n".join([*lines, "</svg>"]) + "\n"


def staircase(
    lines: list[str], left: float, top: float, wide: float, high: float, dtype: ampkit.dtype, most: float, tick: float
) -> None:
    """What a saturating cast makes of 0 to `most`, to nearest, and the mean of stochastic ones."""
    given = np.linspace(0, most, 1201)[:-1]
    nearest = ops.cast_to(ampkit.tensor(given, dtype=ampkit.float32), dtype)
    many = np.repeat(given[::24], 4096)
    drawn = ops.cast_to(ampkit.tensor(many, dtype=ampkit.float32), dtype, rounding="stochastic")
    mean = np.array(ops.cast_to(drawn, ampkit.float32).tolist()).reshape(-1, 4096).mean(1)
    found = np.array(ops.cast_to(nearest, ampkit.float32).tolist())

    def place(x: float, y: float) -> str:
        return f"{left + 30 + (wide - 30) * x / most:.1f},{top + high * (1 - y / most):.1f}"

    for value in np.arange(0, most, tick):
        y = float(place(0, value).partition(",")[2])
        lines.append(f'<line x1="{left + 30}" x2="{left + wide}" y1="{y}" y2="{y}" stroke="#999" stroke-opacity=".3"/>')
        lines.append(text(left + 24, y + 4, f"{value:g}", "end"))
        lines.append(text(float(place(value, 0).partition(",")[0]), top + high + 16, f"{value:g}", "middle"))
    path = " ".join(place(x, y) for x, y in zip(given, found, strict=True))
    lines.append(f'<polyline fill="none" stroke="{INK[0]}" stroke-width="2" points="{path}"/>')
    dots = [place(x, y).split(",") for x, y in zip(given[::24], mean, strict=True)]
    lines += [f'<circle cx="{x}" cy="{y}" r="2.2" fill="{INK[1]}"/>' for x, y in dots]
    lines.append(text(left + 40, top + 12, f"{dtype.name}", "start", GREY, 13))
    lines.append(text(left + 40, top + 30, "to nearest", "start", INK[0]))
    lines.append(text(left + 40, top + 46, "mean of 4,096 stochastic casts", "start", INK[1]))


def spacing(lines: list[str], left: float, top: float, wide: float, high: float) -> None:
    """The distance of neighbouring values over the magnitude, both logarithmic."""
    low, most, least, largest = -17, 17, -18, 16

    def place(x: float, y: float) -> str:
        across = (wide - 40) * (math.log2(x) - low) / (most - low)
        return f"{left + 40 + across:.1f},{top + high * (largest - math.log2(y)) / (largest - least):.1f}"

    for power in range(-16, 16, 4):
        x, y = place(2.0**power, 2.0**power).split(",")
        lines.append(f'<line x1="{left + 40}" x2="{left + wide}" y1="{y}" y2="{y}" stroke="#999" stroke-opacity=".3"/>')
        lines.append(text(left + 34, float(y) + 4, f"2<tspan dy='-5' font-size='9'>{power}</tspan>", "end"))
        lines.append(text(float(x), top + high + 16, f"2<tspan dy='-5' font-size='9'>{power}</tspan>", "middle"))
    for number, name in enumerate(SHOWN):
        held = magnitudes(name).astype(np.float64)
        held = held[(held >= 2.0**low) & (held <= 2.0**15)]
        points = [(a, b - a) for a, b in pairwise(held)]
        path = " ".join(f"{place(a, gap)} {place(a + gap, gap)}" for a, gap in points if a + gap <= 2.0**most)
        lines.append(f'<polyline fill="none" stroke="{INK[number]}" stroke-width="2" points="{path}"/>')
        lines.append(text(left + 60, top + 16 + 16 * number, name, "start", INK[number], 13))
    lines.append(text(left + wide, top + high + 32, "magnitude", "end"))
    lines.append(text(left + 40, top - 8, "distance to the next value", "start"))


def start(width: int, height: int) -> str:
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">'


def text(x: float, y: float, words: str, anchor: str, ink: str = GREY, size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{ink}">{words}</text>'


if __name__ == "__main__":
    ampkit.manual_seed(0)
    main()
