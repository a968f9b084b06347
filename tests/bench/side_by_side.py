"""Parts of a model in threads by `ampkit.fork` beside the same in sequence: directions of an LSTM, an ensemble.

    python tests/bench/side_by_side.py [--threads 1] [--rounds 15]

threads: of each part; in sequence each part has all of them, too. The two are taken in turns; milliseconds are medians.
Outputs and gradients are compared to the bit. Two cores that nobody else uses are needed.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

import ampkit
from ampkit import nn, ops


class Directions(nn.Module):
    """The two directions of a bidirectional LSTM."""

    def __init__(self):
        super().__init__()
        self.there, self.back = nn.LSTM(128, 256, batch_first=True), nn.LSTM(128, 256, batch_first=True)
        self.x = ampkit.randn(16, 100, 128)

    def forward(self, begin):
        back = begin(lambda: self.back(ampkit.flip(self.x, [1]))[0])
        return self.there(self.x)[0], back()


class Ensemble(nn.Module):
    """Two models for the same input."""

    def __init__(self):
        super().__init__()
        self.models = nn.ModuleList(nn.Sequential(*[nn.Linear(1024, 1024), nn.GELU()] * 4) for _ in range(2))
        self.x = ampkit.randn(256, 1024)

    def forward(self, begin):
        first = begin(lambda: self.models[0](self.x))
        return self.models[1](self.x), first()


def at_once(function):
    value = function()
    return lambda: value


def in_thread(function):
    return ampkit.fork(function).wait


def taken(model, begin):
    """Seconds of a forward, its outputs and the gradients of their squares."""
    start = time.perf_counter()
    outputs = model(begin)
    seconds = time.perf_counter() - start
    model.zero_grad()
    sum(ops.sum(out * out) for out in outputs).backward()
    return seconds, [out.detach().numpy() for out in outputs] + [p.grad.numpy() for p in model.parameters()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    ampkit.set_num_threads(options.threads)
    for kind in (Directions, Ensemble):
        ampkit.manual_seed(0)
        model, seconds = kind(), {at_once: [], in_thread: []}
        for number in range(options.rounds + 2):
            found = {begin: taken(model, begin) for begin in seconds}
            pairs = zip(found[at_once][1], found[in_thread][1], strict=True)
            assert all(np.array_equal(a, b) for a, b in pairs)
            for begin, (spent, _) in found.items() if number > 1 else ():
                seconds[begin].append(spent)
        sequence, threads = (1e3 * statistics.median(seconds[begin]) for begin in (at_once, in_thread))
        ratio = sequence / threads
        print(f"{kind.__name__:12} in sequence {sequence:7.1f} ms, side by side {threads:7.1f} ms: {ratio:.2f}")


if __name__ == "__main__":
    main()
