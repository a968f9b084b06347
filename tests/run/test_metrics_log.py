"""The rows of a run."""

from __future__ import annotations

import json
import math
import os

import pytest

from ampkit.base.errors import FileError
from ampkit.run.loop import EvalRow, StepRow
from ampkit.run.metrics_log import MetricsLog, ResumePoint

ROW = StepRow(step=1, loss=2.5, lr=0.1, scale=1024.0, skipped=1, grad_norm=math.inf, seconds=0.5)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def written(path, steps=(1, 2, 3, 4)):
    """Rows with an evaluation after each step; returns the lines and the mark of the file."""
    with MetricsLog(path) as log:
        for step in steps:
            log.write(StepRow(step, 2.5, 0.1, 1.0, 0, 1.0, 0.5))
            log.write(EvalRow(step, 0.5, 0.75))
        mark = log.sync()
    return path.read_bytes().splitlines(keepends=True), mark


def gone_on(path, after, mark=None):
    """What a run that goes on says of the file, and leaves of it."""
    with MetricsLog(path, after, mark) as log:
        pass
    return log.notices, path.read_bytes()


def test_a_row_can_be_read_as_soon_as_it_is_written(path):
    with MetricsLog(path) as log:
        log.write(ROW)
        log.write(EvalRow(1, 0.5, 0.75))
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows[0] | {"grad_norm": None} == rows[0]
    assert list(rows[0]) == ["step", "loss", "lr", "scale", "skipped", "grad_norm", "seconds"]
    assert rows[1] == {"step": 1, "val_loss": 0.5, "accuracy": 0.75}


@pytest.mark.parametrize("torn", [b"", b'{"step": 2, "lo', b'{"step": 2, "loss": 1}'])
def test_rows_of_later_steps_and_a_last_line_that_was_cut_off_are_removed(path, torn):
    whole, _ = written(path, (1, 2))
    for place, kept in ((ResumePoint(2, 2), 4), (ResumePoint(2, 1), 3), (ResumePoint(1, 1), 2), (ResumePoint(1, 0), 1)):
        path.write_bytes(b"".join(whole) + torn)
        assert gone_on(path, place) == ([], b"".join(whole[:kept]))
        assert list(path.parent.iterdir()) == [path]


def test_the_mark_of_a_checkpoint_says_where_its_rows_end(path):
    lines, mark = written(path)
    path.write_bytes(b"".join(lines) + lines[0])
    assert gone_on(path, ResumePoint(4, 4), mark) == ([], b"".join(lines))
    with MetricsLog(path, ResumePoint(4, 4), mark) as log:
        assert log.sync() == mark


HARM = {
    "a line that is no JSON": (b'{"step": 2,', b'{"step": 2;', 7),
    "a deep line": (b'{"step": 2, "loss"', b"[" * 100_000, 7),
    "another number": (b'"step": 2, "loss": 2.5', b'"step": 2, "loss": 7.5', 8),
    "a step beyond the end": (b'{"step": 2, "loss"', b'{"step": 9, "loss"', 7),
    "a step that is none": (b'{"step": 2, "loss"', b'{"step":"2","loss"', 7),
    "a line feed too few": (b'5}\n{"step": 3, "loss"', b'5} {"step": 3, "loss"', 6),
    "a last line that is gone": (b'{"step": 4, "val_loss": 0.5, "accuracy": 0.75}\n', b"", 7),
}


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_file_is_kept_as_a_copy_with_every_readable_row_in_its_place(path, harm, marked):
    lines, mark = written(path)
    old, new, rows = HARM[harm]
    damaged = b"".join(lines).replace(old, new, 1)
    assert damaged != b"".join(lines)
    path.write_bytes(damaged)
    notices, left = gone_on(path, ResumePoint(4, 4), mark if marked else None)
    if not marked and harm in ("another number", "a last line that is gone"):
        return  # found by the mark alone
    assert left.count(b"\n") == rows
    assert [notice for notice in notices if "damaged" in notice and f"{rows} rows are kept" in notice]
    assert (path.parent / "metrics.jsonl.damaged-1").read_bytes() == damaged
    assert set(left.splitlines()) <= set(damaged.splitlines())


def test_each_copy_gets_a_name_of_its_own(path):
    lines, mark = written(path)
    for number in (1, 2):
        path.write_bytes(b"x\n" + b"".join(lines))
        gone_on(path, ResumePoint(4, 4), mark)
        assert (path.parent / f"metrics.jsonl.damaged-{number}").exists()


@pytest.mark.parametrize("marked", [True, False])
def test_a_file_that_is_missing_or_empty_is_said_so(path, marked):
    _, mark = written(path)
    path.write_bytes(b"")
    assert "0 rows are kept" in gone_on(path, ResumePoint(4, 4), mark if marked else None)[0][0]
    path.unlink()
    assert "metrics.jsonl: missing" in gone_on(path, ResumePoint(4, 4), mark if marked else None)[0][0]


def test_a_run_that_starts_over_keeps_the_rows_of_before_as_a_copy(path):
    lines, _ = written(path)
    with MetricsLog(path) as log:
        log.write(ROW)
    assert log.notices == [f"{path}: the rows of an earlier start are kept in metrics.jsonl.old-1"]
    assert (path.parent / "metrics.jsonl.old-1").read_bytes() == b"".join(lines)
    assert path.read_bytes().count(b"\n") == 1


@pytest.mark.parametrize("after", [None, ResumePoint(1, 1)])
def test_a_link_or_a_pipe_in_place_of_the_file_is_refused_and_left_alone(path, after):
    target = path.with_name("mine")
    target.write_text("mine")
    path.symlink_to(target)
    with pytest.raises(FileError, match="needs a regular file, got a symbolic link"):
        MetricsLog(path, after)
    assert target.read_text() == "mine"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(FileError, match="needs a regular file"):
        MetricsLog(path, after)


def test_on_a_full_disk_the_file_ends_with_the_row_before(path, monkeypatch):
    write = os.write

    def half_full(handle, data):
        if len(data) < 20:
            raise OSError(28, "No space left on device")
        return write(handle, data[: len(data) // 2])

    with MetricsLog(path) as log:
        log.write(ROW)
        before = path.read_bytes()
        with monkeypatch.context() as patched:
            patched.setattr("ampkit.run.metrics_log.os.write", half_full)
            with pytest.raises(FileError, match=r"metrics: needs a file that can be written, got .*No space left"):
                log.write(ROW)
        assert path.read_bytes() == before
        log.write(ROW)
        assert log.sync()["bytes"] == 2 * len(before)
