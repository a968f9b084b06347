"""The same recipe in several precisions, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from ampkit import config
from ampkit.backends.cpu import threads
from ampkit.base.errors import ConfigError
from ampkit.run.bench import Result, Started, _result, bench, peak_bytes
from ampkit.run.loop import EvalRow, StepRow
from ampkit.run.report.findings import in_words
from ampkit.run.report.speed import speed_of

RECIPES = Path(__file__).parents[2] / "recipes"
SHORT = ["train.epochs=", "train.steps=4", "train.eval_every=", 'schedule={name="constant"}', "model.hidden=[16]"]
if threads.blas_kernels():  # one thread is the faster one where other processes want the other CPUs
    SHORT.append("train.threads=1")


def recipe(*overrides: str):
    return config.load(RECIPES / "digits_mlp.toml", [*SHORT, *overrides])


def test_each_precision_starts_logs_every_step_evaluates_and_gives_its_result():
    events = list(bench(recipe(), ["float32", "float16"]))
    of = {dtype: [event for name, event in events if name == dtype] for dtype in ("float32", "float16")}
    for found in of.values():
        assert [type(event) for event in found] == [Started, *[StepRow] * 4, EvalRow, Result]
    assert events[0] == ("float32", Started("float32", 4, 64, "samples"))
    plain, half = of["float32"][-1], of["float16"][-1]
    assert (plain.dtype, plain.scale, plain.skipped, plain.error) == ("float32", 1.0, 0, None)
    assert (half.dtype, half.scale, half.error) == ("float16", 65536.0, None)
    assert half.accuracy == of["float16"][-2].accuracy
    assert half.seconds < half.wall_seconds
    for result in (plain, half):
        assert {"products", "waiting for data"} <= set(result.ledger.times)
        assert sum(result.ledger.times.values()) == pytest.approx(result.ledger.seconds)
    assert plain.ledger.memory["16-bit copies of weights"] == 0 < half.ledger.memory["16-bit copies of weights"]


def test_a_bench_takes_as_many_steps_as_the_recipe_says_and_stands_without_a_ledger(monkeypatch):
    failing = """
import ampkit.run.bench
from ampkit.base.errors import StateError
def fail(*arguments):
    raise StateError("ledger", "steps that succeed", "one that fails")
ampkit.run.bench.measure = fail
raise SystemExit(ampkit.run.bench.worker())
"""
    monkeypatch.setattr("ampkit.run.bench._WORKER", failing)
    events = list(bench(recipe("train.steps=", "train.epochs=9", "train.bench_steps=2"), ["float32"]))
    assert events[0][1].steps == 2  # as many as the recipe says for a bench
    assert [event.step for _, event in events if isinstance(event, StepRow)] == [1, 2]
    result = events[-1][1]
    assert (result.error, result.ledger) == (None, None)
    assert result.accuracy is not None
    assert result.peak_bytes is not None


def test_a_run_that_fails_gives_a_result_that_says_why():
    result = list(bench(recipe('optimizer={name="sgd", lr=1e30}'), ["float32"]))[-1][1]
    assert "needs a finite loss" in result.error
    assert result.accuracy is None


def test_a_recipe_that_cannot_run_here_raises_as_fit_does():
    with pytest.raises(ConfigError, match=r"schedule.warmup: needs less than the 46 steps"):
        next(bench(recipe("train.steps=", "train.epochs=2", 'schedule={name="constant", warmup=100}')))


def test_a_process_that_dies_is_reported_with_its_status(monkeypatch):
    monkeypatch.setattr("ampkit.run.bench._WORKER", "raise SystemExit(7)")
    assert list(bench(recipe(), ["float32"]))[-1][1].error == "the process ended early, with status 7"


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
    assert _result("float32", [rows], {}, 20.0).step_seconds == 1.0


def test_precisions_take_turns_of_as_many_steps_each():
    events = bench(recipe("train.steps=40"), ["float32", "float16"])
    steps = [(dtype, event.step) for dtype, event in events if isinstance(event, StepRow)]
    turns = [[step for _, step in turn] for _, turn in groupby(steps, key=lambda pair: pair[0])]
    assert turns[::2] == turns[1::2] and len(turns) >= 20 and turns[0] == [1, 2]


def timed(dtype, seconds, per_turn=3):
    """The result of a run whose steps take `seconds`, in turns."""
    total, rows = 0.0, []
    for step, spent in enumerate(seconds, 1):
        total += spent
        rows.append(StepRow(step, 1.0, 0.1, 1.0, 0, 1.0, total))
    turns = [rows[:2], *[rows[i : i + per_turn] for i in range(2, len(rows), per_turn)]]
    return _result(dtype, turns, {}, total)


def busy(rng, steps, chance):
    """How many times longer each step takes beside other work, which comes and goes."""
    load = np.repeat(1 + 2 * (rng.random(steps // 6 + 1) < chance), 6)[:steps]
    return load * (1 + 0.3 * rng.random(steps))


@pytest.mark.parametrize("seed", range(20))
def test_other_work_does_not_turn_the_verdict(seed):
    rng = np.random.default_rng(seed)
    load = busy(rng, 62, 0.5)
    same, faster, slower = (timed("float16", 0.01 * f * load * (1 + 0.05 * rng.random(62))) for f in (1, 0.6, 1.6))
    wide = timed("float32", 0.01 * load)
    assert speed_of(same, wide).short() == "as fast"
    assert speed_of(faster, wide).faster and speed_of(slower, wide).slower


@pytest.mark.parametrize("seed", range(20))
def test_work_that_falls_on_the_turns_of_one_of_them_alone_gives_no_strong_claim(seed):
    rng = np.random.default_rng(seed)
    mine, wide = (timed(dtype, 0.01 * busy(rng, 92, 0.4)) for dtype in ("float16", "float32"))
    found = speed_of(mine, wide)
    assert not (found.faster or found.slower)


def ledger_of(seconds):
    return {"ledger": {"seconds": seconds, "times": {"products": seconds}}}


DISAGREEMENTS = pytest.mark.parametrize(("timing", "explained"), [(0.7, 1.2), (1.3, 0.8), (1.0, 1.45), (1.0, 0.6)])


def explained_runs(timing, explained):
    wide, mine = timed("float32", [0.01] * 40), timed("float16", [0.01 * timing] * 40)
    return replace(wide, measured=ledger_of(0.01)), replace(mine, measured=ledger_of(0.01 * explained))


@DISAGREEMENTS
def test_without_turns_two_measurements_that_disagree_give_no_verdict(timing, explained):
    wide, mine = (replace(each, turns=None) for each in explained_runs(timing, explained))
    lines = list(in_words([wide, mine], {}, ""))
    assert lines[0].startswith("float16: no verdict, since two measurements of its speed disagree")
    assert not any("less time" in line or "more time" in line for line in lines)
    agreed = list(in_words([wide, replace(mine, measured=ledger_of(0.01 * timing))], {}, ""))
    assert "no verdict" not in agreed[0]


@DISAGREEMENTS
def test_turns_give_the_verdict_and_an_explanation_that_contradicts_it_is_left_out(timing, explained):
    wide, mine = explained_runs(timing, explained)
    lines = list(in_words([wide, mine], {}, ""))
    assert lines[0] == f"float16 {speed_of(mine, wide)}" and lines[1].startswith("  why is not known: ")
    assert not any("less time" in line or "more time" in line for line in lines)


def test_a_gpu_s_memory_is_a_figure_of_its_own():
    assert _result("float32", [], {"device_bytes": 5, "run_bytes": 7}, 1.0).device_bytes == 5


@pytest.mark.skipif(peak_bytes() is None, reason="this system does not tell")
def test_peak_memory_grows_with_what_is_held():
    program = "from ampkit.run.bench import peak_bytes; before = peak_bytes(); held = b'x' * (before + 2**26); "
    program += "assert peak_bytes() >= before + 2**25"
    subprocess.run([sys.executable, "-c", program], check=True)  # a process that holds little yet
