"""Fixtures of the tests of backends and of kernels."""

from __future__ import annotations

import pytest
from cuda_on_cpu import emulator, installed

from ampkit.backends.cpu import threads
from ampkit.backends.cpu.onednn.library import isa
from ampkit.base.dtypes import bfloat16, float16


def computes(dtype):
    """Whether oneDNN has fast code in `dtype` on this CPU."""
    needs = {bfloat16: ("AVX-512", "AMX"), float16: ("float16",)}.get(dtype, ("A",))
    return any(name in isa() for name in needs)


@pytest.fixture
def computed(request):
    """Skip a test if oneDNN has no fast code for its parameter `dtype` (bfloat16 if it has none) on this CPU."""
    callspec = getattr(request.node, "callspec", None)
    dtype = callspec.params.get("dtype", bfloat16) if callspec else bfloat16
    if not computes(dtype):
        pytest.skip(f"oneDNN has no fast code in {dtype} on {isa()}")


@pytest.fixture
def two_threads():
    """Compute with two threads, however many the process has: a worker of pytest-xdist may have one."""
    before = threads.get_num_threads()
    threads.set_num_threads(2)
    yield
    threads.set_num_threads(before)


@pytest.fixture
def device():
    """An emulated GPU as the backend "cuda"."""
    with installed() as backend:
        yield backend


@pytest.fixture
def launches(request, monkeypatch):
    """The names of the launched kernels that are listed in the test file's OURS, in order."""
    found, bound = [], emulator.Function.bound

    def run(self, *args, **options):
        if self.name in request.module.OURS:
            found.append(self.name.partition("<")[0])
        return bound(self, *args, **options)

    monkeypatch.setattr(emulator.Function, "bound", run)
    return found
