"""ampkit beside PyTorch on one GPU: whole training steps, kernels against the card's bandwidth, products.

    python -m tests.bench.gpu [--only gpt2 resnet50 mlp kernels] [--minutes 9] [--out FOLDER]

Every variant of a step is a process of its own, one after the other, with the same initial weights and batches; a
figure is the median over blocks of steps, timed by events. Kernels and products take turns with PyTorch's in one
process, which has a third of the minutes at most. Peaks of memory are of what arrays hold, over a few steps that are
not timed, in both libraries. Without PyTorch its figures are missing, with a word that says so, and all others are
there. Writes gpu.md and gpu.json to FOLDER after every figure, so that what was measured is there however it ends.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "bench")]

import gpu_kernels  # noqa: E402

import ampkit  # noqa: E402
from ampkit import backends, models, ops, optim  # noqa: E402

BATCHES = 4


class Work(NamedTuple):
    """A model, its batch, the precision of mixed training, and what a step is counted in."""

    model: str
    options: dict[str, Any]
    batch: tuple[int, ...]
    classes: int
    dtype: str
    unit: str
    steps: int  # in a block

    @property
    def per_step(self) -> int:
        return self.batch[0] * (self.batch[1] if self.unit == "tokens" else 1)


_GPT2 = {"vocab_size": 50257, "block_size": 1024, "n_layer": 12, "n_head": 12, "n_embd": 768}
WORK = {
    "gpt2": Work("gpt", _GPT2, (16, 1024), 50257, "bfloat16", "tokens", 5),
    "resnet50": Work("resnet50", {}, (256, 3, 224, 224), 1000, "float16", "images", 5),
    "mlp": Work("mlp", {"in_features": 64, "hidden": [256, 256]}, (64, 64), 10, "float16", "samples", 200),
}
_TINY_GPT = {"vocab_size": 50, "block_size": 16, "n_layer": 1, "n_head": 2, "n_embd": 16}
TINY = {
    "gpt2": WORK["gpt2"]._replace(options=_TINY_GPT, batch=(2, 16), classes=50, steps=1),
    "resnet50": WORK["mlp"]._replace(steps=1),
    "mlp": WORK["mlp"]._replace(batch=(4, 64), steps=2),
}
OURS = ["ampkit float32", "ampkit mixed", "ampkit mixed compiled"]
THEIRS = ["torch mixed", "torch mixed compiled"]
RATIOS = [
    ("torch eager / ampkit compiled", "torch mixed", "ampkit mixed compiled", "ms"),
    ("torch eager / ampkit eager", "torch mixed", "ampkit mixed", "ms"),
    ("torch compiled / ampkit compiled", "torch mixed compiled", "ampkit mixed compiled", "ms"),
    ("ampkit float32 / ampkit mixed compiled", "ampkit float32", "ampkit mixed compiled", "ms"),
    ("memory: ampkit mixed / float32", "ampkit mixed", "ampkit float32", "bytes"),
]


def batches(work: Work) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    if work.unit == "tokens":
        tokens = [rng.integers(0, work.classes, (work.batch[0], work.batch[1] + 1)) for _ in range(BATCHES)]
        return [(x[:, :-1].copy(), x[:, 1:].copy()) for x in tokens]
    labels = [rng.integers(0, work.classes, work.batch[0]) for _ in range(BATCHES)]
    return [(rng.standard_normal(work.batch).astype(np.float32), y) for y in labels]


# steps


class Ours:
    """Training steps of ampkit on the default device."""

    def __init__(self, work: Work, flags: list[str]):
        ampkit.manual_seed(0)
        self.device = ampkit.get_default_device()
        self.model = getattr(models, work.model)(**work.options).to(self.device)
        self.optimizer = optim.AdamW(self.model.parameters(), lr=3e-4)
        dtype = "float32" if "float32" in flags else work.dtype
        self.scaler = ampkit.GradScaler(enabled=dtype == "float16")
        self.region = ampkit.autocast(self.device.type, dtype="bfloat16" if dtype == "float32" else dtype,
                                      enabled=dtype != "float32")  # fmt: skip
        self.data = [tuple(ampkit.tensor(a, device=self.device) for a in pair) for pair in batches(work)]
        self.step = ampkit.compile(self._step) if "compiled" in flags else self._step

    def _step(self, x: Any, y: Any) -> Any:
        with self.region:
            loss = ops.cross_entropy(self.model(x).flatten(0, -2), y.flatten())
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return loss.detach()

    def time(self, count: int, first: int) -> tuple[float, list[float]]:
        there = backends.get()
        start = there.mark("block")
        losses = [self.step(*self.data[(first + i) % BATCHES]) for i in range(count)]
        seconds = there.between(start, there.mark())
        return seconds / count, [float(loss) for loss in losses]

    def peak(self, count: int) -> int:
        ampkit.cuda.reset_peak_memory_stats()  # from here on allocations are watched, which takes time
        self.time(count, 0)
        return ampkit.cuda.max_memory_allocated()


class Theirs:
    """Training steps of PyTorch on the GPU."""

    def __init__(self, work: Work, flags: list[str]):
        import torch
        import twins

        ampkit.manual_seed(0)
        ampkit.set_default_device("cpu")
        source = getattr(models, work.model)(**work.options)
        self.torch, self.work = torch, work
        order = torch.channels_last if len(work.batch) == 4 else torch.preserve_format
        self.model = twins.load(getattr(twins, work.model)(**work.options), source).cuda().to(memory_format=order)
        self.forward = torch.compile(self.model) if "compiled" in flags else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)
        self.scaler = torch.amp.GradScaler("cuda", enabled=work.dtype == "float16")
        pairs = ((torch.from_numpy(x).cuda(), torch.from_numpy(y).cuda()) for x, y in batches(work))
        self.data = [(x.to(memory_format=order) if x.ndim == 4 else x, y) for x, y in pairs]

    def step(self, x: Any, y: Any) -> Any:
        torch = self.torch
        with torch.autocast("cuda", dtype=getattr(torch, self.work.dtype)):
            logits = self.forward(x)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten())
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def time(self, count: int, first: int) -> tuple[float, list[float]]:
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        losses = [self.step(*self.data[(first + i) % BATCHES]) for i in range(count)]
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / count, [float(loss) for loss in losses]

    def peak(self, count: int) -> int:
        self.torch.cuda.reset_peak_memory_stats()
        self.time(count, 0)
        return int(self.torch.cuda.max_memory_allocated())


def worker(name: str, variant: str, tiny: bool, device: str) -> None:
    """The process of one variant: its figures as a line of JSON."""
    on(device)
    work, (library, *flags) = (TINY if tiny else WORK)[name], variant.split()
    begun = time.perf_counter()
    steps = (Ours if library == "ampkit" else Theirs)(work, flags)
    _, losses = steps.time(6, 0)  # compiles, warms up and records
    ready = time.perf_counter() - begun
    times = [steps.time(work.steps, 6)[0] for _ in range(1 if tiny else 7)]
    seconds = statistics.median(times)
    found = {"ms": seconds * 1e3, "rate": work.per_step / seconds, "bytes": steps.peak(BATCHES), "ready": ready}
    print(json.dumps({**found, "losses": losses[:3]}), flush=True)


def on(device: str) -> None:
    if device == "emulated":
        from cuda_on_cpu import emulated

        backends.install(emulated())
    ampkit.set_default_device("cuda")


def steps_of(name: str, args: argparse.Namespace, until: float, trouble: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for variant in [*([] if args.tiny else THEIRS), *OURS]:
        left = until - time.monotonic()
        if trouble and variant in THEIRS:
            yield variant, {"error": trouble}
            continue
        if left < 20:
            yield variant, {"error": "no time left"}
            continue
        command = [sys.executable, __file__, "--worker", name, variant, "--device", args.device]
        command += ["--tiny"] if args.tiny else []
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=left)
            lines = run.stdout.splitlines()
            yield variant, json.loads(lines[-1]) if run.returncode == 0 else {"error": run.stderr[-2000:]}
        except subprocess.TimeoutExpired:
            yield variant, {"error": "no time left"}


# tables


def table(results: dict[str, Any]) -> str:
    lines = [f"# {results['device']}", "", f"{results['date']}, `python -m tests.bench.gpu`", ""]
    for name, found in results["steps"].items():
        unit = WORK[name].unit
        lines += [f"## {name}", "", f"| variant | ms per step | {unit}/s | peak GB | first losses |"]
        lines += ["|---|---|---|---|---|"]
        lines += [_row(variant, row) for variant, row in found.items()]
        lines += ["", "| ratio | |", "|---|---|"]
        for ratio, above, below, key in RATIOS:
            a, b = (found.get(v, {}).get(key) for v in (above, below))
            lines += [f"| {ratio} | {a / b:.2f} |"] if a and b else []
        lines.append("")
    if results.get("kernels"):
        peak = results["kernels"].get("copy", {}).get("GB/s")
        lines += [
            "## kernels",
            "",
            "| | us | GB/s | of a copy | torch us | torch / ampkit |",
            "|---|---|---|---|---|---|",
        ]
        for name, row in results["kernels"].items():
            speed = f"{row['GB/s']:.0f} | {row['GB/s'] / peak:.0%}" if peak and "GB/s" in row else " |"
            lines.append(f"| {name} | {_figure(row, 'us')} | {speed} | {_beside(row, 'us', results)} |")
        lines.append("")
    if results.get("products"):
        lines += ["## products", "", "| | ms | TFLOP/s | torch ms | torch / ampkit |", "|---|---|---|---|---|"]
        for name, row in results["products"].items():
            speed = f"{row['TFLOP/s']:.0f}" if "TFLOP/s" in row else ""
            lines.append(f"| {name} | {_figure(row, 'ms')} | {speed} | {_beside(row, 'ms', results)} |")
    return "\n".join(lines) + "\n"


def _figure(row: dict[str, Any], unit: str) -> str:
    return f"{row[unit]:.{1 if unit == 'us' else 3}f}" if unit in row else row.get("error", "")


def _beside(row: dict[str, Any], unit: str, results: dict[str, Any]) -> str:
    # PyTorch's figure and the ratio, or why there is none.
    found = row.get(f"torch {unit}")
    if found is None:
        return f"{row.get(f'torch {unit} error', results.get('torch', ''))} |"
    return f"{_figure({unit: found}, unit)} | {found / row[unit]:.2f}"


def _row(variant: str, row: dict[str, Any]) -> str:
    if "error" in row:
        return f"| {variant} | {(row['error'].strip().splitlines() or ['failed'])[-1][:200]} | | | |"
    losses = " ".join(f"{loss:.4f}" for loss in row["losses"])
    return f"| {variant} | {row['ms']:.2f} | {row['rate']:,.0f} | {row['bytes'] / 1e9:.2f} | {losses} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[*WORK, "kernels"], choices=[*WORK, "kernels"])
    parser.add_argument("--minutes", type=float, default=8.5)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--device", default="cuda", choices=("cuda", "emulated"), help=argparse.SUPPRESS)
    parser.add_argument("--tiny", action="store_true", help="sizes that say nothing, to see whether it runs")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(*args.worker, args.tiny, args.device)
        return
    begun = time.monotonic()
    until = begun + 60 * args.minutes
    on(args.device)
    there: Any = backends.get()
    beside = gpu_kernels.Beside("cpu" if args.device == "emulated" else "cuda")
    results: dict[str, Any] = {"device": there.describe(), "date": time.strftime("%Y-%m-%d"), "torch": beside.trouble}
    results["steps"] = {}
    if "kernels" in args.only:
        for part in ("kernels", "products"):
            cases, results[part] = getattr(gpu_kernels, part)(args.tiny, beside), {}
            for name, row in gpu_kernels.measured(cases, begun + 20 * args.minutes):
                results[part][name] = row
                write(args.out, results)
        ampkit.cuda.empty_cache()  # the steps are other processes, and need the memory
        beside.free()
    for name in [n for n in WORK if n in args.only]:
        results["steps"][name] = {}
        for variant, row in steps_of(name, args, until, beside.trouble):
            results["steps"][name][variant] = row
            write(args.out, results)
    print(table(results))


def write(folder: Path, results: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu.json").write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    (folder / "gpu.md").write_text(table(results), "utf-8")


if __name__ == "__main__":
    main()
