"""The run directory: made, locked, removed again where nothing came of it."""

from __future__ import annotations

import json
import os
from datetime import datetime
from itertools import islice
from pathlib import Path

import pytest

from ampkit import config
from ampkit.base.errors import ConfigError, FileError
from ampkit.run.loop import StepRow
from ampkit.run.metrics_log import ResumePoint
from ampkit.run.run_dir import HeldError, Lock, RunDirectory, default_directories

RECIPE = config.load(Path(__file__).parents[2] / "recipes" / "digits_mlp.toml", ["amp.dtype=float16"])
ROW = StepRow(1, 2.5, 0.1, 1.0, 0, 1.0, 0.5)


def run_in(path, resume=False, rows=1, recipe=RECIPE, **begin):
    """A run that writes so many rows; returns what it says."""
    with RunDirectory(path, resume) as directory, directory.begin(recipe, **begin) as log:
        for _ in range(rows):
            log.write(ROW)
    return directory.notices


def names(path):
    return sorted(found.name for found in path.iterdir())


def test_the_config_it_holds_is_complete_and_gives_the_same_recipe(tmp_path):
    run_in(tmp_path / "run")
    assert config.load(tmp_path / "run" / "config.toml") == RECIPE
    assert "growth_interval" in (tmp_path / "run" / "config.toml").read_text()
    assert names(tmp_path / "run") == ["config.toml", "environment.jsonl", "metrics.jsonl"]


def test_a_directory_that_holds_something_is_left_alone(tmp_path):
    (tmp_path / "notes").write_text("mine")
    for resume in (False, True):
        with pytest.raises(FileError, match="holds files\nhelp: give another --run-dir"):
            RunDirectory(tmp_path, resume).__enter__()
    assert names(tmp_path) == ["notes"]


def test_over_a_run_the_help_is_to_resume(tmp_path):
    run_in(tmp_path)
    with pytest.raises(FileError, match="which holds a run\nhelp: add --resume to resume it") as error:
        run_in(tmp_path)
    assert "remove" not in str(error.value)


@pytest.mark.parametrize("place", ["file/run", "a\0b", "file"])
def test_a_directory_that_cannot_be_made_is_refused_in_one_line(tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="run directory: needs") as error:
        RunDirectory(tmp_path / place).__enter__()
    assert str(error.value).count("\n") == 1
    assert names(tmp_path) == ["file"]


def test_the_default_directory_is_never_taken_twice(tmp_path):
    now = datetime(2030, 1, 2, 3, 4, 5)

    def some():
        return islice(default_directories("a/digits.toml", "float16", now, tmp_path), 2)

    first, second = some()
    assert first == tmp_path / "digits-float16-20300102-030405"
    with RunDirectory.first_free(iter([first])) as held:
        assert held.path == first
        with RunDirectory.first_free(iter([first, second])) as other:  # as if both had looked at once
            assert other.path == tmp_path / "digits-float16-20300102-030405-2"
        assert next(iter(some())) == second


def test_a_directory_whose_process_was_killed_at_the_very_start_counts_as_empty(tmp_path):
    (tmp_path / ".config.toml.abc").touch()
    (tmp_path / "ampkit.lock").write_text("process 1 on nowhere")
    run_in(tmp_path)
    assert (tmp_path / "metrics.jsonl").exists()


# the lock


def test_a_second_run_is_refused_in_one_line_that_names_the_first(tmp_path):
    with RunDirectory(tmp_path / "run"):
        for resume in (False, True):
            with pytest.raises(HeldError) as error:
                RunDirectory(tmp_path / "run", resume).__enter__()
            line = str(error.value).splitlines()[0]
            assert f"process {os.getpid()} on {os.uname().nodename}, started 2" in line
        assert names(tmp_path / "run") == ["ampkit.lock"]
    run_in(tmp_path / "run")


def test_a_holder_that_has_not_written_its_name_yet_is_waited_for(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    held = Lock(path, "run")
    said = path.read_bytes()
    path.write_bytes(b"")
    monkeypatch.setattr("time.sleep", lambda seconds: path.write_bytes(said))
    with pytest.raises(HeldError, match=f"got process {os.getpid()} on"):
        Lock(path, "run")
    held.release()


def test_a_lock_file_that_its_holder_removed_meanwhile_is_made_anew(tmp_path, monkeypatch):
    first, lock = Lock(tmp_path / "lock", "x"), __import__("fcntl").flock

    def late(handle, how):
        if first is not None:
            monkeypatch.undo()
            first.release()
        lock(handle, how)

    monkeypatch.setattr("ampkit.base.file_lock.fcntl.flock", late)
    second = Lock(tmp_path / "lock", "x")
    with pytest.raises(HeldError):
        Lock(tmp_path / "lock", "x")
    second.release()
    assert not names(tmp_path)


def test_a_lock_is_no_way_to_write_over_what_a_link_leads_to(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "ampkit.lock").symlink_to(tmp_path / "mine")
    with pytest.raises(FileError, match="symbolic link"):
        RunDirectory(tmp_path / "run").__enter__()
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_directory_that_another_start_removed_meanwhile_is_made_again(tmp_path, monkeypatch):
    def removed_first(path, where, calls=[]):  # noqa: B006
        calls.append(path.parent.rmdir() if len(calls) < 2 else None)
        return Lock(path, where)

    monkeypatch.setattr("ampkit.run.run_dir.Lock", removed_first)
    run_in(tmp_path / "run")
    assert names(tmp_path / "run") == ["config.toml", "environment.jsonl", "metrics.jsonl"]
    monkeypatch.setattr("ampkit.run.run_dir.Lock", lambda path, where: Lock(path / "nowhere", where))
    with pytest.raises(FileError, match="No such file"):
        RunDirectory(tmp_path / "other").__enter__()


# a failed start


def test_a_start_that_comes_to_nothing_leaves_nothing(tmp_path):
    run_in(tmp_path / "a" / "b" / "run", rows=0)
    assert not names(tmp_path)
    with pytest.raises(ZeroDivisionError), RunDirectory(tmp_path / "run"):
        raise ZeroDivisionError
    assert not names(tmp_path)


def test_a_start_that_comes_to_nothing_removes_nothing_that_was_there(tmp_path):
    (tmp_path / "run").mkdir()
    run_in(tmp_path / "run", rows=0)
    assert names(tmp_path / "run") == []
    run_in(tmp_path / "run")
    run_in(tmp_path / "run", resume=True, rows=0)
    assert names(tmp_path / "run") == ["config.toml", "environment.jsonl", "metrics.jsonl", "metrics.jsonl.old-1"]


def test_a_disk_that_is_full_at_the_start_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ampkit.serialization.os.fsync", full)
    with pytest.raises(FileError, match="run directory: needs a file that can be written, got .*No space left"):
        run_in(tmp_path / "run")
    assert not names(tmp_path)


# its config


def test_a_config_that_was_changed_is_kept_as_a_copy_and_written_anew(tmp_path):
    run_in(tmp_path)
    path = tmp_path / "config.toml"
    good = path.read_bytes()
    for number, harm in enumerate((lambda b: b[:-20], lambda b: b.replace(b"0", b"1", 1), lambda b: b"\xff" + b), 1):
        path.write_bytes(harm(good))
        after = {"after": ResumePoint(1, 0)} if number > 1 else {}
        (notice, *_) = run_in(tmp_path, True, **after)
        assert f"config.toml: changed since it was written, now as config.toml.damaged-{number}" in notice
        assert path.read_bytes() == good
        assert (tmp_path / f"config.toml.damaged-{number}").read_bytes() == harm(good)


def test_another_recipe_is_refused_where_there_is_no_checkpoint_to_ask(tmp_path):
    run_in(tmp_path)
    other = RECIPE.model_copy(update={"amp": RECIPE.amp.model_copy(update={"dtype": "bfloat16"})})
    with pytest.raises(ConfigError, match="amp.dtype"):
        run_in(tmp_path, True, recipe=other)
    assert (tmp_path / "metrics.jsonl").read_bytes().count(b"\n") == 1


def test_a_config_from_before_there_was_a_checksum_is_taken_as_it_is(tmp_path):
    run_in(tmp_path)
    path = tmp_path / "config.toml"
    path.write_text(config.dump(RECIPE))
    assert run_in(tmp_path, True, after=ResumePoint(1, 0)) == []


def test_each_start_is_noted_with_the_machine_it_ran_on(tmp_path):
    for after in (None, ResumePoint(4, 4)):
        run_in(tmp_path / "run", resume=after is not None, after=after)
    rows = [json.loads(line) for line in (tmp_path / "run" / "environment.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 4]
    assert {"Python", "system", "CPU"} <= set(rows[0]["found"])
    assert "/" not in rows[0]["found"]["Python"]  # no paths of a machine in a report
