"""The command `ampkit`: what it shows before the library is imported."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# An import of ampkit that Ctrl-C interrupts.
INTERRUPTED = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "ampkit":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Finder())
"""
RUN = "import ampkit_cli; sys.argv[1:] = ['keys', 'lr']; sys.exit(ampkit_cli.main())"


def command(before: str, **options) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", before + RUN], cwd=ROOT, stderr=subprocess.PIPE, timeout=60, check=False, **options
    )


def on_a_terminal(before: str) -> tuple[int, bytes, bytes]:
    """Status, stderr and what the terminal received."""
    outer, inner = pty.openpty()
    done = command(before, stdout=inner)
    os.close(inner)
    shown = os.read(outer, 10_000)
    os.close(outer)
    return done.returncode, done.stderr, shown


def test_a_terminal_shows_that_the_library_loads_before_it_is_imported():
    status, errors, shown = on_a_terminal(INTERRUPTED)
    assert shown.startswith(b"loading ampkit ...\r")
    assert (status, errors) == (130, b"ampkit: interrupted\n")


@pytest.mark.parametrize("before", ["import sys\n", INTERRUPTED])
def test_the_line_is_erased_once_the_library_is_loaded(before):
    shown = on_a_terminal(before)[2]
    assert shown.removeprefix(b"loading ampkit ...\r").startswith(b" " * 18 + b"\r")


def test_a_pipe_gets_the_output_alone():
    done = command("import sys\n", stdout=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"optimizer.lr")
