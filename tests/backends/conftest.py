"""What the tests of the CPU's kernels share."""

from __future__ import annotations

import pytest
from cuda_on_cpu import emulator, installed

from ampkit.backends.cpu.onednn.eltwise import computes
from ampkit.backends.cpu.onednn.library import isa
from ampkit.base.dtypes import bfloat16


@pytest.fixture
def computed(request):
    """Skips a test where oneDNN has no fast code in its `dtype`; in bfloat16 if it is about no other."""
    callspec = getattr(request.node, "callspec", None)
    dtype = callspec.params.get("dtype", bfloat16) if callspec else bfloat16
    if not computes(dtype):
        pytest.skip(f"oneDNN has no fast code in {dtype} on {isa()}")


@pytest.fixture
def device():
    """The emulated GPU, as the backend "cuda"."""
    with installed() as backend:
        yield backend


@pytest.fixture
def launches(request, monkeypatch):
    """The names of the kernels that ran, of those in the test file's OURS."""
    found, bound = [], emulator.Function.bound

    def run(self, *args, **options):
        if self.name in request.module.OURS:
            found.append(self.name.partition("<")[0])
        return bound(self, *args, **options)

    monkeypatch.setattr(emulator.Function, "bound", run)
    return found
