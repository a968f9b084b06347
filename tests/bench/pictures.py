"""Make the pictures of README and the docs from real runs: a report, parts of it, and the terminal while a run trains.

    python -m tests.bench.pictures

Trains the digits recipe in three precisions and measures their steps; writes docs/report.png and lost.png
(screenshots of the report, and of one of its sections, by headless Chromium) and docs/terminal.svg (what `ampkit train`
shows in the middle of the float16 run). Needs Pillow, which makes the files small.
"""

from __future__ import annotations

import io
import re
import subprocess
import tempfile
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.terminal_theme import MONOKAI

from ampkit import config
from ampkit.cli.progress import ProgressMeter
from ampkit.run.loop import fit
from ampkit.run.measure import measure_run
from ampkit.run.report import report
from tests.browser import open_page

DOCS = Path(__file__).parents[2] / "docs"
RECIPE = Path(__file__).parents[2] / "recipes" / "digits_cnn.toml"
SHOWN = 0.6  # of the run, where the picture of the terminal is taken
# By file, the section that is shown, all of them for "", and the size of the picture in pixels.
PICTURES = {"report": ("", 1200, 1540), "lost": ("precision-title", 900, 770)}
COLORS = 128


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs = [trained(Path(folder), dtype) for dtype in ("float32", "bfloat16", "float16")]
        for run in runs:
            measure_run(run)
        report(runs, Path(folder) / "report.html")
        for name, (section, *size) in PICTURES.items():
            screenshot(Path(folder) / "report.html", DOCS / f"{name}.png", section, *size)
    terminal(DOCS / "terminal.svg")


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


if __name__ == "__main__":
    main()
