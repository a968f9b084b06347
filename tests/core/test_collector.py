"""Contexts that the garbage collector ends, in the middle of other work."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.cpu
SCRIPT = """
import gc, sys, time
import ampkit
from ampkit import nn
kind = {
    "autocast": lambda: ampkit.autocast(dtype=ampkit.bfloat16), "no_grad": ampkit.no_grad,
    "enable_grad": ampkit.enable_grad, "inference_mode": ampkit.inference_mode,
    "reference_only": ampkit.reference_only,
    "saved_tensors_hooks": lambda: ampkit.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),
}[sys.argv[1]]
sys.unraisablehook = lambda *error: None

class Batches:  # a cycle, which the collector alone ends
    def __init__(self):
        self.items = self.read()

    def read(self):
        with kind():
            yield 1

model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), ampkit.ones(4, 4)
gc.set_threshold(1)
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    next(Batches().items)
    with ampkit.no_grad(), ampkit.autocast(dtype=ampkit.float16):
        model(x)
print("survived")
"""
KINDS = ("autocast", "no_grad", "saved_tensors_hooks")


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_survives_generators_that_the_collector_ends_inside_of_a_context(kind):
    command = [sys.executable, "-c", SCRIPT, kind, "0.5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "survived\n"), done.stderr[-2000:]
