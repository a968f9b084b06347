"""What CuPy offers: its functions and array methods with the parameters they take, and the dtypes of its ufuncs.

    python tests/cuda_on_cpu/cupy_signatures.py > tests/golden/cupy.json      (CuPy installed; no GPU needed)

The emulated arrays refuse what is not in that file, so that a reference that passes here is one that CuPy can run.
"""

from __future__ import annotations

import inspect
import json
import re
from typing import Any


def names(cupy: Any) -> dict[str, Any]:
    """{"version", "functions": {name: parameters or None}, "methods": ..., "ufuncs": {name: loops}}."""
    everything = {n: getattr(cupy, n) for n in dir(cupy) if not n.startswith("_")}
    ufuncs = {n: f.types for n, f in everything.items() if isinstance(f, cupy.ufunc)}
    factors = ("cholesky", "det", "eigh", "inv", "qr", "slogdet", "solve", "svd")
    everything |= {n: getattr(cupy.linalg, n) for n in factors}
    plain = {n: f for n, f in everything.items() if inspect.isroutine(f) or type(f).__name__ == "_GUFunc"}
    methods = {n: getattr(cupy.ndarray, n) for n in dir(cupy.ndarray) if not n.startswith("_")}
    return {
        "version": cupy.__version__,
        "functions": {n: _parameters(f) for n, f in plain.items()},
        "methods": {n: _parameters(f) if callable(f) else None for n, f in methods.items()},
        "ufuncs": ufuncs,
        "ufunc_methods": [n for n in ("at", "reduce", "accumulate", "reduceat", "outer") if hasattr(cupy.ufunc, n)],
    }


def _parameters(function: Any) -> list[str] | None:
    """The names of a function's parameters; None where anything may be passed or nobody tells."""
    try:
        found = inspect.signature(function).parameters
        many = any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in found.values())
        return None if many else [n for n in found if n != "self"]
    except (TypeError, ValueError):
        # Compiled functions say it in the first line of their docstring.
        first = re.match(r"[\w.]+\((.*?)\)", (function.__doc__ or "").strip().partition("\n")[0])
        if first is None or "*" in first[1]:
            return None
        return [re.split(r"[=\s]", p.strip())[-1] if "=" not in p else _left(p) for p in _split(first[1])]


def _split(parameters: str) -> list[str]:
    return [p for p in (q.strip() for q in parameters.split(",")) if p not in ("self", "")]


def _left(parameter: str) -> str:
    return parameter.partition("=")[0].split()[-1]


def lines(found: dict[str, Any]) -> str:
    """JSON with one name a line."""
    made = [f' "{key}": {json.dumps(value)}' for key, value in found.items() if not isinstance(value, dict)]
    for key, table in found.items():
        if isinstance(table, dict):
            rows = ",\n".join(f"  {json.dumps(n)}: {json.dumps(p)}" for n, p in sorted(table.items()))
            made.append(f' "{key}": {{\n{rows}\n }}')
    return "{\n" + ",\n".join(made) + "\n}"


if __name__ == "__main__":
    import cupy

    print(lines(names(cupy)))
