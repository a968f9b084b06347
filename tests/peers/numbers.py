"""PyTorch's answers to the calls of tests/number_cases.py, which tests/ops/test_numbers.py compares with ampkit's.

Run: python -m tests.peers.numbers > tests/golden/numbers.json (needs PyTorch)
"""

from __future__ import annotations

import contextlib
import json
import warnings
from typing import Any

import torch
from torch.utils.data import default_collate

from tests import number_cases as numbers

Table = dict[str, dict[str, str]]


def _of_each_number(calls: str, dtype: str) -> Table:
    # call -> answer -> the letters of the numbers that give it; with the others the call raises.
    table: Table = {}
    for letter, name in numbers.LETTERS.items():
        names = {**numbers.operands(torch, dtype), "s": numbers.NUMBERS[name](torch), "collate": default_collate}
        for call, answer in numbers.answers(torch, calls, names):
            groups = table.setdefault(call, {})
            if isinstance(answer, str):
                groups[answer] = groups.get(answer, "") + letter
    return table


def _of_creations(default: str) -> Table:
    torch.set_default_dtype(getattr(torch, default))
    return _of_each_number(numbers.CREATIONS, "int64")


def _of_defaults() -> dict[str, str]:
    # call -> the dtype of its answer for each of CASES, "-" where it raises.
    table: dict[str, list[str]] = {}
    for default, region, dtype in numbers.DEFAULT_CASES:
        torch.set_default_dtype(getattr(torch, default))
        with torch.autocast("cpu", torch.bfloat16) if region else contextlib.nullcontext():
            for call, answer in numbers.answers(torch, numbers.DEFAULTS, numbers.operands(torch, dtype)):
                table.setdefault(call, []).append("-" if isinstance(answer, Exception) else numbers.dtypes_of(answer))
    return {call: " ".join(found) for call, found in table.items()}


def main() -> None:
    warnings.simplefilter("ignore")
    table: dict[str, Any] = {
        "letters": numbers.LETTERS,
        "calls": {dtype: _of_each_number(numbers.CALLS, dtype) for dtype in numbers.DTYPES},
        "creations": {default: _of_creations(default) for default in ("float32", "float64", "bfloat16")},
        "cases": [" ".join(map(str, case)) for case in numbers.DEFAULT_CASES],
        "defaults": _of_defaults(),
    }
    print(json.dumps(table, indent=0))


if __name__ == "__main__":
    main()
