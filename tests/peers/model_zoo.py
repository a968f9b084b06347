"""Run model files written for PyTorch on ampkit, unedited, and compare them with PyTorch's results.

    python -m tests.peers.model_zoo [--timm] [--vit] [--transformers] [--cifar DIR] [--only NAME ...]
                                    [--python PYTHON] [--pytorch PYTHON] [--report FILE.json] [--keep DIR]

Each model is built small, its parameters are overwritten with values of their names and shapes, and it runs forward,
backward, a step, and forward again, in both libraries. PYTHON: an interpreter that has timm, vit-pytorch, transformers
and einops beside ampkit's dependencies, and no PyTorch (default: this one); one that has them and PyTorch. DIR: a
checkout of kuangliu/pytorch-cifar; a folder that keeps PyTorch's results for the next call. Nothing is downloaded.
The columns are the largest difference of an output in evaluation, relative to the largest output; and of the gradients
of all parameters, norm by norm. Where a model amplifies the rounding of float32, so that these differ, it runs in
float64 too, and its gradients must agree there. Exit status 1 if a model fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ALIAS = ("-m", "ampkit.as_torch")
OUTPUT, GRADIENT = 1e-3, 1e-2  # relative; a model of a hundred float32 layers is not closer to itself in another order
WIDE = 1e-4  # of both in float64, where some amplify rounding by 1e11


def run(
    start: Sequence[str], library: str, names: Sequence[str], folder: Path, path: Sequence[str], limit: int
) -> None:
    """Run models in one process."""
    folder.mkdir(parents=True, exist_ok=True)
    search = os.pathsep.join([str(HERE), str(HERE.parents[1]), *path])
    command = [*start, str(HERE / "zoo_run.py"), library, str(folder)]
    while rest := [name for name in names if not any((folder / f"{name}{end}").exists() for end in (".npz", ".txt"))]:
        done = subprocess.run(
            [*command, *rest],
            env={**os.environ, "PYTHONPATH": search, "HF_HUB_OFFLINE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit,
        )
        if done.returncode:
            (folder / f"{_first_without(folder, rest)}.txt").write_text(f"the process ended: {done.stdout[-600:]}")


def _first_without(folder: Path, names: Sequence[str]) -> str:
    return next(name for name in names if not any((folder / f"{name}{end}").exists() for end in (".npz", ".txt")))


def compare(ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[float, float]:
    """The largest relative difference of outputs, and the relative difference of all gradients and of the losses."""
    if set(ours) != set(theirs):
        return np.inf, np.inf
    outputs = [name for name in theirs if name.startswith("output")]
    output = max(_relative(ours[n], theirs[n], np.inf) for n in outputs)
    grads = [np.concatenate([d[n].ravel() for n in sorted(theirs) if n.startswith("grad.")]) for d in (ours, theirs)]
    losses = max(_relative(ours[n], theirs[n], np.inf) for n in ("loss0", "loss1"))
    return output, max(_relative(*grads, 2), losses)


def _relative(ours: Any, theirs: Any, order: float) -> float:
    if ours.shape != theirs.shape or not np.isfinite(ours).all():
        return np.inf
    a, b = ours.astype(np.float64).ravel(), theirs.astype(np.float64).ravel()
    return float(np.linalg.norm(a - b, order) / max(np.linalg.norm(b, order), 1e-6))


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.peers.model_zoo", description=(__doc__ or "").split("\n")[0])
    for name in ("timm", "vit", "transformers"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--cifar", type=Path)
    parser.add_argument("--only", nargs="+", help="names of models")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--pytorch", help="without it nothing is compared")
    parser.add_argument("--limit", type=int, default=3000, help="seconds of one library")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--keep", type=Path, help="a folder for PyTorch's results, which a second call reads")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Run the models of the libraries that are given, print the tables, return the exit status."""
    options = arguments(given)
    rows = []
    for library in ("timm", "vit", "transformers", "cifar"):
        if getattr(options, library):
            rows += _library(library, options)
    if options.report:
        options.report.write_text(json.dumps(rows, indent=1))
    return int(not all(row["good"] for row in rows))


def _library(library: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    names = _names(library, options)
    path = {"cifar": [str(options.cifar)], "transformers": []}.get(library, [str(HERE / "stand_ins")])
    starts = [[options.python, *ALIAS], [options.pytorch]][: 1 + bool(options.pytorch)]

    def both(kind: str, names: Sequence[str], top: str) -> list[Path]:
        folders = [Path(top) / "ampkit" / kind, (options.keep or Path(top) / "pytorch") / kind.replace(":", "-")]
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda s, f: run(s, kind, names, f, path, options.limit), starts, folders))
        return folders[: len(starts)]

    with tempfile.TemporaryDirectory() as top:
        folders = both(library, names, top)
        rows = [_row(library, name, *folders) for name in names]
        unsure = [row for row in rows if not row["good"] and not row["error"] and row["output"] <= OUTPUT]
        wide = both(f"{library}:float64", [row["name"] for row in unsure], top) if unsure else []
        for row in unsure:
            row["gradient"], row["error"] = _in_float64(row["name"], *wide)
            row["good"] = row["gradient"] <= WIDE
            row["error"] = row["error"] or "(in float64)"
    for row in rows:
        failed = row["error"] and not row["error"].startswith("(")
        shown = "" if failed else f"{row['output']:8.1e} {row['gradient']:8.1e}"
        print(f"{library:12} {row['name']:42} {'equal' if row['good'] else 'FAILS':6} {shown} {row['error']}")
    print(f"{library}: {sum(row['good'] for row in rows)} of {len(rows)}", flush=True)
    return rows


def _names(library: str, options: argparse.Namespace) -> list[str]:
    listed = "import zoo_models, sys; print(*zoo_models.BUILDERS[sys.argv[1]][1])"
    given = subprocess.run(
        [options.python, "-c", "import ampkit.as_torch; " + listed, library],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parents[1]}"},
        check=True,
    )
    return [name for name in given.stdout.split() if not options.only or name in options.only]


def _row(library: str, name: str, ampkit: Path, pytorch: Path | None = None) -> dict[str, Any]:
    error = _error("", ampkit, name) or (_error("PyTorch: ", pytorch, name) if pytorch else "")
    row = {"library": library, "name": name, "error": error, "output": 0.0, "gradient": 0.0, "good": not error}
    if pytorch and not error:
        row["output"], row["gradient"] = compare(_read(ampkit, name), _read(pytorch, name))
        row["good"] = row["output"] <= OUTPUT and row["gradient"] <= GRADIENT
    return row


def _in_float64(name: str, ampkit: Path, pytorch: Path) -> tuple[float, str]:
    error = _error("float64: ", ampkit, name) or _error("PyTorch, float64: ", pytorch, name)
    return (np.inf, error) if error else (max(compare(_read(ampkit, name), _read(pytorch, name))), "")


def _error(whose: str, folder: Path, name: str) -> str:
    file = folder / f"{name}.txt"
    return whose + file.read_text() if file.exists() else ""


def _read(folder: Path, name: str) -> dict[str, Any]:
    with np.load(folder / f"{name}.npz") as file:
        return {key: file[key] for key in file.files if key != "seconds"}


if __name__ == "__main__":
    sys.exit(main())
