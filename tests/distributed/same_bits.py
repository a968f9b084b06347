"""Train recipes with parallel.deterministic in many ways, and compare all that they leave: rows, weights, moments.

    python tests/distributed/same_bits.py [--steps 50] [--only gpt] [--ranks 1 2 4 8] [--shards 1 2 4]

Ranks are processes that `ampkit launch --sockets` connects; more than there are cores take turns. Accumulation,
threads, stages, ranks that divide layers and a resume with another layout go round with them. Each number of shards, in
which layers are computed, has bits of its own; --quick takes one way for each layout.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

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
        "model.n_head=4",
        "model.dropout=0.2",
    ],
}
DTYPES = ["float32", "bfloat16", "float16"]


DIVIDED = {"text_gpt"}  # recipes whose layers ranks can divide, or have in stages


class Way(NamedTuple):
    """Accumulated batches, threads, tensor and stage of [parallel], whether it resumes halfway, and its pipeline."""

    accumulate: int = 1
    threads: int = 1
    tensor: int = 1
    stage: int = 0
    resumes: bool = False
    pipeline: int = 1

    def __str__(self) -> str:
        layout = f"tensor={self.tensor}, stage={self.stage}, pipeline={self.pipeline}"
        return f"{layout}, {self.accumulate} batches, {self.threads} threads" + (", resumed" if self.resumes else "")


def ways(ranks: int, shards: int, pipelines: bool, quick: bool) -> Iterator[Way]:
    for tensor in [each for each in (1, 2, 4, 8) if each <= min(ranks, shards)]:
        most = 8 * tensor // ranks  # microbatches of a rank
        yield Way(tensor=tensor)
        if ranks > tensor:
            yield Way(min(2, most), tensor=tensor, stage=3)
        if not quick:
            yield Way(min(2, most), 2 if ranks < 4 else 1, tensor)
            if ranks > tensor:
                yield Way(tensor=tensor, stage=1)
            yield Way(most, 1, tensor, 2 if ranks > tensor else 0, True)
    if ranks > 1 and pipelines and shards == 1:
        yield Way(2, resumes=True, pipeline=2)


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


def run(recipe: str, dtype: str, steps: int, ranks: int, shards: int, way: Way, folder: Path) -> str:
    words = [
        *COMMON,
        *SIZES[recipe],
        f"amp.dtype={dtype}",
        f"train.threads={way.threads}",
        f"train.eval_every={steps // 2}",
        f"parallel.tensor_shards={shards}",
    ]
    size = int(next(word for word in words if word.startswith("data.batch_size=")).partition("=")[2])
    batches = int(next(word for word in words if word.startswith("train.eval_batches=")).partition("=")[2])
    words += [f"train.accumulate={way.accumulate}", f"data.batch_size={size // way.accumulate}"]
    words += [f"train.eval_batches={batches * way.accumulate}"]
    layout = [f"parallel.tensor={way.tensor}", f"parallel.stage={way.stage}", f"train.steps={steps}"]
    layout.append(f"parallel.pipeline={way.pipeline}")
    if way.resumes:
        before = [f"parallel.tensor={min(8 // ranks, shards)}", f"train.steps={steps // 2}"]
        train(8 // ranks, recipe, folder, [*words, *before])
        layout.append("--resume")
    train(ranks, recipe, folder, [*words, *layout])
    return digest(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--only", nargs="+", default=[""], help="recipes whose names contain one of these")
    parser.add_argument("--dtype", nargs="+", default=DTYPES)
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--shards", nargs="+", type=int, default=[1, 2, 4], help="of recipes whose layers ranks divide")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    failed = False
    names = [name for name in SIZES if any(part in name for part in args.only)]
    for recipe, dtype, shards in itertools.product(names, args.dtype, args.shards):
        if shards > 1 and recipe not in DIVIDED:
            continue
        found: dict[str, list[str]] = {}
        of = f"{recipe}, {dtype}, {shards} shard{'s' if shards > 1 else ''}"
        for ranks in args.ranks:
            for way in ways(ranks, shards, recipe in DIVIDED, args.quick):
                start = time.perf_counter()
                with tempfile.TemporaryDirectory() as folder:
                    bits = run(recipe, dtype, args.steps, ranks, shards, way, Path(folder) / "run")
                found.setdefault(bits, []).append(f"{ranks} ranks, {way}")
                print(f"{of}: {ranks} ranks, {way}: {bits} ({time.perf_counter() - start:.0f} s)", flush=True)
        failed |= len(found) > 1
        said = "equal bits" if len(found) == 1 else f"DIFFERENT: {found}"
        print(f"{of}, {args.steps} steps: {said}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
