"""The comparison on a GPU runs to its end, on an emulated one with sizes that say nothing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from cuda_on_cpu import emulator

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


def test_kernels_and_products_are_measured_and_shown(bench, tmp_path):
    results = {"device": "emulated", "date": "today", "steps": {}}
    results |= {"kernels": bench.kernels(tiny=True), "products": bench.products(tiny=True)}
    assert {"copy", "layer_norm_backward float16", "AdamW float32", "unscale float32"} <= results["kernels"].keys()
    bench.write(tmp_path, results)
    assert "| copy |" in (tmp_path / "gpu.md").read_text()


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
