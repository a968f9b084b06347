"""The view of a run that trains: live on a terminal, plain lines elsewhere."""

import io
import math
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from ampkit.cli.progress import ProgressMeter, sparkline, status
from ampkit.run.loop import EvalRow, StepRow

MLP = str(Path(__file__).parents[2] / "recipes" / "digits_mlp.toml")


def row(step, loss=0.5, scale=1024.0, skipped=1, norm=2.0):
    return StepRow(step, loss, 0.1, scale, skipped, norm, 0.01 * step, 3_000_000)


def meter(terminal, width=100, **options):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None, _environ={})
    return ProgressMeter(console, "float16", 10, 64, "samples", **options)


def text(found):
    return found.console.file.getvalue()


def test_a_sparkline_scales_from_the_smallest_to_the_largest_value():
    assert sparkline([0.0, 1.0, 0.5, math.nan, 0.0]) == "▁█▅ ▁"
    assert sparkline([3.0, 3.0]) == "▁▁"
    assert sparkline([]) == ""


def test_a_sparkline_is_ascii_where_the_encoding_has_no_blocks():
    assert sparkline([0.0, 1.0], "ascii") == "_^"


def test_elsewhere_than_on_a_terminal_each_row_is_a_plain_line():
    found = meter(False)
    with found:
        found.show(row(1))
        found.show(EvalRow(2, 0.25, 0.5))
        found.notice("stopping")
    assert text(found).split("\n")[:2] == [
        "float16  step 1/10  loss 0.5000  6,400 samples/s  scale 1024  skipped 1",
        "float16  step 2/10  val loss 0.2500  accuracy 50.00%",
    ]
    assert not text(found).split("\n", 2)[2].strip()  # Rich before 14.3 ends with an empty line


def test_the_bar_moves_with_the_steps_done_between_two_rows():
    found = meter(True, done=lambda: 7)
    with found:
        found.show(row(1))
        found.notice("stopping after this step")
    assert "7/10" in text(found)
    assert "stopping after this step" in text(found)


@pytest.mark.parametrize("width", [40, 100])
def test_a_terminal_shows_loss_scale_norm_and_memory_in_lines_that_fit(width):
    found = meter(True, width)
    with found:
        found.show(row(1))
        found.show(row(2, loss=0.25))
        found.notice("")
    lines = [line.split("\r")[-1] for line in text(found).splitlines()]
    assert any("█▁ loss 0.2500" in line for line in lines)
    assert any("scale 1024  skipped 1  grad norm 2" in line for line in lines)
    assert any("memory 3 MB" in line for line in lines)


def test_an_evaluation_stays_above_the_bar():
    found = meter(True)
    with found:
        found.show(EvalRow(2, 0.25, 0.5))
    assert "float16  step 2/10  val loss 0.2500  accuracy 50.00%\n" in text(found).replace("\r", "")


def test_the_status_of_a_start_is_shown_on_a_terminal_alone():
    for terminal in (False, True):
        console = Console(file=io.StringIO(), force_terminal=terminal, color_system=None, _environ={})
        with status(console, "building [mlp]"):
            pass
        assert ("building [mlp]" in console.file.getvalue()) == terminal


def test_ctrl_c_on_a_terminal_is_answered_before_the_run_ends(tmp_path):
    command = [sys.executable, "-m", "ampkit", "train", MLP, "train.epochs=1000000", "--run-dir", str(tmp_path / "run")]
    terminal, inner = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner, env=environment)
    shown, asked, deadline = b"", False, time.monotonic() + 60
    try:
        while b"stopping after this step" not in shown and time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.2)[0]:
                shown += os.read(terminal, 1 << 16)
            if b" loss " in shown and not asked:
                process.send_signal(signal.SIGINT)
                asked = True
        assert b"stopping after this step, with a checkpoint" in shown
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
        os.close(inner)
