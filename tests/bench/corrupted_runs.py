"""Corrupt bytes of a run directory, resume, and check that no difference goes unreported.

    python -m tests.bench.corrupted_runs [--trials 2000] [--most 4] [--seed 0]

Trains recipes/digits_mlp.toml in float16 with dropout once uninterrupted. Each trial copies a run directory, either
that of a run killed at a random step or that of a finished shorter run; changes one to `most` bytes in one file; and
resumes. The final weights, moments and counts, and the metrics without times, are compared with the uninterrupted
run. A difference is silent if the exit status is 0 and no line of the output names the damaged file. Exits with
status 1 for a silent difference or a traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

from ampkit import cli
from ampkit.run.metrics_log import MetricsLog
from tests.bench.interrupted_runs import differences, result

RECIPE = Path(__file__).parents[2] / "recipes" / "digits_mlp.toml"
SETTING = ["amp.dtype=float16", "amp.growth_interval=5", "model.hidden=[8]", "model.dropout=0.2", "train.epochs="]
SETTING += ["train.checkpoint_every=2", "train.log_every=1", "train.eval_every=4", "train.eval_batches=1"]
SETTING += ['schedule={name="constant"}', "data.batch_size=16", "train.threads=1"]
STEPS = 12
BAD = ("SILENT", "MORE", "RAW", "status", "weights")


def train(directory: Path, steps: int = STEPS) -> tuple[int, str]:
    """Train or resume in this process; return the exit status and the output."""
    said = io.StringIO()
    line = ["train", str(RECIPE), *SETTING, f"train.steps={steps}", "--resume", "--run-dir", str(directory)]
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        return cli.main(line), said.getvalue()


def snapshots(directory: Path, folder: Path) -> list[Path]:
    """Train, copying the run directory after each row: what a kill at that moment leaves."""
    copies, write = list[Path](), MetricsLog.write

    def copied(log: MetricsLog, row: Any) -> None:
        write(log, row)
        copies.append(folder / f"killed{len(copies)}")
        shutil.copytree(directory, copies[-1])

    with mock.patch.object(MetricsLog, "write", copied):
        status, said = train(directory)
    assert status == 0, said
    return copies


def corrupt(directory: Path, most: int, draw: random.Random) -> Path:
    """Change up to `most` bytes of a random file; return the file."""
    path = draw.choice(sorted(path for path in directory.rglob("*") if path.is_file() and path.stat().st_size))
    data = bytearray(path.read_bytes())
    for _ in range(draw.randint(1, most)):
        data[draw.randrange(len(data))] ^= draw.randrange(1, 256)
    path.write_bytes(data)
    return path


def outcome(directory: Path, most: int, expected: Any, draw: random.Random) -> tuple[str, Path]:
    path = corrupt(directory, most, draw)
    status, said = train(directory)
    if status:
        return "refused in one line" if status == 2 and said.count("\n") <= 3 else f"status {status}", path
    found, named = result(directory), names(path, said)
    if found == expected:
        return "equal, reported" if named else "equal", path
    what = "weights" if found[1] != expected[1] else "rows"
    if differences(found[0], expected[0])["lost"] > 2 * most:  # a changed line feed joins two rows
        what = "rows, MORE than were changed"
    return f"other {what}, {'reported' if named else 'SILENT'}", path


def names(path: Path, said: str) -> bool:
    """Whether a line of the output says that the file is damaged."""
    name = path.name[: len("step-00000000")] if path.name.startswith("step-") else path.name
    words = ("skipped a damaged", "damaged", "changed since")
    return any(name in line and any(word in line for word in words) for line in said.splitlines())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--most", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw, seen = random.Random(options.seed), Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        starts = snapshots(folder / "whole", folder)
        expected = result(folder / "whole")
        for steps in (4, 8):
            train(folder / f"ended{steps}", steps)
            starts += [folder / f"ended{steps}"] * 4
        for _ in range(options.trials):
            run = folder / "trial"
            shutil.copytree(draw.choice(starts), run)
            try:
                found, path = outcome(run, options.most, expected, draw)
            except Exception as error:
                found, path = f"RAW {type(error).__name__}: {error}", run
            seen[found] += 1
            if any(word in found for word in BAD):
                print(f"{path.relative_to(folder)}: {found}", flush=True)
            shutil.rmtree(run)
    for found, count in sorted(seen.items()):
        print(f"{count:6} {found}")
    return 1 if any(word in found for word in BAD for found in seen) else 0


if __name__ == "__main__":
    sys.exit(main())
