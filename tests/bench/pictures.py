"""Make the pictures of README and the docs from real runs: a report, parts of it, and the terminal while a run trains.

    python -m tests.bench.pictures [precisions | formats]

With `precisions` it makes docs/precisions.svg alone: the losses of `ampkit bench text_gpt` over seconds of training,
each step at the median time of a step. With `formats`, docs/survival.png alone: the section of a report that shows
`ampkit lab text_gpt` by all recipes, which takes some minutes. Else it trains the digits recipe in three precisions and
measures their steps; writes docs/report.png and lost.png (screenshots of the report, and of one of its sections, by
headless Chromium) and docs/terminal.svg (what `ampkit train` shows in the middle of the float16 run). Needs Pillow,
which makes files small.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.terminal_theme import MONOKAI

from ampkit import cli, config
from ampkit.cli.progress import ProgressMeter
from ampkit.core.policy.recipe import RECIPES
from ampkit.run.bench import Result, bench
from ampkit.run.loop import StepRow, fit
from ampkit.run.measure import measure_run
from ampkit.run.report import report
from tests.browser import open_page

DOCS = Path(__file__).parents[2] / "docs"
RECIPE = Path(__file__).parents[2] / "recipes" / "digits_cnn.toml"
SHOWN = 0.6  # of the run, where the picture of the terminal is taken
# By file, the section that is shown, all of them for "", and the size of the picture in pixels.
PICTURES = {"report": ("", 1200, 1540), "lost": ("precision-title", 900, 770)}
COLORS = 128
# Of the laboratory: fewer steps than a training has, and what fits the picture.
LAB = ["text_gpt", "--formats", ",".join(RECIPES), "--steps", "60", "--measure-only", "train.threads=1"]
LAB_SIZE = 1300, 1380


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs = [trained(Path(folder), dtype) for dtype in ("float32", "bfloat16", "float16")]
        for run in runs:
            measure_run(run)
        report(runs, Path(folder) / "report.html")
        for name, (section, *size) in PICTURES.items():
            screenshot(Path(folder) / "report.html", DOCS / f"{name}.png", section, *size)
    terminal(DOCS / "terminal.svg")


def formats(out: Path) -> None:
    """Measure the layers of a GPT by all recipes, and draw what its report shows of them."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "text_gpt"
        run.mkdir()
        (run / "metrics.jsonl").touch()
        (run / "config.toml").write_text(config.dump(config.load("text_gpt")))
        if cli.main(["lab", *LAB, "--run-dir", str(run)]):
            raise SystemExit("the laboratory failed")
        report([run], Path(folder) / "report.html")
        screenshot(Path(folder) / "report.html", out, "formats-title", *LAB_SIZE)


def trained(folder: Path, dtype: str) -> Path:
    """The directory of a whole run, with ranges in float16."""
    every = 10 if dtype == "float16" else 0
    overrides = [f"amp.dtype={dtype}", "train.log_every=1", f"debug.ranges_every={every}"]
    path = folder / f"digits-{dtype}"
    subprocess.run(
        ["ampkit", "train", str(RECIPE), *overrides, "--run-dir", str(path)], check=True, capture_output=True
    )
    return path


def screenshot(page: Path, out: Path, section: str, width: int, height: int) -> None:
    if section:
        only = f"header, footer, section:not([aria-labelledby={section}]) {{ display: none }}"
        text = page.read_text().replace("</head>", f"<style>{only}</style></head>")
        page = page.with_name("section.html")
        page.write_text(text)
    size = f"--window-size={width},{height}"
    open_page(page, "--hide-scrollbars", "--virtual-time-budget=5000", size, f"--screenshot={out}")
    with Image.open(out) as drawn:
        drawn.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(out, optimize=True)


def terminal(out: Path) -> None:
    """Train until SHOWN of the run, and draw the view of that moment."""
    run = fit(config.load(RECIPE, ["amp.dtype=float16", "train.log_every=1"]))
    console = Console(record=True, file=io.StringIO(), force_terminal=True, width=80, highlight=False)
    meter = ProgressMeter(console, "float16", run.steps, run.per_step, run.unit, done=lambda: run.done)
    console.print("$ ampkit train recipes/digits_cnn.toml amp.dtype=float16")
    for row in run:
        meter.show(row)
        view = meter.renderables()  # asked for each row, as the time left follows from the speed
        if run.done > SHOWN * run.steps:
            break
    console.print(*view, sep="\n")
    drawn = console.export_svg(title="ampkit", theme=MONOKAI)
    out.write_text(re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL))  # no fonts from another host


INK = {"float32": "#1f5fae", "bfloat16": "#c2471d", "float16": "#15795a"}  # on light and on dark pages
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760, 300, 50, 16, 40
SMOOTHED = 12  # steps


def precisions(out: Path) -> None:
    """Draw the losses of a benchmark over seconds, with time and memory of each precision in the legend."""
    losses: dict[str, list[float]] = {}
    results: dict[str, Result] = {}
    for dtype, event in bench(config.load("text_gpt")):
        if isinstance(event, StepRow):
            losses.setdefault(dtype, []).append(event.loss)
        elif isinstance(event, Result):
            results[dtype] = event
    curves = {}
    for dtype, values in losses.items():
        step = results[dtype].step_seconds
        curves[dtype] = [
            (step * (i + 1), sum(part) / len(part))
            for i in range(len(values))
            if (part := values[max(0, i + 1 - SMOOTHED) : i + 1])
        ]
    out.write_text(drawing(curves, {dtype: legend(result, results["float32"]) for dtype, result in results.items()}))


def legend(result: Result, first: Result) -> str:
    ratio, memory = first.step_seconds / result.step_seconds, result.run_bytes / first.run_bytes
    against = "" if result is first else f" ({ratio:.2f} x the speed, {memory:.2f} x the memory)"
    took = f"{result.step_seconds * 1e3:.1f} ms a step, {result.run_bytes / 1e6:.0f} MB"
    return f"{result.dtype}: {took}{against}, validation loss {result.val_loss:.3f}"


def drawing(curves: dict[str, list[tuple[float, float]]], words: dict[str, str]) -> str:
    """An SVG of a curve for each precision: seconds, loss."""
    longest = max(points[-1][0] for points in curves.values())
    low, high = 2.0, 5.5
    across, down = WIDTH - LEFT - 20, HEIGHT - TOP - BOTTOM

    def place(seconds: float, loss: float) -> str:
        x = LEFT + across * seconds / longest
        y = TOP + down * (high - min(high, max(low, loss))) / (high - low)
        return f"{x:.1f},{y:.1f}"

    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">']
    lines.append('<g font-size="12" fill="#777" stroke="none">')
    for loss in (2, 3, 4, 5):
        y = float(place(0, loss).partition(",")[2])
        lines.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y}" y2="{y}" stroke="#999" stroke-opacity=".35"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{loss}</text>')
    for second in range(int(longest) + 1):
        x = place(second, low).partition(",")[0]
        lines.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{second}</text>')
    lines.append(f'<text x="{WIDTH - 20}" y="{HEIGHT - 6}" text-anchor="end">seconds of training</text>')
    lines.append(f'<text x="{LEFT}" y="{HEIGHT - 6}">training loss, nats per byte</text></g>')
    for number, (dtype, points) in enumerate(curves.items()):
        path = " ".join(place(*point) for point in points)
        lines.append(f'<polyline fill="none" stroke="{INK[dtype]}" stroke-width="2" points="{path}"/>')
        x, y = (float(each) for each in place(*points[-1]).split(","))
        lines.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{INK[dtype]}"/>')
        at = TOP + 14 + 20 * number
        lines.append(
            f'<text x="{LEFT + 120}" y="{at}" font-size="13" fill="{INK[dtype]}">{escape(words[dtype])}</text>'
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    alone = {"precisions": (precisions, "precisions.svg"), "formats": (formats, "survival.png")}
    if len(sys.argv) > 1:
        make, name = alone[sys.argv[1]]
        make(DOCS / name)
    else:
        main()
