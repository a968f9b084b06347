"""`ampkit tune`: its tables, its lines for a recipe, its file, and how it ends."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

import pytest

from ampkit import Policy, cli
from ampkit.cli import meter, tune
from ampkit.debug.policy_search import tuning
from ampkit.debug.policy_search.cost import Cost
from ampkit.run.search import turns

MLP = str(Path(__file__).parents[2] / "recipes" / "digits_mlp.toml")
SHORT = [
    "train.epochs=",
    "train.steps=20",
    "train.eval_every=",
    "train.threads=1",
    "model.hidden=[16]",
    "data.batch_size=16",
]


@pytest.fixture
def faster(monkeypatch):
    """A machine on which 16 bits take half the time."""
    result = turns.Training.result

    def timed(self, name, policy, wide):
        found = result(self, name, policy, wide)
        return found._replace(timed=found.timed._replace(times=(0.5 if policy else 1.0,)))

    monkeypatch.setattr(tuning, "costs", lambda e, choices, b, show: {c: Cost(2e-3, 1e-3, 0) for c in choices.all})
    monkeypatch.setattr(tuning, "step_times", lambda e, b, policies, show: [(0.5 if p else 1.0,) for p in policies])
    monkeypatch.setattr(turns.Training, "result", timed)


@pytest.mark.usefixtures("faster")
def test_it_shows_the_choices_the_trainings_and_the_lines_that_a_recipe_takes(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")  # wide enough for headers in one line
    out = tmp_path / "found.json"
    arguments = ["tune", MLP, *SHORT, "--steps", "6", "--batches", "2", "--dtype", "float16", "--json", str(out)]
    assert cli.main(arguments) == 0
    shown = capsys.readouterr().out
    for text in ("what float16 changes and saves", "against float32", "mean training loss", 'Policy("float16")'):
        assert text in shown
    assert "default: 2.00 times the speed of float32" in shown
    assert '\n[amp]\ndtype = "float16"\npolicy = "default"\n' in shown
    written = json.loads(out.read_text())
    assert written["policy"] == 'Policy("float16")' == repr(Policy("float16"))
    assert tomllib.loads(written["toml"])["amp"]["dtype"] == "float16"
    assert [each["name"] for each in written["trained"]] == ["float32", "default"]
    assert all(choice["low"] and choice["seconds"] == 1e-3 for choice in written["choices"])


@pytest.mark.usefixtures("faster")
def test_a_value_that_is_not_finite_is_shown_and_is_null_in_the_file(capsys, tmp_path, monkeypatch):
    out, result = tmp_path / "found.json", turns.Training.result

    def failed(self, name, policy, wide):
        found = result(self, name, policy, wide)
        return (
            found._replace(failure="step 1: it [broke]", timed=found.timed._replace(error=math.inf))
            if policy
            else found
        )

    monkeypatch.setattr(turns.Training, "result", failed)
    assert cli.main(["tune", MLP, *SHORT, "--steps", "3", "--json", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "default failed: step 1: it [broke]" in shown and "not finite" in shown
    assert json.loads(out.read_text())["trained"][1]["error"] is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--dtype", "int8"], "unknown --dtype 'int8'"),
        (["--error", "0"], "argument --error: needs a number above 0, got 0"),
        (["--error", "1%"], "argument --error"),
        (["--batches", "0"], "argument --batches: needs a number from 1, got 0"),
        (["--json", "/no/such/folder/x.json"], "--json: needs a file that can be written"),
        (["amp.dtype=bfloat16", "amp.parameters=low"], "amp.parameters: needs float32"),
        (["--steps", "1", 'schedule={name="constant", warmup=5}'], "schedule.warmup: needs less than the 1 steps"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, says, capsys):
    assert cli.main(["tune", MLP, *SHORT, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("ampkit: ") and says in captured.err
    assert "Traceback" not in captured.err


def test_ctrl_c_ends_it_at_once(monkeypatch, capsys):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(tune, "tune_recipe", interrupted)
    assert cli.main(["tune", MLP]) == 130
    assert capsys.readouterr().err == "ampkit: interrupted\n"


def test_a_long_stage_says_so_when_it_starts(monkeypatch):
    from rich.console import Console

    now = iter([0.0, 2.0, 4.0, 20.0, 100.0, 103.0])
    monkeypatch.setattr(meter.time, "perf_counter", lambda: next(now))
    console = Console(record=True, width=100)
    with meter.Meter(console) as shown:
        for done in (1, 2, 3, 10, 1, 2):  # it comes again
            shown.show(tuning.Progress("cost", done, 10))
    shown = [line for line in console.export_text().splitlines() if line]  # Rich before 14.3 ends with an empty line
    assert shown == ["cost: 10 passes, about 16 s", "cost: 10 passes in 20.0 s", "cost: 10 passes, about 24 s"]
