"""Derivatives by `ampkit.func` and by torch.func, in processes that take turns.

    python tests/bench/transforms.py [perceptron] [jacobians] [convnet] [gpt] [ensemble] [--rounds N]

Needs PyTorch. CPU time in units of the first call of each table in the same round, medians: of a perceptron jvp along
the input, along all Parameters, and the gradient, in forwards; of a small one Jacobians and Hessians, in gradients, for
which --rounds 150 is not too many; of a convnet and a GPT the gradients of each sample by vmap, in the gradient of the
batch; of 8 perceptrons of an ensemble their gradients, in that of one. "nan": the library raises.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from importlib import import_module
from statistics import median
from typing import Any

WIDTHS, BATCH = (512, 2048, 512, 10), 256


def perceptron(library: Any) -> dict[str, Any]:
    """Derivatives of one perceptron, of ampkit or of torch."""
    nn, func = library.nn, library.func
    a, b, c, d = WIDTHS
    model = nn.Sequential(nn.Linear(a, b), nn.GELU(), nn.Linear(b, c), nn.LayerNorm(c), nn.Linear(c, d))
    params = {name: p.detach() for name, p in model.named_parameters()}
    ones = {name: library.ones_like(p) for name, p in params.items()}
    x, v = library.randn(BATCH, a), library.randn(BATCH, a)

    def forward() -> None:
        with library.no_grad():
            model(x)

    return {
        "forward": forward,
        "jvp of the input": lambda: func.jvp(lambda x: func.functional_call(model, params, (x,)), (x,), (v,)),
        "jvp of the Parameters": lambda: func.jvp(lambda p: func.functional_call(model, p, (x,)), (params,), (ones,)),
        "grad": lambda: func.grad(lambda p: func.functional_call(model, p, (x,)).sum())(params),
    }


def jacobians(library: Any) -> dict[str, Any]:
    """Gradients, Jacobians and Hessians of a perceptron of 212 Parameters, with one row of input."""
    nn, func = library.nn, library.func
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    given, x = {name: p.detach() for name, p in model.named_parameters()}, library.randn(8)

    def out(params: Any, x: Any) -> Any:
        return func.functional_call(model, params, (x,))

    def loss(params: Any, x: Any) -> Any:
        return out(params, x).square().sum()

    found = {"forward": lambda: func.grad(loss)(given, x)}
    for place, name in enumerate(("Parameters", "input")):
        found[f"jacrev of the {name}"] = lambda place=place: func.jacrev(out, place)(given, x)
        found[f"jacfwd of the {name}"] = lambda place=place: func.jacfwd(out, place)(given, x)
        found[f"hessian of the {name}"] = lambda place=place: func.hessian(loss, place)(given, x)
    return found


def convnet(library: Any) -> tuple[Any, Any, Any, Any]:
    """A model, the loss of its output, and a batch."""
    nn = library.nn
    blocks: list[Any] = []
    for before, after in ((3, 32), (32, 64), (64, 64)):
        blocks += [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(8, after), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(64 * 16, 10))
    labels = library.arange(32) % 10
    return model, nn.functional.cross_entropy, library.randn(32, 1, 3, 32, 32), labels.reshape(32, 1)


class Block:
    """Makes a pre-norm transformer block of ops that both libraries have."""

    def __new__(cls, library: Any, width: int, heads: int) -> Any:
        nn, attend = library.nn, library.nn.functional.scaled_dot_product_attention

        class Made(nn.Module):  # type: ignore[misc, name-defined]  # of either library
            def __init__(self) -> None:
                super().__init__()
                self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
                self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
                self.up, self.down, self.gelu = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.GELU()

            def forward(self, x: Any) -> Any:
                n, t, _ = x.shape
                q, k, v = (
                    part.reshape(n, t, heads, width // heads).transpose(1, 2)
                    for part in self.qkv(self.norm1(x)).chunk(3, -1)
                )
                x = x + self.out(attend(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, width))
                return x + self.down(self.gelu(self.up(self.norm2(x))))

        return Made()


def gpt(library: Any) -> tuple[Any, Any, Any, Any]:
    """A model, the loss of its output, and a batch."""
    nn, width, vocabulary = library.nn, 128, 256
    blocks = [Block(library, width, 4) for _ in range(2)]
    model = nn.Sequential(nn.Embedding(vocabulary, width), *blocks, nn.LayerNorm(width), nn.Linear(width, vocabulary))
    tokens = library.arange(16 * 64).reshape(16, 1, 64) * 7 % vocabulary

    def loss(out: Any, targets: Any) -> Any:
        return nn.functional.cross_entropy(out.flatten(0, 1), targets.flatten())

    return model, loss, tokens, tokens


def per_sample(make: Any) -> Any:
    """The gradients of each sample of a model's batch, beside that of the batch."""

    def jobs(library: Any) -> dict[str, Any]:
        func = library.func
        model, loss, x, y = make(library)
        params = {name: p.detach() for name, p in model.named_parameters()}

        def of_sample(params: Any, x: Any, y: Any) -> Any:
            return loss(func.functional_call(model, params, (x,)), y)

        def of_batch(params: Any) -> Any:
            return loss(func.functional_call(model, params, (x.flatten(0, 1),)), y.flatten(0, 1))

        def in_region(call: Any) -> Any:
            def run() -> None:
                with library.autocast("cpu", dtype=library.bfloat16):
                    call()

            return run

        def whole() -> None:
            func.grad(of_batch)(params)

        def samples() -> None:
            func.vmap(func.grad(of_sample), (None, 0, 0))(params, x, y)

        found = {"forward": whole, "per-sample gradients": samples}
        return found | {"per-sample gradients, bfloat16": in_region(samples)}

    return jobs


def ensemble(library: Any) -> dict[str, Any]:
    """Gradients of the losses of 8 perceptrons, by vmap over their stacked Parameters, beside one of them."""
    nn, func = library.nn, library.func

    def perceptron() -> Any:
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))

    models = [perceptron() for _ in range(8)]
    stacked, _ = func.stack_module_state(models)
    params = {name: p.detach() for name, p in stacked.items()}
    first = {name: p.detach() for name, p in models[0].named_parameters()}
    x, y = library.randn(128, 64), library.arange(128) % 10

    def loss(params: Any) -> Any:
        return nn.functional.cross_entropy(func.functional_call(models[0], params, (x,)), y)

    def mapped() -> None:
        func.vmap(func.grad(loss))(params)

    def in_region() -> None:
        with library.autocast("cpu", dtype=library.bfloat16):
            mapped()

    return {"forward": lambda: func.grad(loss)(first), "8 models": mapped, "8 models, bfloat16": in_region}


PARTS: dict[str, Any] = {
    "perceptron": perceptron, "jacobians": jacobians, "convnet": per_sample(convnet), "gpt": per_sample(gpt),
    "ensemble": ensemble,
}  # fmt: skip


def measured(name: str, part: str, rounds: int) -> dict[str, tuple[float, float]]:
    """Per call of a library in this process the median seconds of all threads, and the median share of the first call.

    None for a call that raises.
    """
    calls = PARTS[part](import_module(name))
    seconds: dict[str, list[float]] = {call: [] for call in calls}
    for _ in range(rounds):
        for call, run in list(calls.items()):
            began = time.process_time()
            try:
                run()
            except RuntimeError:
                del calls[call], seconds[call]
                continue
            seconds[call].append(time.process_time() - began)
    first = seconds["forward"][2:]
    shares = {call: [t / f for t, f in zip(times[2:], first, strict=True)] for call, times in seconds.items()}
    return {call: (median(times[2:]), median(shares[call])) for call, times in seconds.items()}


def main() -> None:
    """Run processes of the two libraries in turns, and print a table of medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="which, by default all")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--library", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.library:
        print(json.dumps(measured(options.library, options.parts[0], options.rounds)))
        return
    for part in options.parts or PARTS:
        show(part, options.rounds)


def show(part: str, rounds: int) -> None:
    """Print the table of one part."""
    found: dict[str, list[dict[str, list[float]]]] = {"ampkit": [], "torch": []}
    for _ in range(3):
        for library, each in found.items():
            command = [sys.executable, __file__, part, "--library", library, "--rounds", str(rounds)]
            each.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    print(f"{part:32} {'ampkit':>8} {'PyTorch':>8}   in the first one; PyTorch's time / ampkit's")
    for call in found["ampkit"][0]:
        times, shares = (
            [median([one[call][i] for one in each if call in one] or [float("nan")]) for each in found.values()]
            for i in (0, 1)
        )
        print(f"{call:32} {shares[0]:8.2f} {shares[1]:8.2f}   {times[1] / times[0]:.2f}")


if __name__ == "__main__":
    main()
