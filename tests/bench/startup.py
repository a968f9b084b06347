"""How long one waits for ampkit to start: imports, and the first output of `ampkit train` on a terminal.

    python tests/bench/startup.py [--rounds 15]

Each row is a new Python process; the rows take turns, and figures are medians. Python's own start and the import of
NumPy, which nothing can undercut, stand first. CPU seconds are those of the main thread: on a busy machine they vary
less than the clock on the wall. Linux only.
"""

from __future__ import annotations

import argparse
import os
import pty
import select
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from processes import ROOT, environment, kill

TRAIN = ["train", str(ROOT / "recipes" / "digits_cnn.toml"), "train.threads=1"]
COMMAND = f"import sys, ampkit_cli; sys.argv[1:] = {TRAIN}; sys.exit(ampkit_cli.main())"
# By row, a program and the output that ends it; all of them print.
ROWS = {
    "Python alone": ("print(1)", b"1"),
    "import numpy": ("import numpy; print(1)", b"1"),
    "import ampkit": ("import ampkit; print(1)", b"1"),
    "import torch, which means ampkit": ("import ampkit.as_torch as a; a.install(); import torch; print(1)", b"1"),
    "`ampkit train`: anything on the terminal": (COMMAND, b"loading"),
    "`ampkit train`: building the model": (COMMAND, b"building"),
}


def measure(program: str, awaited: bytes, folder: str) -> tuple[float, float]:
    """Seconds on the wall and of the main thread until a process has written `awaited` to its terminal."""
    outer, inner = pty.openpty()
    start, shown = time.perf_counter(), b""
    cached = environment(PYTHONDONTWRITEBYTECODE="", PYTHONPYCACHEPREFIX=folder)  # as an installed package is
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=inner, stderr=inner, cwd=folder, env=cached, process_group=0
    )
    try:
        while awaited not in shown:
            if not select.select([outer], [], [], 60)[0]:
                raise TimeoutError(f"no {awaited!r} within 60 s, only {shown!r}")
            shown += os.read(outer, 65536)
        wall = time.perf_counter() - start
        return wall, int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[0]) * 1e-9
    finally:
        kill(process)
        os.close(inner)
        os.close(outer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ROWS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds + 1):
            for name, (program, awaited) in ROWS.items():
                found[name].append(measure(program, awaited, folder))
    print("| | seconds | CPU seconds |\n|---|---|---|")
    for name, times in found.items():
        wall, cpu = (statistics.median(column) for column in zip(*times[1:], strict=True))  # the first fills caches
        print(f"| {name} | {wall:.2f} | {cpu:.2f} |")


if __name__ == "__main__":
    main()
