"""The run directory."""

from __future__ import annotations

import json
import math
from datetime import datetime
from pathlib import Path

import pytest

from ampkit import config
from ampkit.core.errors import FileError
from ampkit.journal import Journal, Place, default_directory
from ampkit.train import EvalRow, StepRow

RECIPE = config.load(Path(__file__).parents[1] / "recipes" / "digits_mlp.toml", ["amp.dtype=float16"])
ROW = StepRow(step=1, loss=2.5, lr=0.1, scale=1024.0, skipped=1, grad_norm=math.inf, seconds=0.5)


def test_the_config_it_holds_is_complete_and_gives_the_same_recipe(tmp_path):
    with Journal(tmp_path / "run", RECIPE):
        pass
    assert config.load(tmp_path / "run" / "config.toml") == RECIPE
    assert "growth_interval" in (tmp_path / "run" / "config.toml").read_text()


def test_a_row_can_be_read_as_soon_as_it_is_written(tmp_path):
    with Journal(tmp_path / "run", RECIPE) as journal:
        journal.write(ROW)
        journal.write(EvalRow(1, 0.5, 0.75))
        rows = [json.loads(line) for line in journal.metrics.read_text().splitlines()]
    assert rows[0] | {"grad_norm": None} == rows[0]
    assert list(rows[0]) == ["step", "loss", "lr", "scale", "skipped", "grad_norm", "seconds"]
    assert rows[1] == {"step": 1, "val_loss": 0.5, "accuracy": 0.75}


def test_a_directory_that_holds_something_is_left_alone(tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(FileError, match="needs a new or empty one, got .*holds files\nhelp: give another --run-dir"):
        Journal(tmp_path, RECIPE)
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_a_directory_that_cannot_be_made_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="run directory: needs one that can be written, got"):
        Journal(tmp_path / "file" / "run", RECIPE)


def test_the_default_directory_is_never_taken_twice(tmp_path):
    now = datetime(2030, 1, 2, 3, 4, 5)
    first = default_directory("a/digits.toml", "float16", now, tmp_path)
    assert first == tmp_path / "digits-float16-20300102-030405"
    first.mkdir()
    assert default_directory("a/digits.toml", "float16", now, tmp_path).name == "digits-float16-20300102-030405-2"


def test_a_journal_that_goes_on_takes_back_what_came_later_and_what_was_cut_off(tmp_path):
    with Journal(tmp_path, RECIPE) as journal:
        for step in (1, 2):
            journal.write(StepRow(step, 2.5, 0.1, 1.0, 0, 1.0, 0.5))
            journal.write(EvalRow(step, 0.5, 0.75))
    whole = journal.metrics.read_text().splitlines(keepends=True)
    for place, kept in ((Place(2, 2), 4), (Place(2, 1), 3), (Place(1, 1), 2), (Place(1, 0), 1), (Place(0, 0), 0)):
        journal.metrics.write_text("".join(whole) + '{"step": 2, "lo')
        with Journal(tmp_path, RECIPE, place):
            pass
        assert journal.metrics.read_text() == "".join(whole[:kept])


def test_a_directory_whose_process_was_killed_at_the_very_start_counts_as_empty(tmp_path):
    (tmp_path / ".config.toml.abc").touch()
    with Journal(tmp_path, RECIPE, Place(0, 0)) as journal:
        assert journal.metrics.exists()
