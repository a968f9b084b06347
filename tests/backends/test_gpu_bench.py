"""The comparison on a GPU runs to its end, on an emulated one with sizes that say nothing."""

from __future__ import annotations

import gc
import importlib.util
import sys
from pathlib import Path

import pytest
from cuda_on_cpu import emulator, memory

import ampkit
from ampkit import set_default_device

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")


@pytest.fixture
def bench(device):
    path, before = Path(__file__).parents[1] / "bench" / "gpu.py", list(sys.path)
    spec = importlib.util.spec_from_file_location("bench_gpu", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    set_default_device("cuda")
    yield module
    set_default_device("cpu")
    sys.path[:] = before
    memory.hooks.clear()


@pytest.fixture
def no_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # an import then fails as where it is not installed


def measured(bench, beside, until=float("inf")):
    parts = bench.gpu_kernels.kernels(True, beside), bench.gpu_kernels.products(True, beside)
    found = [dict(bench.gpu_kernels.measured(part, until)) for part in parts]
    return {"device": "emulated", "date": "today", "steps": {}, "torch": beside.trouble} | dict(
        zip(("kernels", "products"), found, strict=True)
    )


def test_without_pytorch_its_columns_say_so_and_all_else_is_measured_and_shown(bench, tmp_path, no_torch):
    results = measured(bench, bench.gpu_kernels.Beside())
    assert {"copy", "layer_norm_backward float16", "AdamW float32", "unscale float32"} <= results["kernels"].keys()
    rows = [*results["kernels"].values(), *results["products"].values()]
    assert not [row for row in rows if row.keys() & {"error", "torch us", "torch ms"}]
    bench.write(tmp_path, results)
    lines = (tmp_path / "gpu.md").read_text().splitlines()
    assert sum("| no PyTorch (" in line for line in lines) == len(rows)
    args = bench.argparse.Namespace(tiny=False, device="emulated")
    steps = dict(bench.steps_of("mlp", args, bench.time.monotonic(), results["torch"]))
    assert steps["torch mixed"]["error"].startswith("no PyTorch (")
    assert steps["ampkit mixed"]["error"] == "no time left"


def test_with_pytorch_each_kernel_and_product_has_its_figure_beside(bench, tmp_path):
    pytest.importorskip("torch")
    results = measured(bench, bench.gpu_kernels.Beside("cpu"))
    beside = {name: row for name, row in results["kernels"].items() if "torch us" in row}
    assert results["kernels"].keys() - beside.keys() == {"unscale float32"}
    assert all(row["torch ms"] > 0 for row in results["products"].values())
    assert not [row for row in results["kernels"].values() if "error" in row or "torch us error" in row]
    bench.write(tmp_path, results)
    assert "| torch us | torch / ampkit |" in (tmp_path / "gpu.md").read_text()


def test_what_there_is_no_time_for_and_what_fails_is_shown_in_words(bench, no_torch):
    def fails():
        raise ValueError("first\nlast")

    results = measured(bench, bench.gpu_kernels.Beside(), until=0.0)
    assert {row["error"] for row in results["kernels"].values()} == {"no time left"}
    results["products"] = dict(bench.gpu_kernels.measured(iter([("bad", fails)]), float("inf")))
    shown = bench.table(results)
    assert "| copy | no time left |" in shown
    assert "| bad | last |" in shown


def test_the_peak_of_a_step_is_what_arrays_hold(bench):
    gc.collect()
    spare = ampkit.zeros(2**24, device="cuda")
    del spare  # which stays the pool's
    held = memory.used()
    assert held < bench.Ours(bench.TINY["mlp"], ["mixed"]).peak(2) < held + 2**22


@pytest.mark.parametrize("variant", ["ampkit float32", "ampkit mixed", "ampkit mixed compiled"])
@pytest.mark.parametrize("work", ["gpt2", "mlp"])
def test_steps_of_every_variant_run(work, variant, bench):
    steps = bench.Ours(bench.TINY[work], variant.split()[1:])
    seconds, losses = steps.time(6, 0)
    assert seconds > 0
    assert len(losses) == 6


def test_a_table_shows_what_failed_and_the_ratios_of_the_rest(bench):
    row = {"ms": 2.0, "rate": 10.0, "bytes": 10**9, "losses": [1.0]}
    found = {"torch mixed": row | {"ms": 3.0}, "ampkit mixed compiled": row, "ampkit mixed": {"error": "a\nno memory"}}
    shown = bench.table({"device": "d", "date": "t", "steps": {"mlp": found}})
    assert "| torch eager / ampkit compiled | 1.50 |" in shown
    assert "| ampkit mixed | no memory |" in shown
