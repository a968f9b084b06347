"""What the process frees, it keeps: told to the C library, seen in the pages that the system has to bring."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy as np
from ampkit.backends.cpu.malloc import keep_freed

told = keep_freed() if sys.argv[1] == "keep" else False
def faults(rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        held = [np.ones(1 << 18, np.float32) for _ in range(8)]  # 8 MiB in arrays of 1 MiB
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults(3)
print(int(told), faults(20))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc is told")
def test_arrays_are_made_again_in_the_memory_of_those_that_were_freed():
    def run(how):
        done = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
        return [int(word) for word in done.stdout.split()]

    told, kept = run("keep")
    _, given_back = run("leave")
    if not told:
        pytest.skip("this C library has no mallopt that takes the thresholds")
    assert kept < 100
    assert given_back > 10 * max(kept, 1)
