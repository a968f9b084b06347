"""ampkit beside PyTorch on one GPU: whole training steps, kernels against the card's bandwidth, products.

    python -m tests.bench.gpu [--only gpt2 resnet50 mlp kernels] [--minutes 9] [--out FOLDER]

Every variant of a step is a process of its own, one after the other, with the same initial weights and batches; a
figure is the median over blocks of steps, timed by events. Kernels and products take turns with PyTorch's in one
process. Writes gpu.md and gpu.json to FOLDER, after every part, so that what was measured is there however it ends.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "bench")]

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

    def peak(self) -> int:
        return int(getattr(ampkit.cuda, "max_memory_allocated", lambda: 0)())


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

    def peak(self) -> int:
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
    found = {"ms": seconds * 1e3, "rate": work.per_step / seconds, "bytes": steps.peak(), "ready": ready}
    print(json.dumps({**found, "losses": losses[:3]}), flush=True)


def on(device: str) -> None:
    if device == "emulated":
        from cuda_on_cpu import emulated

        backends.install(emulated())
    ampkit.set_default_device("cuda")


def steps_of(name: str, args: argparse.Namespace, until: float) -> Iterator[tuple[str, dict[str, Any]]]:
    for variant in [*([] if args.tiny else THEIRS), *OURS]:
        left = until - time.monotonic()
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


# kernels, against what a copy reaches on the same card


def kernels(tiny: bool) -> dict[str, Any]:
    rows, width, classes = (4, 64, 50) if tiny else (65536, 2048, 50257)
    with ampkit.no_grad():
        copied = ampkit.ones(rows * width)
        other = ampkit.zeros(rows * width)
        found: dict[str, Any] = {"copy": _rate(lambda: other.copy_(copied), 8 * rows * width, tiny)}
    for dtype in (ampkit.float32, ampkit.bfloat16, ampkit.float16):
        size = dtype.itemsize
        x = ampkit.randn(rows, width).to(dtype).requires_grad_()
        weight, bias = ampkit.ones(width), ampkit.zeros(width)
        norm = lambda x=x, w=weight, b=bias: ops.layer_norm(x, (x.shape[-1],), w, b)  # noqa: E731
        soft = lambda x=x: ops.softmax(x, -1)  # noqa: E731
        few = ampkit.randn(rows // 8 or 1, classes).to(dtype).requires_grad_()
        labels = ampkit.randint(0, classes, (rows // 8 or 1,))
        entropy = lambda x=few, y=labels: ops.cross_entropy(x, y)  # noqa: E731
        n, m = x.numel() * size, few.numel() * size
        for name, call, there, back in (("layer_norm", norm, 2 * n, 3 * n), ("softmax", soft, 2 * n, 3 * n),
                                        ("cross_entropy", entropy, m, 2 * m)):  # fmt: skip
            with ampkit.no_grad():
                found[f"{name} {dtype.name}"] = _rate(call, there, tiny)
            out = call()
            seed = ampkit.ones(*out.shape, dtype=out.dtype)
            point = few if name == "cross_entropy" else x
            again = lambda out=out, p=point, s=seed: ampkit.grad(out, [p], [s], retain_graph=True)  # noqa: E731
            found[f"{name}_backward {dtype.name}"] = _rate(again, back, tiny)
    found |= _updates(1000 if tiny else 124_000_000, tiny)
    return found


def _updates(count: int, tiny: bool) -> dict[str, Any]:
    # AdamW reads master, gradient and two moments, writes three of them and a 16-bit copy; unscaling reads and writes.
    weight = ampkit.nn.Parameter(ampkit.randn(count))
    optimizer = optim.AdamW([weight], lr=1e-3)
    with ampkit.autocast(ampkit.get_default_device().type, dtype=ampkit.bfloat16):
        ops.linear(ampkit.ones(1, 10), weight.reshape(-1, 10)[:4])
    weight.grad = ampkit.ones(count)
    from ampkit.arena import spans
    from ampkit.overflow import unscale

    run = spans(optimizer.present())[0]
    inverse = run.block.backend.zeros((), ampkit.float32) + np.float32(1)
    return {
        "AdamW float32": _rate(optimizer.step, (28 + 2 * len(run.copies)) * count, tiny),
        "unscale float32": _rate(lambda: unscale(run.gradient, inverse, run.block.flags()), 8 * count, tiny),
    }


def _rate(call: Callable[[], Any], size: int, tiny: bool) -> dict[str, float]:
    seconds = _seconds(call, 1 if tiny else 20)
    return {"us": seconds * 1e6, "GB/s": size / seconds / 1e9}


def _seconds(call: Callable[[], Any], count: int) -> float:
    there = backends.get()
    call()
    times = []
    for _ in range(3):
        start = there.mark("kernel")
        for _ in range(count):
            call()
        times.append(there.between(start, there.mark()) / count)
    return statistics.median(times)


def products(tiny: bool) -> dict[str, Any]:
    n, found = 16 if tiny else 8192, {}
    for dtype in (ampkit.bfloat16, ampkit.float16, ampkit.float32):
        with ampkit.no_grad():
            a, b = (ampkit.randn(n, n).to(dtype) for _ in range(2))
            seconds = _seconds(lambda a=a, b=b: a @ b, 1 if tiny else 5)
        row = {"ms": seconds * 1e3, "TFLOP/s": 2 * n**3 / seconds / 1e12}
        if not tiny:
            row["torch ms"] = _torch_product(n, dtype.name) * 1e3
        found[f"{n}^3 {dtype.name}"] = row
    return found


def _torch_product(n: int, dtype: str) -> float:
    import torch

    a, b = (torch.randn(n, n, device="cuda").to(getattr(torch, dtype)) for _ in range(2))
    times = []
    for _ in range(4):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(5):
            a @ b
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 5e3)
    return statistics.median(times[1:])


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
        peak = results["kernels"]["copy"]["GB/s"]
        lines += ["## kernels", "", "| | us | GB/s | of a copy |", "|---|---|---|---|"]
        lines += [
            f"| {n} | {r['us']:.1f} | {r['GB/s']:.0f} | {r['GB/s'] / peak:.0%} |" for n, r in results["kernels"].items()
        ]
        lines += ["", "## products", "", "| | ms | TFLOP/s | torch ms |", "|---|---|---|---|"]
        lines += [
            f"| {n} | {r['ms']:.3f} | {r['TFLOP/s']:.0f} | {r.get('torch ms', 0):.3f} |"
            for n, r in results["products"].items()
        ]
    return "\n".join(lines) + "\n"


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
    until = time.monotonic() + 60 * args.minutes
    on(args.device)
    there: Any = backends.get()
    results: dict[str, Any] = {"device": there.describe(), "date": time.strftime("%Y-%m-%d"), "steps": {}}
    if "kernels" in args.only:
        results |= {"kernels": kernels(args.tiny), "products": products(args.tiny)}
        write(args.out, results)
    for name in [n for n in WORK if n in args.only]:
        results["steps"][name] = {}
        for variant, row in steps_of(name, args, until):
            results["steps"][name][variant] = row
            write(args.out, results)
    print(table(results))


def write(folder: Path, results: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu.json").write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    (folder / "gpu.md").write_text(table(results), "utf-8")


if __name__ == "__main__":
    main()
