"""A Llama-like model in plain ops, compiled and eager, beside PyTorch's on the CPU; and the memory of compiled steps.

    python tests/bench/compiled_steps.py [--dtypes float32 bfloat16] [--rounds 5] [--without torch] [--cpu-time]
    python tests/bench/compiled_steps.py --memory

Width 256, 6 layers, 8 x 256 tokens: RMS norm, rotary positions and gated layers are written out, as models of others
write them. Both libraries start from the same weights. Each variant runs in a process of its own, in turns of some
steps; figures are medians, ratios are of the turns side by side. The first call is that of a process that has imported
its library and built its model, while the others wait. --memory: the most bytes that arrays held in a step of
GPT (6 layers, width 384, 8 x 256 tokens), parameters and moments included and not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
from processes import Process, Worker

WIDTH, HEADS, HIDDEN, LAYERS, VOCABULARY, BATCH, TOKENS = 256, 4, 704, 6, 256, 8, 256
VARIANTS = ("ampkit compiled", "ampkit eager", "torch compiled", "torch eager")


def llama(lib: Any, nn: Any, ops: Any) -> Any:
    """The model, of ampkit or of PyTorch."""
    Module: Any = nn.Module  # noqa: N806 - a class

    class Rms(Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(lib.ones(WIDTH))

        def forward(self, x: Any) -> Any:
            return x * lib.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.weight

    class Block(Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = Rms(), Rms()
            self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
            self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
            self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

        def forward(self, x: Any, cos: Any, sin: Any) -> Any:
            def heads(y: Any) -> Any:
                return y.reshape(*y.shape[:2], HEADS, -1).transpose(1, 2)

            def turned(y: Any) -> Any:
                a, b = y.chunk(2, -1)
                return (y * cos + lib.cat([-b, a], -1) * sin).to(y.dtype)

            h = self.norm_1(x)
            q, k, v = turned(heads(self.q(h))), turned(heads(self.k(h))), heads(self.v(h))
            seen = ops.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o(seen.transpose(1, 2).reshape(*x.shape))
            h = self.norm_2(x)
            return x + self.down(ops.silu(self.gate(h)) * self.up(h))

    class Llama(Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.norm = nn.Embedding(VOCABULARY, WIDTH), Rms()
            self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
            self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
            angles = np.arange(TOKENS)[:, None] * 1e4 ** -(np.arange(0, WIDTH // HEADS, 2) / (WIDTH // HEADS))
            table = np.concatenate([angles, angles], -1).astype(np.float32)
            self.cos, self.sin = lib.tensor(np.cos(table)), lib.tensor(np.sin(table))

        def forward(self, tokens: Any) -> Any:
            x = self.embed(tokens)
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            return self.head(self.norm(x))

    return Llama()


def step_of(library: str, way: str, dtype: str) -> Callable[[], float]:
    """A training step, with one batch."""
    random = np.random.default_rng(0)
    tokens = random.integers(0, VOCABULARY, (BATCH, TOKENS + 1))
    lib, nn, ops, optim = _library(library)
    model = llama(lib, nn, ops)
    with lib.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(lib.tensor(random.normal(0, 0.05, tuple(parameter.shape)).astype(np.float32)))
    options = {"fused": True} if library == "torch" else {}
    optimizer = optim.AdamW(model.parameters(), lr=1e-3, **options)
    x, y = lib.tensor(tokens[:, :-1].copy()), lib.tensor(tokens[:, 1:].copy())

    def loss_of(x: Any, y: Any) -> Any:
        with lib.autocast("cpu", dtype=lib.bfloat16) if dtype == "bfloat16" else nullcontext():
            return ops.cross_entropy(model(x).flatten(0, 1), y.flatten())

    forward = lib.compile(loss_of) if (library, way) == ("torch", "compiled") else loss_of

    def step() -> Any:
        loss = forward(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    run = lib.compile(step) if (library, way) == ("ampkit", "compiled") else step
    return lambda: float(run().item())


def _library(name: str) -> tuple[Any, Any, Any, Any]:
    if name == "torch":
        import torch

        return torch, torch.nn, torch.nn.functional, torch.optim
    import ampkit
    from ampkit import nn, ops, optim

    return ampkit, nn, ops, optim


def worker(library: str, way: str, dtype: str, threads: int, cpu_time: bool) -> None:
    """Take as many steps as each line of stdin says, from 0; print seconds per step and losses."""
    _library(library)[0].set_num_threads(threads)
    clock = time.process_time if cpu_time else time.perf_counter
    step = step_of(library, way, dtype)
    for line in sys.stdin:
        begin = clock()
        losses = [step() for _ in range(int(line))]
        print(json.dumps({"seconds": (clock() - begin) / max(1, len(losses)), "losses": losses}), flush=True)


def compare(dtype: str, variants: list[str], counts: tuple[int, int, int], options: list[str]) -> None:
    """Print a table of the variants in one dtype. counts: steps before the rounds, rounds, steps in one."""
    warmup, rounds, steps = counts
    workers = {name: Worker([__file__, "--worker", *name.split(), dtype, *options]) for name in variants}
    first = {}
    for process in workers.values():
        process.ask(0)  # so that none still imports or builds its model while another one takes its first step
    for name, process in workers.items():
        first[name] = process.ask(1)
        process.ask(warmup)
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, process in workers.items():
            times[name].append(process.ask(steps)["seconds"])
    for process in workers.values():
        process.end()
    base = times[variants[0]]
    print(f"{dtype:<24}{'ms':>8}{'over ' + variants[0]:>24}{'first loss':>14}{'first call, s':>16}")
    for name, found in times.items():
        ratio = statistics.median([a / b for a, b in zip(found, base, strict=True)])
        loss, seconds = first[name]["losses"][0], first[name]["seconds"]
        print(f"{name:<24}{1e3 * statistics.median(found):>8.1f}{ratio:>24.2f}{loss:>14.6f}{seconds:>16.2f}")


def memory(dtype: str) -> None:
    """Print the most bytes that a step of GPT holds, eager and compiled."""
    import ampkit
    from ampkit import models, ops, optim

    random, peaks = np.random.default_rng(0), {}
    x, y = (ampkit.tensor(random.integers(0, 65, (8, 256))) for _ in range(2))
    for way in ("eager", "compiled"):
        ampkit.manual_seed(0)
        model = models.GPT(vocab_size=65, block_size=256, n_layer=6, n_head=6, n_embd=384, tie_weights=False)
        optimizer = optim.AdamW(model.parameters(), lr=3e-4)

        def step(model: Any = model, optimizer: Any = optimizer) -> Any:
            with ampkit.autocast(dtype=ampkit.bfloat16, enabled=dtype == "bfloat16"):
                loss = ops.cross_entropy(model(x).flatten(0, -2), y.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        run = step if way == "eager" else ampkit.compile(step)
        for _ in range(2):
            run()
        held = ampkit.cpu.memory_allocated()
        ampkit.cpu.reset_peak_memory_stats()
        bits = run().numpy().tobytes()
        peaks[way] = ampkit.cpu.max_memory_allocated(), ampkit.cpu.max_memory_allocated() - held, bits
        del model, optimizer, run, step
    assert peaks["eager"][2] == peaks["compiled"][2]
    for i, what in enumerate(("with parameters and moments", "of the step alone")):
        eager, compiled = peaks["eager"][i], peaks["compiled"][i]
        print(f"{dtype}, {what}: eager {eager / 1e6:.1f} MB, compiled {compiled / 1e6:.1f}, {compiled / eager:.3f}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=3, help="steps of each variant before the rounds")
    parser.add_argument("--steps", type=int, default=2, help="steps of each variant in a round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--without", nargs="+", default=[], help="no variants whose names contain one of these")
    parser.add_argument("--cpu-time", action="store_true", help="seconds of all threads, not of the clock on the wall")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(*args.worker, args.threads, args.cpu_time)
        return
    for dtype in args.dtypes:
        if args.memory and len(args.dtypes) > 1:  # each without what the one before has left, such as oneDNN's buffers
            print("".join(Process([__file__, "--memory", "--dtypes", dtype], 600).lines()), end="", flush=True)
            continue
        if args.memory:
            memory(dtype)
            continue
        variants = [name for name in VARIANTS if not any(part in name for part in args.without)]
        counts = args.warmup, args.rounds, args.steps
        compare(dtype, variants, counts, ["--threads", str(args.threads), *["--cpu-time"] * args.cpu_time])


if __name__ == "__main__":
    main()
