"""A chain of elementwise ops on a CPU, op by op and tile by tile: `python tests/bench/fused_chains.py [--torch]`.

Six ops over --elements elements, forward without a tape, and forward with backward, by dtype; then a small multi-layer
perceptron, for what waiting costs where nothing can be saved. Times are of the CPU, in milliseconds, medians of runs
that alternate; the results of both are compared bit for bit. --torch: torch.compile's times of the chain, in turns, and
how many times as fast tiles are.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import ampkit
from ampkit import nn, ops, optim
from ampkit.backends.cpu.threads import set_num_threads


def chain(x: Any, gate: Any, shift: Any) -> Any:
    """Six ops, whose intermediate results nothing else reads."""
    return (ops.silu(x) * gate + shift).clamp(-4.0, 4.0).mul(0.5) - x


def forward(tensors: list[Any]) -> Any:
    """The chain without a tape."""
    with ampkit.no_grad():
        return chain(*tensors)


def training(tensors: list[Any]) -> Any:
    """The chain and its backward."""
    for tensor in tensors:
        tensor.grad = None
    chain(*tensors).backward(tensors[0].detach())
    return [tensor.grad for tensor in tensors]


def perceptron() -> Callable[[Any], Any]:
    """A training step of 64 -> 128 -> 10, batch 32."""
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10))
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)

    def step(x: Any) -> Any:
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def interleaved(functions: list[Callable[[], Any]], repeats: int) -> list[float]:
    """Medians of the CPU's milliseconds of calls that alternate."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats + 2):
        for found, function in zip(times, functions, strict=True):
            begin = time.process_time()
            function()
            found.append(1e3 * (time.process_time() - begin))
    return [median(found[2:]) for found in times]


def of_torch(name: str, dtype: Any, elements: int, threads: int) -> Callable[[Any], Any]:
    """The chain as torch.compile runs it; name: "forward" or "and backward"."""
    import torch

    torch.set_num_threads(threads)
    made = [torch.randn(elements // 1024, 1024).to(getattr(torch, str(dtype).split(".")[-1])) for _ in range(3)]

    @torch.compile
    def fused(x: Any, gate: Any, shift: Any) -> Any:
        return (torch.nn.functional.silu(x) * gate + shift).clamp(-4.0, 4.0).mul(0.5) - x

    def step(_: Any) -> None:
        for tensor in made:
            tensor.requires_grad_(name != "forward").grad = None
        out = fused(*made)
        if name != "forward":
            out.backward(made[0].detach())

    return step


def bits(made: Any) -> list[bytes]:
    """The bytes of a tensor, or of several."""
    return [one.numpy(force=True).tobytes() for one in (made if isinstance(made, list) else [made])]


def compare(
    name: str, step: Callable[[Any], Any], given: Any, repeats: int, calls: int = 1, beside: Any = None
) -> None:
    """Print the times, and the report of the compiled step. beside: torch.compile's step, or None."""
    compiled = ampkit.compile(step)
    if calls == 1:
        assert bits(step(given)) == bits(compiled(given)), f"{name}: other bits"

    def many(function: Callable[[Any], Any]) -> Callable[[], Any]:
        def run() -> None:
            for _ in range(calls):
                function(given)

        return run

    functions = [many(step), many(compiled)] + ([] if beside is None else [many(beside)])
    eager, fused, *torch_fused = interleaved(functions, repeats)
    more = "".join([f"{each / calls:>10.3f}{each / fused:>8.2f}" for each in torch_fused])
    print(f"{name:<32}{eager / calls:>10.3f}{fused / calls:>10.3f}{eager / fused:>8.2f}{more}")
    report = compiled.report()
    if report.chains:
        print(f"    {report.bytes_before / 1e6:.0f} MB to {report.bytes_after / 1e6:.0f} MB")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=6_291_456)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--torch", action="store_true")
    options = parser.parse_args()
    set_num_threads(options.threads)
    ampkit.manual_seed(0)
    more = f"{'torch':>10}{'ratio':>8}" if options.torch else ""
    print(f"{'milliseconds of the CPU':<32}{'op by op':>10}{'tiles':>10}{'ratio':>8}{more}")
    for dtype in (ampkit.bfloat16, ampkit.float16, ampkit.float32):
        made = [ampkit.randn(options.elements // 1024, 1024).to(dtype).detach() for _ in range(3)]
        for name, step in (("forward", forward), ("and backward", training)):
            beside = of_torch(name, dtype, options.elements, options.threads) if options.torch else None
            given = [one.requires_grad_(name != "forward") for one in made]
            compare(f"{name}, {dtype}", step, given, options.repeats, beside=beside)
    compare("small perceptron, float32", perceptron(), ampkit.randn(32, 64), options.repeats, calls=100)


if __name__ == "__main__":
    main()
