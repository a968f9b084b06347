"""`ampkit lab`: its tables, its file in a run directory, the report of that run, and how it refuses bad input."""

from __future__ import annotations

import json
import math
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from browser import CHROMIUM, open_page

from ampkit import cli, config
from ampkit.run.report import read_run, report
from ampkit.run.search.lab import lab_recipe

MLP = str(Path(__file__).parents[2] / "recipes" / "digits_mlp.toml")
SHORT = [
    "train.epochs=", "train.steps=2", "train.eval_every=", "train.threads=1", "model.hidden=[16]", "data.batch_size=16",
    "amp.dtype=bfloat16",
]  # fmt: skip


def test_it_shows_layers_trainings_and_cards_and_its_run_keeps_the_numbers(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    run = tmp_path / "run"
    assert cli.main(["train", MLP, *SHORT, "--run-dir", str(run)]) == 0
    capsys.readouterr()
    arguments = ["--formats", "nvfp4,mxfp8", "--steps", "4", "--batches", "1", "--run-dir", str(run)]
    assert cli.main(["lab", MLP, *SHORT, *arguments]) == 0
    shown = capsys.readouterr().out
    for text in (
        "all layers",
        "input_gradient alone",
        "validation loss",
        "B300",
        "B200 (step), peak memory",
        "kept for backward",
        "saturated",
        "the least work with a predicted error of at most 1 %",
        "[amp]",
    ):
        assert text in shown
    written = json.loads((run / "lab.json").read_text())
    assert [each["recipe"] for each in written["formats"]] == ["mxfp8", "nvfp4"]  # the more precise first
    assert [each["name"] for each in written["trained"]] == ["bfloat16", "16 bits again", "mxfp8", "nvfp4", "mixed"]
    losses = [each["loss"] for each in written["trained"]]
    assert len({*losses[:4]}) == 4
    assert abs(losses[1] - losses[0]) < 0.01 * losses[0]  # chance
    assert read_run(run).lab == written
    wide, mx, nv = written["kept"], *(each["kept"] for each in written["formats"])
    assert nv < mx < wide and nv / wide < 0.5


def test_it_says_where_the_training_of_the_found_policy_leaves_the_budget():
    found = lab_recipe(config.load(MLP, SHORT), ["nvfp4"], budget=0.5, batches=1, steps=4)
    wide, again, *formats, mixed = found.trained

    def note(error: float) -> str:
        last = mixed._replace(timed=mixed.timed._replace(error=error))
        return replace(found, trained=(wide, again, *formats, last)).note

    assert found.policy != wide.timed.policy
    assert found.note.startswith("trained, its loss came to") and "more than the budget" not in found.note
    assert "more than the budget, `ampkit tune --formats`" in note(0.6)
    assert note(math.inf).startswith("its training failed")
    assert replace(found, trained=()).note == ""
    assert replace(found, policy=wide.timed.policy).note == ""


def test_it_can_measure_alone(capsys, tmp_path):
    out = tmp_path / "lab.json"
    arguments = ["--formats", "int8", "--steps", "2", "--batches", "1", "--measure-only", "--json", str(out)]
    assert cli.main(["lab", MLP, *SHORT, *arguments]) == 0
    assert "mean training loss" not in capsys.readouterr().out
    assert json.loads(out.read_text())["trained"] == []


def test_an_unknown_format_is_refused_with_the_nearest_one(capsys):
    assert cli.main(["lab", MLP, "--formats", "mxfp9"]) == 2
    assert "got 'mxfp9'" in capsys.readouterr().err


@pytest.mark.parametrize("budget", [["--error", "0.5"], ["--memory", "0.7"]])
def test_tune_finds_a_policy_in_formats_that_a_recipe_takes(budget, capsys, tmp_path):
    out, run = tmp_path / "found.json", tmp_path / "run"
    arguments = ["--formats", "float8", "nvfp4", *budget, "--steps", "4", "--batches", "1", "--json", str(out)]
    assert cli.main(["tune", MLP, *SHORT, *arguments]) == 0
    shown = capsys.readouterr().out
    assert "what the search takes" in shown and "trained for 4 steps" in shown and "found: trained to a loss" in shown
    written = json.loads(out.read_text())
    assert written["toml"].strip() in shown.replace("\n\n", "\n")
    assert {each["format"] for each in written["layers"]} <= {"current", "nvfp4", "bfloat16"}
    assert [each["name"] for each in written["trained"]] == ["bfloat16", "16 bits again", "found"]
    amp = tomllib.loads(written["toml"])["amp"]
    keys = [f"amp.{key}={_toml(value)}" for key, value in amp.items()]
    assert cli.main(["train", MLP, *SHORT, *keys, "--run-dir", str(run)]) == 0
    assert config.load(str(run / "config.toml")).amp.modules == amp.get("modules", {})


def _toml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{key}"="{word}"' for key, word in value.items()) + "}"
    return f'"{value}"'


def test_budgets_of_tune_that_exclude_each_other_are_refused(capsys):
    assert cli.main(["tune", MLP, "--formats", "mxfp8", "--error", "0.1", "--memory", "0.5"]) == 2
    assert "--memory: needs no --error beside it, got both" in capsys.readouterr().err
    assert cli.main(["tune", MLP, "--memory", "0.5"]) == 2
    assert "--memory: needs --formats beside it, got none" in capsys.readouterr().err


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
def test_a_report_shows_what_was_measured_also_of_a_file_that_has_less(tmp_path):
    product = {"error": 0.17, "flushed": [0.04, 0.0]}
    layers = [{"layer": "head", "recipe": "nvfp4", "error": 0.0021, "products": {"forward": product}}]
    formats = [{"recipe": "nvfp4", "error": 0.0025, "products": {"forward": 0.0023}}]
    less = {"dtype": "bfloat16", "layers": layers, "formats": formats, "policy": "", "budget": 0.01, "trained": []}
    more = json.loads(json.dumps(less)) | {"kept": 1000, "output": "head"}
    more["cards"] = [{"name": "B300", "figures": ["2.03 x"], "source": "a page"}]
    more["formats"][0] |= {"kept": 290, "inner": None}
    more["layers"][0]["products"]["forward"]["saturated"] = [0.061, 0.0]
    for name, found in (("less", less), ("more", more)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").write_text("")
        (tmp_path / name / "metrics.jsonl").write_text("")
        (tmp_path / name / "lab.json").write_text(json.dumps(found))
    report([tmp_path / "less", tmp_path / "more"], tmp_path / "out.html")
    shown = open_page(tmp_path / "out.html", "--virtual-time-budget=5000", "--dump-dom")
    assert "CONSOLE" not in shown.stderr
    cells = re.sub(
        "(<[^>]*>)+", "|", shown.stdout[shown.stdout.index('id="formats"') : shown.stdout.index('id="steps"')]
    )
    assert (
        cells.count("|head|0.21 %|") == cells.count("|all layers|0.25 %|") == cells.count("|forward alone|0.23 %|") == 2
    )
    for once in (
        "|all without head|not finite|",
        "MB in bfloat16|29 %|",
        "|B300|2.03 x|",
        "|B300: a page|",
        "|4 %|none|6.100 %|none|",
    ):
        assert cells.count(once) == 1


@pytest.mark.parametrize("text", ["{", "[]", '{"layers": 3}'])
def test_a_report_leaves_a_damaged_file_out(tmp_path, text):
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / "lab.json").write_text(text)
    found = read_run(tmp_path)
    assert found.lab is None
    assert found.notes == ["lab.json cannot be read: the formats below 16 bits are left out"]
