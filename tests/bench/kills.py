"""A run that is killed, again and again, and resumed: does it end like the one that never was?

    python tests/bench/kills.py [--kills 20] [--steps 60] [key=value ...]

Trains recipes/text_gpt.toml in float16 with dropout and accumulated gradients, once without being stopped; then, for
each kill, anew, killed (SIGKILL) at a random moment and resumed to its end. Metrics, weights, moments, scale, random
stream and cursor of the two endings are compared bit for bit. Ends with status 1 if one of them differs.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ampkit import Tensor
from ampkit.checkpoint import Checkpoints

RECIPE = Path(__file__).parents[2] / "recipes" / "text_gpt.toml"
SETTING = ["amp.dtype=float16", "amp.growth_interval=20", "model.dropout=0.1", "train.accumulate=2", "model.n_layer=2"]
SETTING += ["train.checkpoint_every=7", "train.log_every=1", "train.eval_every=20", "train.eval_batches=4"]
SETTING += ["schedule.warmup=5", "train.threads=1", "model.n_embd=64", "model.block_size=64"]


def command(directory: Path, overrides: list[str]) -> list[str]:
    """A run in `directory`, or its continuation."""
    line = [sys.executable, "-m", "ampkit", "train", str(RECIPE), *SETTING, *overrides]
    return [*line, "--resume", "--run-dir", str(directory)]


def ending(directory: Path) -> Any:
    """All that a run has left, less the clock."""
    rows = [json.loads(line) | {"seconds": 0} for line in (directory / "metrics.jsonl").read_text().splitlines()]
    last = Checkpoints(directory / "checkpoints").last()
    assert last is not None
    return plain([rows, last.state | {"counts": last.state["counts"] | {"seconds": 0}}])


def plain(value: Any) -> Any:
    """With bytes in the place of tensors."""
    if isinstance(value, Tensor):
        return value.dtype.name, value.shape, value.numpy().tobytes()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def killed(directory: Path, overrides: list[str], at: float) -> str:
    """Start a run, kill it `at` seconds after its first row, and say where."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process, metrics = subprocess.Popen(command(directory, overrides), **quiet), directory / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.005)
    time.sleep(at)
    over = process.poll() is not None
    process.kill()
    process.wait()
    return "over before it was killed" if over else f"killed behind {metrics.read_text().count(chr(10))} rows"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    options = parser.parse_args()
    overrides, draw, equal = [f"train.steps={options.steps}", *options.overrides], random.Random(0), 0
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        subprocess.run(command(whole, overrides), check=True, stdout=subprocess.DEVNULL)
        expected = ending(whole)
        seconds = json.loads((whole / "metrics.jsonl").read_text().splitlines()[-2])["seconds"]
        for number in range(options.kills):
            run = Path(folder) / f"run{number}"
            where = killed(run, overrides, draw.uniform(0, 0.8 * seconds))
            subprocess.run(command(run, overrides), check=True, stdout=subprocess.DEVNULL)
            same = ending(run) == expected
            equal += same
            print(f"run {number + 1}: {where}, {'equal' if same else 'DIFFERENT'}", flush=True)
    print(f"{equal} of {options.kills} endings equal")
    return 0 if equal == options.kills else 1


if __name__ == "__main__":
    sys.exit(main())
