"""Which kernels of the CPU the fuzzer of kernels reaches: by the names of what it draws, or counted while it runs.

    python -m tests.fuzz.kernel_calls [--trials 5000] [--seed N]

It counts the calls that kernels answered, not those that they left to the reference, and fails where there are none.
"""

from __future__ import annotations

import argparse
import gc
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from ampkit.backends.cpu.native.arrays import Function
from ampkit.core.dispatch import Kernel

from . import kernels
from .primitives import PRIMITIVES

# Kernels of primitives that ops call: an op whose cases reach them.
CALLED_BY = {
    "autograd.accumulate:sum_of_two": "cov",
    "indexing.deterministic_scatter:add_at": "scatter_reduce",
    "linalg.distances:cosine_similarity": "cosine_embedding_loss",
    "linalg.distances:cosine_similarity_backward": "cosine_embedding_loss",
    "loss.cross_entropy:cross_entropy_probabilities": "cross_entropy",
    "loss.cross_entropy:cross_entropy_probabilities_backward": "cross_entropy",
    "nn.adaptive_pool:adaptive_max_pool": "adaptive_max_pool2d",
    "nn.rnn:column_sums": "lstm",
    "nn.rnn:gru_step": "gru",
    "nn.rnn:gru_step_backward": "gru",
    "nn.rnn:lstm_step": "lstm",
    "nn.rnn:lstm_step_backward": "lstm",
    "nn.rnn:matmul_by": "lstm",
    "nn.rnn:matmul_into": "lstm",
    "reduction.order_statistics:place_in_order": "kthvalue",
    "reduction.order_statistics:place_of_mode": "mode",
    "reduction.reductions:sum_over": "matmul",
    "shape.padding:pad_from_input": "pad",
    "shape.padding:pad_from_input_backward": "pad",
}
# What no trial of the fuzzer calls, and why.
NEVER_CALLED: dict[str, str] = {}
# Functions of the library that trials do not call on every CPU, and why.
NOT_EVERYWHERE = {
    "matmul": "products of 16 bits where the CPU has no units for them: set ONEDNN_MAX_CPU_ISA=AVX2",
}


def registered() -> dict[str, Kernel]:
    """The CPU's kernels, by the module and the name of the primitive: `nn.softmax:softmax_backward`."""
    found = {}
    for primitive in kernels.primitives():
        for number, kernel in enumerate(primitive.kernels_of("cpu")):
            name = f"{primitive.module}:{primitive.name}" + f" {number + 1}" * bool(number)
            found[name] = kernel
            if kernel.own_backward is not None:
                found[f"{name}, its backward"] = kernel.own_backward
    return found


def generator_of(name: str) -> str:
    """What to draw for trials that reach the kernel `name`: an op, or a primitive of PRIMITIVES; "" for nothing."""
    if name in PRIMITIVES:
        return name
    op = name.partition(":")[2].partition(",")[0].partition(" ")[0].removesuffix("_backward")
    op = CALLED_BY.get(name, op)
    return op if any(case.name == op for case in kernels.cases()) else ""


@contextmanager
def counted() -> Iterator[tuple[Counter[str], Counter[str]]]:
    """Within the block calls that kernels answer are counted, and those of functions of the compiled library."""
    answered: Counter[str] = Counter()
    entries = Counter({each.name: 0 for each in gc.get_objects() if type(each) is Function})
    call = Function.__call__

    def counting(self: Function, *arguments: Any) -> Any:
        entries[self.name] += 1
        return call(self, *arguments)

    with ExitStack() as stack:
        stack.enter_context(patch.object(Function, "__call__", counting))
        for name, kernel in registered().items():
            answered[name] = 0
            stack.enter_context(patch.object(kernel, "run", _counting(kernel.run, name, answered)))
        yield answered, entries


def reach(name: str, answered: Counter[str], seed: int) -> None:
    """Run trials of what reaches the kernel `name`, at most 300, until it has answered."""
    trials = (kernels.trial(seed, number, generator_of(name)) for number in range(300 * bool(generator_of(name))))
    while not answered[name] and (trial := next(trials, None)) is not None:
        trial.finding()


def report(answered: Counter[str], entries: Counter[str]) -> bool:
    """Print what was never called; return whether that is nothing but what is listed."""
    missing = sorted([name for name in answered if not answered[name] and name not in NEVER_CALLED])
    missing += sorted([name for name in entries if not entries[name] and name not in NOT_EVERYWHERE])
    for name in missing:
        print(f"never called: {name}")
    called = len([count for count in answered.values() if count])
    print(f"{called} of {len(answered)} kernels called, and {len(+entries)} of {len(entries)} functions of the library")
    return not missing


def _counting(run: Callable[..., Any], name: str, answered: Counter[str]) -> Callable[..., Any]:
    def wrapped(*args: Any, **params: Any) -> Any:
        found = run(*args, **params)  # raises UnsupportedError where the reference runs instead
        answered[name] += 1
        return found

    return wrapped


def main() -> int:
    """Run the trials; return 1 if a kernel was never called."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with kernels.kernels_of_any_size(), counted() as counts, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(options.trials):
            kernels.trial(options.seed, number).finding()
        for name in [name for name, count in counts[0].items() if not count]:
            reach(name, counts[0], options.seed)
    return int(not report(*counts))


if __name__ == "__main__":
    sys.exit(main())
