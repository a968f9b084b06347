"""Make the pictures of README and the docs from real runs: a report and the terminal while a run trains.

    python -m tests.bench.pictures

Trains the digits recipe in three precisions, writes docs/report.png (a screenshot of the report by headless Chromium)
and docs/terminal.svg (what `ampkit train` shows in the middle of the float16 run).
"""

from __future__ import annotations

import io
import re
import subprocess
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI

from ampkit import config
from ampkit.cli.progress import ProgressMeter
from ampkit.run.loop import fit
from ampkit.run.report import report
from tests.browser import open_page

DOCS = Path(__file__).parents[2] / "docs"
RECIPE = Path(__file__).parents[2] / "recipes" / "digits_cnn.toml"
SHOWN = 0.6  # of the run, where the picture of the terminal is taken
SIZE = (1200, 2010)  # of the screenshot, in pixels


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs = [trained(Path(folder), dtype) for dtype in ("float32", "bfloat16", "float16")]
        report(runs, Path(folder) / "report.html")
        screenshot(Path(folder) / "report.html", DOCS / "report.png")
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


def screenshot(page: Path, out: Path) -> None:
    size = f"--window-size={SIZE[0]},{SIZE[1]}"
    open_page(page, "--hide-scrollbars", "--virtual-time-budget=5000", size, f"--screenshot={out}")


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
