"""Compare whole training steps of ampkit and PyTorch on the CPU: time, memory and losses.

    pip install torch && python tests/bench/peers.py [--work gpt vit ...] [--rounds 5] [--json FILE]
    python tests/bench/peers.py --only ampkit --threads 1 --cpu-time     on a machine that is shared with others
    python tests/bench/peers.py --cpu avx512     as on a CPU with AVX-512 and without units for 16-bit products

Each variant runs in its own process, with the same initial weights and batches; in each round the processes take a few
steps in turn, while the others sleep. Figures are medians over the rounds of the time per step; ratios are of medians.
Peak memory is that of the process minus what it used before the model was built. --cpu restricts both libraries to the
instructions of a smaller CPU, by the environment variables in CPUS; the first line of the output says what each then
uses, in the words of its oneDNN. Code that torch.compile generates keeps the CPU's conversions to bfloat16.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from processes import Process, Worker

import ampkit
from ampkit import models, ops, optim
from ampkit.backends.cpu import cpuinfo

BATCHES, STEPS, WARMUP = 4, 3, 3


class Work(NamedTuple):
    """A model's name and arguments, and its batch shape."""

    model: str
    options: dict[str, Any]
    batch: tuple[int, ...]


def _gpt(layers: int, width: int, heads: int, batch: int, context: int) -> Work:
    sizes = {"vocab_size": 65, "block_size": context, "n_layer": layers, "n_head": heads, "n_embd": width}
    return Work("gpt", {**sizes, "tie_weights": False}, (batch, context))


_STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
WORK = {
    "gpt": _gpt(6, 384, 6, 8, 256),
    "resnet18": Work("resnet18", {"num_classes": 10, "stem": "cifar"}, (32, 3, 32, 32)),
    "nano": _gpt(4, 128, 4, 12, 64),
    "vit": Work("vit", {"num_layers": 6, "num_heads": 6, "hidden_dim": 384, "mlp_dim": 1536}, (32, 3, 32, 32)),
    "convmixer": Work("convmixer", {"dim": 256, "depth": 8, "kernel_size": 5, "patch_size": 2}, (32, 3, 32, 32)),
    "bert": Work("bert", {"preset": "small", "vocab_size": 8192, **_STILL}, (16, 128)),
}
OURS = ["ampkit float32", "ampkit bfloat16", "ampkit float16"]
_WAYS = ["", " fused", " fused compile"]
THEIRS = [f"torch {dtype}{way}" for dtype in ("float32", "bfloat16") for way in _WAYS]
_LAST = [" channels_last fused", " channels_last fused compile"]
IMAGES = [f"torch {dtype}{way}" for dtype in ("float32", "bfloat16") for way in _LAST]

# The CPUs that --cpu takes: what oneDNN (in both), PyTorch and ampkit read from the environment when they are loaded.
_AVX512 = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "ATEN_CPU_CAPABILITY": "avx512", "AMPKIT_CPU_ISA": "x86-64-v4"}
_AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "AMPKIT_CPU_ISA": "x86-64-v3"}
CPUS = {"own": {}, "avx512": _AVX512, "avx2": {**_AVX2, "MKL_ENABLE_INSTRUCTIONS": "AVX2"}}

_OUR_INSTRUCTIONS = """
from ampkit.backends.cpu.native.library import instruction_set
from ampkit.backends.cpu.onednn.library import isa
print(f"{isa()}, kernels for {instruction_set()}")
"""
_THEIR_INSTRUCTIONS = """
import torch
with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):  # oneDNN prints its instruction set at first
    torch.mkldnn_convolution(torch.ones(1, 16, 8, 8), torch.ones(16, 16, 3, 3), None, (0, 0), (1, 1), (1, 1), 1)
print(f"{torch.__version__}, kernels for {torch.backends.cpu.get_cpu_capability()}")
"""

# the ratios quoted in README and docs: (name, slower, faster), the best of several where a name ends in *
RATIOS = [
    ("torch's best bfloat16 / ampkit bfloat16", "torch bfloat16*", "ampkit bfloat16"),
    ("torch's best / ampkit's best", "torch*", "ampkit*"),
    ("torch's best float32 / ampkit float32", "torch float32*", "ampkit float32"),
    ("ampkit float32 / ampkit bfloat16", "ampkit float32", "ampkit bfloat16"),
    ("ampkit float32 / ampkit float16", "ampkit float32", "ampkit float16"),
]


def batches(work: Work) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    if "vocab_size" in work.options:
        n, t = work.batch
        tokens = [rng.integers(0, work.options["vocab_size"], (n, t + 1)) for _ in range(BATCHES)]
        return [(x[:, :-1], x[:, 1:]) for x in tokens]
    return [
        (rng.standard_normal(work.batch).astype(np.float32), rng.integers(0, 10, work.batch[0])) for _ in range(BATCHES)
    ]


# the child process


def our_step(work: Work, dtype: str, flags: list[str]) -> Callable[[int], float]:
    model = build(work)
    optimizer = optim.AdamW(model.parameters(), lr=3e-4)
    scaler = ampkit.GradScaler(enabled=dtype == "float16")
    data = [(ampkit.tensor(x), ampkit.tensor(y)) for x, y in batches(work)]

    def step(number: int) -> float:
        x, y = data[number % BATCHES]
        with nullcontext() if dtype == "float32" else ampkit.autocast(dtype=dtype):
            logits = model(x)
            loss = ops.cross_entropy(logits.flatten(0, -2), y.flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.item()

    return step


def build(work: Work) -> Any:
    ampkit.manual_seed(0)
    return getattr(models, work.model)(**work.options)


def their_step(work: Work, dtype: str, flags: list[str]) -> Callable[[int], float]:
    import pytorch_models
    import torch

    theirs = pytorch_models.load(getattr(pytorch_models, work.model)(**work.options), build(work))
    order = torch.channels_last if "channels_last" in flags else torch.preserve_format
    model = theirs.to(memory_format=order)
    data = [(torch.from_numpy(x.copy()), torch.from_numpy(y.copy())) for x, y in batches(work)]
    if "channels_last" in flags:
        data = [(x.to(memory_format=order), y) for x, y in data]
    forward = torch.compile(model) if "compile" in flags else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused="fused" in flags)

    def step(number: int) -> float:
        x, y = data[number % BATCHES]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype != "float32"):
            logits = forward(x)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def worker(work: str, variant: str, threads: int, clock: Callable[[], float]) -> None:
    """Read numbers of steps from stdin; for each, take the steps and print seconds, losses and peak memory."""
    library, dtype, *flags = variant.split()
    if library == "torch":
        import torch

        torch.set_num_threads(threads)
    else:
        ampkit.set_num_threads(threads)
    before = peak()
    step = (their_step if library == "torch" else our_step)(WORK[work], dtype, flags)
    done = 0
    for line in sys.stdin:
        start = clock()
        losses = [step(done + i) for i in range(int(line))]
        seconds = (clock() - start) / len(losses)
        done += len(losses)
        print(json.dumps({"seconds": seconds, "losses": losses, "bytes": peak() - before}), flush=True)


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# the rounds


def about(threads: int, cpu_time: bool) -> str:
    """The date, the machine, how busy it is, how time is counted, and what each library computes with."""
    clock = "seconds of all threads" if cpu_time else "seconds on the wall"
    machine = f"{cpuinfo.entry('model name') or platform.machine()}, threads: {threads}, {clock}"
    ours = "".join(Process(["-c", _OUR_INSTRUCTIONS], 60).lines()).strip()
    said = "".join(Process(["-c", _THEIR_INSTRUCTIONS], 60).lines()).splitlines()
    theirs = [line.partition("isa:")[2] for line in said if "cpu,isa:" in line] + said[-1:]
    load = f"load {os.getloadavg()[0]:.1f}"
    return f"{date.today()}, {machine}, {load}; ampkit: {ours}; PyTorch: {', '.join(theirs) or 'not installed'}"


def compare(work: str, variants: list[str], rounds: int, options: list[str]) -> dict[str, Any]:
    processes = {variant: Worker([__file__, "--worker", work, variant, *options]) for variant in variants}
    found: dict[str, Any] = {}
    for variant, process in processes.items():
        found[variant] = {"losses": process.ask(WARMUP)["losses"], "times": []}
    for _ in range(rounds):
        for variant, process in processes.items():
            answer = process.ask(STEPS)
            found[variant]["times"].append(answer["seconds"])
            found[variant]["bytes"] = answer["bytes"]
    for process in processes.values():
        process.end()
    for row in found.values():
        row["ms"] = statistics.median(row["times"]) * 1e3
    return found


def best(found: dict[str, Any], pattern: str) -> float | None:
    names = [n for n in found if n == pattern or (pattern.endswith("*") and n.startswith(pattern[:-1]))]
    names = [n for n in names if all(map(math.isfinite, found[n]["losses"]))]
    return min((found[n]["ms"] for n in names), default=None)


def table(work: str, found: dict[str, Any]) -> str:
    lines = [f"### {work}", "", "| variant | ms per step | MB | first losses |", "|---|---|---|---|"]
    for variant, row in found.items():
        losses = " ".join(f"{loss:.4f}" for loss in row["losses"])
        lines.append(f"| {variant} | {row['ms']:.1f} | {row['bytes'] / 1e6:.0f} | {losses} |")
    lines += ["", "| ratio | |", "|---|---|"]
    for name, slower, faster in RATIOS:
        a, b = best(found, slower), best(found, faster)
        if a is not None and b is not None:
            lines.append(f"| {name} | {a / b:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", nargs="+", default=list(WORK), choices=WORK)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", default=[""], help="variants whose names contain one of these")
    parser.add_argument("--without", nargs="+", default=[], help="no variants whose names contain one of these")
    parser.add_argument("--cpu", default="own", choices=CPUS, help="restrict both libraries to this CPU's instructions")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cpu-time", action="store_true", help="seconds of all threads, not of the clock on the wall")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(*args.worker, args.threads, time.process_time if args.cpu_time else time.perf_counter)
        return
    if args.rounds < 3:
        parser.error(f"argument --rounds: needs at least 3, for a median, got {args.rounds}")
    # torch.compile would take code from its cache that it generated for another --cpu.
    cache = Path(tempfile.gettempdir()) / f"peers-{args.cpu}"
    os.environ.update({**CPUS[args.cpu], "TORCHINDUCTOR_CACHE_DIR": str(cache)})
    described = about(args.threads, args.cpu_time)
    print(described, end="\n\n", flush=True)
    options = ["--threads", str(args.threads), *["--cpu-time"] * args.cpu_time]
    results = {}
    for work in args.work:
        names = [*OURS, *THEIRS, *(IMAGES if work in ("resnet18", "convmixer") else [])]
        chosen = [n for n in names if any(part in n for part in args.only)]
        chosen = [n for n in chosen if not any(part in n for part in args.without)]
        results[work] = compare(work, chosen, args.rounds, options)
        print(table(work, results[work]), end="\n\n", flush=True)
    if args.json:
        args.json.write_text(
            json.dumps({"about": described, "threads": args.threads, "results": results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
