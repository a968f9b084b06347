"""The comparison of ops with PyTorch's: every row runs in ampkit, with tiny inputs, and regressions are found."""

from __future__ import annotations

import importlib
import json
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

import ampkit

BENCH = Path(__file__).parents[2] / "bench"
NAMES = ("ops", "op_calls", "op_cases", "op_layers", "processes")


def loaded():
    """The benchmark, found by its own folder as when it runs as a script; afterwards all is as before.

    Tests that import others have made the folder tests/ops a module of the same name.
    """
    before, held = list(sys.path), {name: sys.modules.pop(name) for name in NAMES if name in sys.modules}
    sys.path.insert(0, str(BENCH))
    try:
        found = {name: importlib.import_module(name) for name in NAMES}
    finally:
        sys.path[:] = before
        for name in NAMES:
            sys.modules.pop(name, None)
        sys.modules.update(held)
    return found["ops"], found["op_calls"]


ops, calls = loaded()


@pytest.fixture(autouse=True)
def _own_signal_handlers():
    """The benchmark ends its children when it is terminated; the tests that follow do not."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def times(ours, theirs):
    return {
        library: dict.fromkeys(ops.PARTS, seconds)
        for library, seconds in (("ampkit", ours), ("torch", theirs))
        if seconds
    }


@pytest.mark.parametrize("name", calls.CASES)
def test_every_row_of_an_op_runs(name):
    inputs = calls.Inputs(ampkit)
    found = [row for row in ops.selected(ops.options(["--tiny"])) if row.op == name]
    assert found
    for row in found:
        timed = calls.Timed(row, inputs)
        assert len(calls.turn(timed, 0)) == 1
        if timed.backward:
            assert all(leaf.grad is not None and leaf.grad.shape == leaf.shape for leaf in timed.built.leaves), row.key


def test_inputs_and_gradients_have_their_layout():
    inputs = calls.Inputs(ampkit)
    given = calls.Input((2, 3, 4, 5))
    plain, swapped, last = (
        inputs.make(given, "float32", layout) for layout in ("contiguous", "transposed", "channels_last")
    )
    assert [t.shape for t in (plain, swapped, last)] == [(2, 3, 4, 5)] * 3
    assert [np.argsort(t.array.strides)[::-1].tolist() for t in (plain, swapped, last)] == [
        [0, 1, 2, 3],
        [0, 1, 3, 2],
        [0, 2, 3, 1],
    ]
    assert all(t.is_leaf and t.requires_grad for t in (plain, swapped, last))
    assert all(calls.dense_like(t).array.strides == t.array.strides for t in (plain, swapped, last))


def test_a_row_that_became_slower_or_fails_is_a_regression_and_one_that_was_not_measured_is_not():
    old = {"a": times(1, 2), "b": times(1, 2), "c": times(1, 2), "d": times(1, 2)}
    new = {"a": times(1.2, 2), "b": times(1, 2.5), "c": times(1.1, 2), "e": times(9, 1)}
    assert ops.regressions(new, old, 15) == {"a": "2.00 before, 1.67 now"}
    failed = {"a": {"ampkit": {"error": "needs a kernel"}, "torch": times(1, 2)["torch"]}}
    assert ops.regressions(failed, old, 15) == {"a": "needs a kernel"}


def test_rows_below_the_threshold_are_bold_and_the_mean_is_geometric():
    slow, fast = calls.Row("a", "medium", "float32"), calls.Row("b", "medium", "float32", "transposed", "sum")
    results = {slow: times(2, 1), fast: times(1, 8)}
    assert ops.line(slow, results[slow]) == "| **a** | medium | 0.50 | 0.50 | **0.50** | 2e+03 | 1e+03 |"
    assert ops.line(fast, results[fast]).startswith("| b, transposed, behind .sum() | medium | 8.00 |")
    assert "forward 2.00, backward 2.00, both 2.00; 1 of 2 rows" in ops.summary(results, "float32")


def test_the_quantile_is_taken_of_each_part_and_of_their_sum():
    found = ops.typical([(1, 9), (5, 1), (2, 2)])
    assert found == {"forward": 2, "backward": 2, "both": 6}
    assert ops.typical([(1, 9), (5, 1), (2, 2)], 0.0) == {"forward": 1, "backward": 1, "both": 4}


KEY = "gelu, tiny, float32, contiguous, dense"


def test_the_command_measures_the_selected_rows_in_a_process(monkeypatch, capsys, tmp_path):
    file = tmp_path / "new.json"
    monkeypatch.setattr(sys, "argv", ["ops.py", "--tiny", "--only", f"^pointwise: {KEY}$", "--json", str(file)])
    ops.main()
    found = json.loads(file.read_text())["rows"]
    assert list(found) == [KEY]
    assert found[KEY]["ampkit"]["both"] >= found[KEY]["ampkit"]["forward"] > 0
    assert capsys.readouterr().out.count("| gelu") == 1


@pytest.mark.parametrize(("second", "status"), [(1.0, 1), (2.0, 0)])
def test_a_regression_is_measured_twice_before_the_command_ends_with_status_1(
    monkeypatch, capsys, tmp_path, second, status
):
    file = tmp_path / "old.json"
    file.write_text(json.dumps({"rows": {KEY: times(1, 2)}}))
    measured = iter([times(1, 1.0), times(1, second)])
    monkeypatch.setattr(ops.Bench, "measure", lambda self, row, rounds, seconds: next(measured))
    monkeypatch.setattr(sys, "argv", ["ops.py", "--size", "tiny", "--only", KEY, "--against", str(file)])
    with pytest.raises(SystemExit) as ended:
        ops.main()
    assert ended.value.code == status
    assert f"{status} regressions of more than 15 %" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--quantile", "1"], ["--dtype", "float64"]])
def test_an_argument_out_of_its_range_is_an_error(arguments):
    with pytest.raises(SystemExit):
        ops.options(arguments)


def test_a_process_that_ends_early_is_one_rows_error_and_the_next_row_has_a_new_one(monkeypatch):
    bench = ops.Bench(["ampkit"], 1, 0.5)
    row = calls.Row("relu", "tiny", "float32")
    try:
        assert "both" in bench.measure(row, 1, 0.0)["ampkit"]
        bench.workers["ampkit"].process.kill()
        assert bench.measure(row, 1, 0.0) == {"ampkit": {"error": "a process ended early, with status -9"}}
        assert "both" in bench.measure(row, 1, 0.0)["ampkit"]
    finally:
        bench.end()
