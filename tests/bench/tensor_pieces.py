"""Products cut in pieces, as ranks that divide layers would have to compute them for equal bits, beside whole ones.

    python tests/bench/tensor_pieces.py

How many have other bits where 2, 4 or 8 ranks have features of the output, or terms of the sum, which are added in a
tree; and the CPU time of one process that computes 8 pieces, over that of the whole product: medians, one thread.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import ampkit
from ampkit import ops

ROUNDS = 41
SIZES = ((256, 384, 1536), (1024, 384, 1536), (256, 1536, 384), (256, 768, 3072))  # rows, terms, features


def cut(length: int, count: int) -> list[slice]:
    return [slice(length * i // count, length * (i + 1) // count) for i in range(count)]


def in_tree(terms: list[Any]) -> Any:
    while len(terms) > 1:
        terms = [a + b for a, b in zip(terms[::2], terms[1::2], strict=True)]
    return terms[0]


def differ(dtype: str) -> tuple[int, int, int]:
    """How many products have other bits by features, by terms, and how many there are."""
    features = terms = count = 0
    shapes = itertools.product((64, 96, 256), (128, 384, 768, 1024), (128, 384, 1152, 3072), (2, 4, 8))
    for rows, depth, width, pieces in shapes:
        x, w = ampkit.randn(rows, depth).to(dtype), (ampkit.randn(width, depth) * 0.05).to(dtype)
        whole = ops.linear(x, w).float().numpy()
        by_features = ampkit.cat([ops.linear(x, w[part]) for part in cut(width, pieces)], 1)
        by_terms = in_tree([ops.linear(x[:, part], w[:, part]).float() for part in cut(depth, pieces)]).to(dtype)
        features += not np.array_equal(by_features.float().numpy(), whole)
        terms += not np.array_equal(by_terms.float().numpy(), whole)
        count += 1
    return features, terms, count


def medians(actions: list[Callable[[], Any]]) -> list[float]:
    found: list[list[float]] = [[] for _ in actions]
    for _ in range(ROUNDS):
        for action, seconds in zip(actions, found, strict=True):
            start = time.process_time()
            action()
            seconds.append(time.process_time() - start)
    return [statistics.median(seconds) for seconds in found]


def main() -> None:
    ampkit.set_num_threads(1)
    ampkit.manual_seed(0)
    for dtype in ("float32", "bfloat16", "float16"):
        features, terms, count = differ(dtype)
        print(f"{dtype}: of {count} products {features} have other bits by features, {terms} by terms")
    for rows, depth, width in SIZES:
        x, w = ampkit.randn(rows, depth), ampkit.randn(width, depth)
        by_feature = [w[part].contiguous() for part in cut(width, 8)]
        by_term = [(x[:, part].contiguous(), w[:, part].contiguous()) for part in cut(depth, 8)]
        whole, features, terms = medians(
            [
                lambda x=x, w=w: ops.linear(x, w),
                lambda x=x, parts=by_feature: ampkit.cat([ops.linear(x, part) for part in parts], 1),
                lambda parts=by_term: in_tree([ops.linear(*part) for part in parts]),
            ]
        )
        print(f"[{rows}, {depth}] x [{depth}, {width}]: {features / whole:.2f} times as long in 8 pieces by features, "
              f"{terms / whole:.2f} by terms")  # fmt: skip


if __name__ == "__main__":
    main()
