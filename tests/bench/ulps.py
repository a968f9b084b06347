"""The largest error of each op against float64, in units in the last place.

    python -m tests.bench.ulps [--dtype float32] [--all]

Runs every case of tests/cases in a dtype and, from the same rounded inputs, in float64. The error of an element is
counted in units in the last place of the largest element of the output or gradient it belongs to. Prints how many ops
stay within each bound, and the worst ops; with --all, every op.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ampkit import testing
from ampkit.base import dtypes
from ampkit.testing.cases import placed
from ampkit.testing.closeness import values_of
from ampkit.testing.differences import floats_of, gradients_of

CASES = Path(__file__).parents[1] / "cases"
BOUNDS = (0.5, 1, 2, 4, 8, 16)


def cases() -> Iterator[testing.Case]:
    """Every case of tests/cases."""
    for path in sorted(CASES.glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"cases_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield from module.CASES


def units(found: Any, truth: Any, dtype: Any) -> float:
    """The largest error of `found`, in units in the last place of `dtype` at the largest element of `truth`."""
    got, want = (values_of(x).astype(np.float64) for x in (found, truth))
    finite = np.isfinite(want)
    largest = np.abs(want[finite]).max(initial=0.0)
    if largest < 1e-12:  # zero up to float64 rounding: no unit to count in
        return 0.0
    info = dtypes.finfo(dtype)
    unit = max(2.0 ** np.floor(np.log2(largest)) * float(info.eps), float(info.tiny))
    return float(np.abs(got[finite] - want[finite]).max(initial=0.0) / unit)


def errors(case: testing.Case, dtype: Any) -> tuple[float, float]:
    """The largest error of a case's outputs and of its gradients."""
    low = case.tensors(dtype)
    high = case.tensors(arrays=[values_of(t).astype(np.float64) if t.requires_grad else values_of(t) for t in low])
    outs, wants = floats_of(case(*low)), floats_of(case(*high))
    of_values = max((units(o, w, o.dtype) for o, w in zip(outs, wants, strict=True)), default=0.0)
    seeds = [np.random.default_rng(2).normal(size=w.shape).astype(dtype) for w in wants]
    found = gradients_of(outs, low, [placed(s.astype(o.dtype)) for s, o in zip(seeds, outs, strict=True)])
    truth = gradients_of(wants, high, [placed(s.astype(np.float64)) for s in seeds])
    pairs = [(f, t) for f, t in zip(found, truth, strict=True) if f is not None]
    return of_values, max((units(f, t, dtype) for f, t in pairs), default=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    dtype = dtypes.parse(options.dtype)
    worst: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for case in cases():
        for column, error in enumerate(errors(case, dtype)):
            worst[case.name][column] = max(worst[case.name][column], error)
    print(f"{len(worst)} ops in {options.dtype}, worst error of an element in units in the last place of the largest")
    print("within      " + "".join(f"{bound:>8}" for bound in BOUNDS))
    for column, name in enumerate(("values", "gradients")):
        counts = [sum(each[column] <= bound for each in worst.values()) for bound in BOUNDS]
        print(f"{name:<12}" + "".join(f"{count:>8}" for count in counts))
    rows = sorted(worst.items(), key=lambda item: -max(item[1]))
    for name, (value, gradient) in rows if options.all else rows[:12]:
        print(f"{name:<32} values {value:8.2f}   gradients {gradient:8.2f}")


if __name__ == "__main__":
    main()
