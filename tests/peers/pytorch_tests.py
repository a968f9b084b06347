"""Run PyTorch's own test files through `ampkit.as_torch` and count which tests of public behaviour pass.

    python -m tests.peers.pytorch_tests --tests DIR --internal DIR [--only FILE ...] [--report FILE.json]

--tests: the folder `test` of PyTorch's repository, or of one that adds another device to it; that device is replaced by
"cuda" in a copy. --internal: torch/testing/_internal of PyTorch's wheel, whose test infrastructure runs on the alias as
it is (expecttest must be importable). Nothing is downloaded, and nothing of PyTorch is kept.
A test is out of scope where OUT_OF_SCOPE matches its name or source, or where it skips itself; each is in the report
with its reason. An error or a warning of the right type passes, whatever it says: wording is no behaviour; nor is a
warning about an argument that PyTorch means to drop. A file that does not load is listed, its tests are not counted.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FILES = (
    "optim/test_lrscheduler optim/test_optim optim/test_swa_utils nn/test_module_hooks nn/test_init nn/test_dropout "
    "nn/test_packed_sequence nn/test_lazy_modules nn/test_pruning nn/test_parametrization nn/test_embedding "
    "nn/test_pooling nn/test_convolution nn/test_multihead_attention test_nn test_modules test_autocast "
    "autograd/test_functional test_autograd distributions/test_distributions test_dataloader "
    "functorch/test_eager_transforms functorch/test_vmap test_sparse"
).split()

# What is no public behaviour of dense, real tensors on a CPU: (why, what the name or the source of a test contains).
OUT_OF_SCOPE = [
    ("names that PyTorch keeps private",
     r"\b(torch|fwAD)\.(\w+\.)*_[a-zA-Z]|LoggingTensor|\A\S*_logging_tensor\n|"
     r"\._(backward_hooks|backward_cls|set_sequence_nr|materialize_non_diff_grads)\b|"
     r"\bprune\._[a-z]|[.'\"]_(flat_weights|get_no_batch_dim|replicate_for_data_parallel|scale_fn_ref|"
     r"(load_)?state_dict_(pre|post)_hooks|forward_hooks_\w+)\b|"
     r"autocast_lists\.torch_16"),  # which calls _addmm_activation
    ("TorchScript, tracing and compilation", r"torch\.(jit|compile|fx|_dynamo)\b|\bmake_fx\b"),
    ("nested, quantized and meta tensors", r"nested|NestedTensor|quantize|[\"']meta[\"']|torch\.ao\."),
    ("sparse tensors, but for products in sparse_coo", r"sparse|\ATestSparse"),
    # float4_e2m1fn_x2 stands for complex32 in tables of dtypes: see `mount` of pytorch_tests_run.py
    ("complex numbers", r"complex|cfloat|cdouble|_\|V4\b|\b\d+j\b|float4_e2m1fn_x2"),
    ("other devices", r"\.cuda\(|device=[\"']cuda|onlyCUDA|mps|mkldnn|privateuseone"),
    ("data pipes, which PyTorch drops", r"[Dd]ata[Pp]ipe|datapipe"),
    ("extensions in C++, profilers and dispatch modes",
     r"cpp_extension|load_inline|profile\(|profiler_util|TorchDispatchMode"),
]  # fmt: skip
PRODUCTS = r"\ATestSparseCPU\.test_\S*(mm|mul|mv)_"  # of tensors in sparse_coo, by the names of their tests


def prepared(source: Path, target: Path) -> None:
    """Copy the test files; another device's imports and decorators go, and its names become CUDA's."""
    for file in source.rglob("*.py"):
        text = file.read_text()
        gone = r"^(\s*)(import torch_npu.*|from torch_npu[^\n(]*(\([^)]*\)|[^\n]*))$"
        text = re.sub(gone, r"\1pass", text, flags=re.MULTILINE)
        text = re.sub(r"torch_npu\.npu\b|torch\.npu\b", "torch.cuda", text)
        text = re.sub(r"(['\"])npu((:\d)?['\"])", r"\1cuda\2", text).replace(".npu(", ".cuda(")
        text = text.replace("is_npu", "is_cuda").replace("PRIVATEUSE1", "CUDA")
        text = re.sub(r",\s*only_for=['\"]privateuse1['\"]", "", text)
        text = text.replace("torch.cuda.get_device_name(0)", "'none'")  # asked while a file is imported
        text = re.sub(r"^ *@(skipIfUnsupportMultiNPU|SupportedDevices)\(.*\)\n", "", text, flags=re.MULTILINE)
        place = target / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


def sources(file: Path) -> dict[str, str]:
    """The source of each test function, by Class.function, with its decorators."""
    text = file.read_text()
    found, lines = {}, text.splitlines()
    for kind in (n for n in ast.parse(text).body if isinstance(n, ast.ClassDef)):
        for node in (n for n in kind.body if isinstance(n, ast.FunctionDef)):
            marks = "\n".join(ast.unparse(d) for d in node.decorator_list)
            found[f"{kind.name}.{node.name}"] = "\n".join([marks, *lines[node.lineno - 1 : node.end_lineno]])
    return found


def out_of_scope(test: str, found: dict[str, str]) -> str:
    """Why a test is out of scope, or nothing. A generated test has the source of the longest name that begins its."""
    named = max((name for name in found if _begins(test, name)), key=len, default="")
    text = f"{test}\n{found.get(named, '')}"
    if re.search(PRODUCTS, test):  # by its name and decorators; the dtypes among these are those of several tests
        text = re.sub(r"^(dtypes|precision)\w*\(.*$|[Ss]parse", "", text.partition(" def ")[0], flags=re.MULTILINE)
    return next((why for why, pattern in OUT_OF_SCOPE if re.search(pattern, text)), "")


def _begins(test: str, name: str) -> bool:
    (kind, function), (known, start) = test.split(".", 1), name.split(".", 1)
    return kind.startswith(known) and function.startswith(start)


def run(file: Path, internal: Path, python: str, limit: int) -> tuple[list[dict[str, Any]], str]:
    """The outcome of each test of a file; the last line of a file that does not load. A crash ends one test."""
    results = file.with_suffix(".jsonl")
    command = [python, "-m", "ampkit.as_torch", str(HERE / "pytorch_tests_run.py"), str(file), str(internal)]
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "PYTORCH_PRINT_REPRO_ON_FAILURE": "0"}
    rows: dict[str, dict[str, Any]] = {}
    while True:
        before = len(rows)
        try:
            done = subprocess.run(
                [*command, str(results), *rows], env=env, capture_output=True, text=True, timeout=limit
            )
            rc, said = done.returncode, done.stderr
        except subprocess.TimeoutExpired:
            rc, said = 124, f"no end after {limit} s"
        for line in results.read_text().splitlines() if results.exists() else ():
            row = json.loads(line)
            rows[row["test"]] = row if row["outcome"] != "started" else {**row, "outcome": "failed", "why": "crashed"}
        if not rc or rc == 124 or len(rows) == before:
            last = (said.strip().splitlines() or [f"status {rc}"])[-1]
            return list(rows.values()), last if rc else ""


def judged(row: dict[str, Any], found: dict[str, str]) -> dict[str, Any]:
    """The row of a test, out of scope or not."""
    why = out_of_scope(row["test"], found) or (row["why"] if row["outcome"] == "skipped" else "")
    if why:
        return {**row, "outcome": "out of scope", "why": why}
    missing = row["why"].startswith(("MissingName", "MissingModule")) and row["outcome"] == "failed"
    if missing and re.match(r"\w+: ampkit has no (torch|functorch)\.(\w+\.)*_[a-zA-Z]", row["why"]):  # imported by it
        return {**row, "outcome": "out of scope", "why": OUT_OF_SCOPE[0][0]}
    return {**row, "outcome": "refused by name"} if missing else row


def main(given: Sequence[str] | None = None) -> int:
    """Run the files, print the table and the most frequent reasons."""
    parser = argparse.ArgumentParser(prog="python -m tests.peers.pytorch_tests")
    parser.add_argument("--tests", type=Path, required=True)
    parser.add_argument("--internal", type=Path, required=True)
    parser.add_argument("--only", nargs="+", help="parts of names of files")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--limit", type=int, default=1800, help="seconds of one file")
    parser.add_argument("--report", type=Path)
    options = parser.parse_args(given)
    report: dict[str, Any] = {}
    reasons: Counter[str] = Counter()
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as top:
        prepared(options.tests, Path(top))
        for name in FILES:
            file = Path(top) / f"{name}.py"
            if not file.exists() or (options.only and not any(part in name for part in options.only)):
                continue
            rows, error = run(file, options.internal, options.python, options.limit)
            found = sources(file)
            rows = [judged(row, found) for row in rows]
            counts = Counter(row["outcome"] for row in rows)
            total += counts
            report[name] = {"tests": rows, "error": error}
            reasons.update(f"{r['why'].splitlines()[0][:110]}" for r in rows if r["outcome"] in FAILED)
            print(f"{name:32} {table(counts)} {error[:100]}", flush=True)
    print(f"{'all':32} {table(total)}")
    for why, times in reasons.most_common(20):
        print(f"{times:5} {why}")
    if options.report:
        options.report.write_text(json.dumps(report, indent=1))
    return 0


FAILED = ("failed", "refused by name", "class failed")


def table(counts: Counter[str]) -> str:
    """passed, failed, refused by name, out of scope, and the share of those in scope that pass."""
    bad = sum(counts[kind] for kind in FAILED)
    share = 100 * counts["passed"] / max(counts["passed"] + bad, 1)
    shown = f"{counts['passed']:5} {bad - counts['refused by name']:5} {counts['refused by name']:5}"
    return f"{shown} {counts['out of scope']:5} {share:5.0f} %"


if __name__ == "__main__":
    sys.exit(main())
