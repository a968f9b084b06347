"""Train recipes with parallel.deterministic in many ways, and compare all that they leave: rows, weights, moments.

    python tests/distributed/same_bits.py [--steps 50] [--only gpt] [--ranks 1 2 4 8]

Ranks are processes that `ampkit launch --sockets` connects; more than there are cores take turns. Accumulation,
threads, what ranks share out and a resume with another number of ranks, which share nothing out, go round with them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ampkit.run.checkpoint import Checkpoints

ROOT = Path(__file__).parents[2]
COMMON = ["parallel.deterministic=true", "train.epochs=", "train.log_every=1", "train.grad_clip=1.0", "train.ema=0.9"]
COMMON += ['schedule={name="constant"}', "optimizer.lr=1e-3"]
IMAGES = ["data.batch_size=32", "train.eval_batches=2", "model.dropout=0.2"]
SIZES = {
    "digits_cnn": [*IMAGES, "model.width=8"],
    "synthetic/resnet18": ["data.batch_size=16", "train.eval_batches=1", "data.count=64"],
    "text_gpt": [
        "data.batch_size=16",
        "train.eval_batches=2",
        "model.n_layer=2",
        "model.n_embd=64",
        "model.dropout=0.2",
    ],
}
Way = tuple[int, int, bool, str]  # batches, threads, whether it resumes halfway, what ranks share out
DTYPES = ["float32", "bfloat16", "float16"]


def ways(ranks: int) -> Iterator[Way]:
    """Those of a number of ranks."""
    yield 1, 1, False, ""
    yield 2, 2 if ranks < 4 else 1, False, ""
    yield 8 // ranks, 1, True, ""
    if ranks > 1:
        yield 1, 1, False, "parallel.stage=1"
        yield 2, 1, False, "parallel.stage=2"
        yield 8 // ranks, 1, True, "parallel.stage=3"


def digest(folder: Path) -> str:
    """Of all rows and of the last checkpoint."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = [{key: row[key] for key in sorted(row) if key not in ("seconds", "memory")} for row in rows]
    last = Checkpoints(folder / "checkpoints").last()
    assert last is not None
    found = hashlib.sha256(json.dumps(kept).encode())
    for part in ("model", "optimizer", "average", "scaler"):
        _update(found, last.state.get(part))
    return found.hexdigest()[:16]


def _update(found: Any, value: Any) -> None:
    if isinstance(value, dict):
        for name in sorted(value, key=str):
            found.update(str(name).encode())
            _update(found, value[name])
    elif isinstance(value, list | tuple):
        for each in value:
            _update(found, each)
    else:
        found.update(value.numpy().tobytes() if hasattr(value, "numpy") else repr(value).encode())


def train(ranks: int, recipe: str, folder: Path, words: list[str]) -> None:
    launch = ["launch", "--sockets", "-n", str(ranks)] if ranks > 1 else []
    command = [sys.executable, "-m", "ampkit", *launch, "train", str(ROOT / "recipes" / f"{recipe}.toml"), *words]
    done = subprocess.run([*command, "--run-dir", str(folder)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def run(recipe: str, dtype: str, steps: int, ranks: int, way: Way, folder: Path) -> str:
    accumulate, threads, resumes, layout = way
    words = [
        *COMMON,
        *SIZES[recipe],
        f"amp.dtype={dtype}",
        f"train.threads={threads}",
        f"train.eval_every={steps // 2}",
    ]
    size = int(next(word for word in words if word.startswith("data.batch_size=")).partition("=")[2])
    batches = int(next(word for word in words if word.startswith("train.eval_batches=")).partition("=")[2])
    words += [f"train.accumulate={accumulate}", f"data.batch_size={size // accumulate}"]
    words += [f"train.eval_batches={batches * accumulate}"]
    if resumes:
        train(8 // ranks, recipe, folder, [*words, f"train.steps={steps // 2}"])
    train(ranks, recipe, folder, [*words, *layout.split(), f"train.steps={steps}", *["--resume"] * resumes])
    return digest(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--only", nargs="+", default=[""], help="recipes whose names contain one of these")
    parser.add_argument("--dtype", nargs="+", default=DTYPES)
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 4, 8])
    args = parser.parse_args()
    failed = False
    for recipe in [name for name in SIZES if any(part in name for part in args.only)]:
        for dtype in args.dtype:
            found: dict[str, list[str]] = {}
            for ranks in args.ranks:
                for way in ways(ranks):
                    start = time.perf_counter()
                    with tempfile.TemporaryDirectory() as folder:
                        name = "{} batches, {} threads".format(*way[:2]) + (", resumed" if way[2] else "")
                        name += f", {way[3]}" if way[3] else ""
                        bits = run(recipe, dtype, args.steps, ranks, way, Path(folder) / "run")
                    found.setdefault(bits, []).append(f"{ranks} ranks, {name}")
                    seconds = time.perf_counter() - start
                    print(f"{recipe}, {dtype}: {ranks} ranks, {name}: {bits} ({seconds:.0f} s)", flush=True)
            failed |= len(found) > 1
            said = "equal bits" if len(found) == 1 else f"DIFFERENT: {found}"
            print(f"{recipe}, {dtype}, {args.steps} steps: {said}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
