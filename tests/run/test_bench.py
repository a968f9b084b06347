"""The same recipe in several precisions, each in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampkit import config
from ampkit.backends.cpu import threads
from ampkit.base.errors import ConfigError
from ampkit.run.bench import Result, Started, _result, bench, peak_bytes
from ampkit.run.loop import EvalRow, StepRow

RECIPES = Path(__file__).parents[2] / "recipes"
SHORT = ["train.epochs=", "train.steps=4", "train.eval_every=", 'schedule={name="constant"}', "model.hidden=[16]"]
if threads.blas_kernels():  # one thread is the faster one where other processes want the other CPUs
    SHORT.append("train.threads=1")


def recipe(*overrides: str):
    return config.load(RECIPES / "digits_mlp.toml", [*SHORT, *overrides])


def test_each_precision_starts_logs_every_step_evaluates_and_gives_its_result():
    events = list(bench(recipe(), ["float32", "float16"]))
    one = [Started, *[StepRow] * 4, EvalRow, Result]
    assert [type(event) for event in events] == one * 2
    assert events[0] == Started("float32", 4, 64, "samples")
    plain, half = events[6], events[13]
    assert (plain.dtype, plain.scale, plain.skipped, plain.error) == ("float32", 1.0, 0, None)
    assert (half.dtype, half.scale, half.error) == ("float16", 65536.0, None)
    assert half.accuracy == events[12].accuracy
    assert half.seconds < half.wall_seconds
    for result in (plain, half):
        assert {"products", "waiting for data"} <= set(result.ledger.times)
        assert sum(result.ledger.times.values()) == pytest.approx(result.ledger.seconds)
    assert plain.ledger.memory["16-bit copies of weights"] == 0 < half.ledger.memory["16-bit copies of weights"]


def test_what_was_measured_stands_without_a_ledger(monkeypatch):
    failing = """
import ampkit.run.bench
from ampkit.base.errors import StateError
def fail(*arguments):
    raise StateError("ledger", "steps that succeed", "one that fails")
ampkit.run.bench.measure = fail
raise SystemExit(ampkit.run.bench.worker())
"""
    monkeypatch.setattr("ampkit.run.bench._WORKER", failing)
    result = list(bench(recipe(), ["float32"]))[-1]
    assert (result.error, result.ledger) == (None, None)
    assert result.accuracy is not None
    assert result.peak_bytes is not None


def test_a_bench_takes_as_many_steps_as_the_recipe_says_for_it():
    events = list(bench(recipe("train.steps=", "train.epochs=9", "train.bench_steps=2"), ["float32"]))
    assert events[0].steps == 2
    assert [event.step for event in events if isinstance(event, StepRow)] == [1, 2]


def test_a_run_that_fails_gives_a_result_that_says_why():
    result = list(bench(recipe('optimizer={name="sgd", lr=1e30}'), ["float32"]))[-1]
    assert "needs a finite loss" in result.error
    assert result.accuracy is None


def test_a_recipe_that_cannot_run_here_raises_as_fit_does():
    with pytest.raises(ConfigError, match=r"schedule.warmup: needs less than the 46 steps"):
        next(bench(recipe("train.steps=", "train.epochs=2", 'schedule={name="constant", warmup=100}')))


def test_a_process_that_dies_is_reported_with_its_status(monkeypatch):
    monkeypatch.setattr("ampkit.run.bench._WORKER", "raise SystemExit(7)")
    assert list(bench(recipe(), ["float32"]))[-1].error == "the process ended early, with status 7"


def test_leaving_early_ends_the_process(monkeypatch):
    ended = []
    run = bench(recipe("train.steps=100000"), ["float32"])
    monkeypatch.setattr(
        "ampkit.run.bench.subprocess.Popen.kill", lambda self, kill=_kill: (ended.append(self), kill(self))
    )
    next(run)
    run.close()
    assert [process.returncode for process in ended] == [-9]


def _kill(process):
    import os
    import signal

    os.kill(process.pid, signal.SIGKILL)


def test_the_median_step_leaves_the_first_one_out():
    seconds = [9.0, 10.0, 11.0, 15.0]
    rows = [StepRow(i + 1, 1.0, 0.1, 1.0, 0, 1.0, s) for i, s in enumerate(seconds)]
    assert _result("float32", rows, {}, 20.0).step_seconds == 1.0


def test_a_gpu_s_memory_is_a_figure_of_its_own():
    assert _result("float32", [], {"device_bytes": 5, "run_bytes": 7}, 1.0).device_bytes == 5


@pytest.mark.skipif(peak_bytes() is None, reason="this system does not tell")
def test_peak_memory_grows_with_what_is_held():
    before = peak_bytes()
    held = b"x" * (before + 2**26)
    assert peak_bytes() >= before + 2**25
    del held
