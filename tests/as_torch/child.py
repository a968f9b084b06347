"""A process in which `torch` means ampkit: this one stays as it is, and many tests share the time of a start."""

from __future__ import annotations

import json
import subprocess
import sys

LOOP = """
import contextlib, io, json, sys, traceback
import ampkit.as_torch
for line in sys.stdin:
    printed, failed = io.StringIO(), ""
    with contextlib.redirect_stdout(printed):
        try:
            exec(json.loads(line), {"__name__": "__main__"})
        except BaseException:
            failed = traceback.format_exc()
    print(json.dumps([printed.getvalue(), failed]), flush=True)
"""


class Child:
    """Runs programs one after the other, each with names of its own."""

    def __init__(self):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, "-c", LOOP], stdin=pipe, stdout=pipe, text=True)

    def __call__(self, code):
        """The lines that a program prints. Fails the test with the traceback of one that raises."""
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()
        printed, failed = json.loads(self.process.stdout.readline())
        assert not failed, failed
        return printed.splitlines()

    def end(self):
        self.process.communicate()
