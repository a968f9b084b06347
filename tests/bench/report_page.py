"""How large a report of a long run is, how long it takes to write, and how long Chromium takes to open it.

    python -m tests.bench.report_page [--steps 10000] [--layers 100] [--samples 500]

A run of that many steps, a row each, with the ranges of its layers in that many sampled steps. Opening ends when every
chart is drawn and its pixels can be read; figures are medians of five new browsers, without their own start. CPU
seconds are those of all processes of the browser, less those of an empty page; on a busy machine they vary less.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import resource
import statistics
import tempfile
import time
from pathlib import Path

from ampkit.run.report import report
from tests.browser import open_page

# After everything is drawn: when, since the navigation began, how many charts, and how many of them are empty.
SCRIPT = """<script>addEventListener("load", () => setTimeout(() => {
  const figures = [...document.querySelectorAll("figure")];
  const isEmpty = (canvas) => !new Uint32Array(
    canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer).some((pixel) => pixel >>> 24);
  const empty = figures.filter((figure) => [...figure.querySelectorAll("canvas")].some(isEmpty)).length;
  document.body.dataset.opened = [performance.now(), figures.length, empty].join();
}));</script></body>"""


def run_directory(path: Path, steps: int, layers: int, samples: int) -> Path:
    path.mkdir()
    draw = random.Random(0)
    rows = (
        {"step": i, "loss": 2.5 / math.sqrt(i) + 0.1 * draw.random(), "lr": 1e-3, "scale": 65536.0, "skipped": 0}
        | {"grad_norm": draw.expovariate(1), "seconds": 0.03 * i, "memory": 10**8}
        for i in range(1, steps + 1)
    )
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "config.toml").write_text('[model]\nname = "gpt"\n[amp]\ndtype = "float16"\n')
    sampled = range(steps // samples, steps + 1, steps // samples)
    found = ({"step": step, "ranges": [layer(draw, i) for i in range(layers)], "updates": []} for step in sampled)
    (path / "ranges.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    return path


def layer(draw: random.Random, i: int) -> dict[str, object]:
    counts = [draw.randrange(100_000) for _ in range(30)]
    count, lost = sum(counts), [draw.randrange(10) for _ in range(3)]
    names = {"of": "gradient", "path": f"blocks.{i}.attention.projection", "op": "linear", "dtype": "float16"}
    limits = dict.fromkeys(("present", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"), lost)
    return names | limits | {"scale": 65536.0, "count": count, "exponent": -35, "counts": counts, "largest": 0.5}


def opened(page: Path) -> tuple[float, float, int, int]:
    """Seconds until the page is drawn, CPU seconds, the number of its charts, and how many of them are empty."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    found = open_page(page, "--window-size=1280,900", "--timeout=20000", "--dump-dom")
    spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    if lines := [line for line in found.stderr.splitlines() if "CONSOLE" in line]:
        raise SystemExit("\n".join(lines))
    milliseconds, figures, empty = re.search(r'data-opened="([^"]*)"', found.stdout)[1].split(",")
    return float(milliseconds) / 1000, spent, int(figures), int(empty)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("steps", 10_000), ("layers", 100), ("samples", 500)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run, page = run_directory(Path(folder, "run"), **vars(given)), Path(folder, "report.html")
        start = time.perf_counter()
        report([run], page)
        written, size = time.perf_counter() - start, page.stat().st_size
        page.write_text(page.read_text().replace("</body>", SCRIPT))
        blank = Path(folder, "blank.html")
        blank.write_text(f"<!doctype html><title>blank</title><body>{SCRIPT}")
        found = [(opened(page), opened(blank)) for _ in range(5)]
    seconds = statistics.median(each[0] for each, _ in found)
    cpu = statistics.median(each[1] - empty[1] for each, empty in found)
    print(
        f"{size / 1e6:.2f} MB, written in {written:.2f} s, opened in {seconds:.2f} s ({cpu:.2f} s of CPU time); ",
        end="",
    )
    print(f"{found[0][0][2]} charts, {max(each[3] for each, _ in found)} of them empty")


if __name__ == "__main__":
    main()
