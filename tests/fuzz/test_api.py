"""A short, deterministic run of the fuzzer in this process, and what counts as a finding."""

from __future__ import annotations

import resource
import signal
import warnings
from pathlib import Path

import pytest

from fuzz import api

pytestmark = pytest.mark.cpu

CALLS, SEED = 1500, 1


@pytest.fixture(autouse=True)
def limited():
    before, memory = signal.signal(signal.SIGPROF, api.on_alarm), resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + api.MEMORY, memory[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, memory)
    signal.signal(signal.SIGPROF, before)


def _address_space():
    # of this process, in bytes
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def test_every_call_of_the_public_api_returns_or_raises_a_clear_error():
    found = [api.check(api.source_of(SEED, number, api.targets())) for number in range(CALLS)]
    faults = [f for f in found if f is not None and f["kind"] != api.REFUSED]
    assert [f"{f['kind']} {f['error']} {f['where']}: {f['call']}" for f in faults] == []


def test_the_same_seed_gives_the_same_calls():
    texts = [api.source_of(3, number, api.targets()) for number in range(20)]
    assert texts == [api.source_of(3, number, api.targets()) for number in range(20)]
    assert len(set(texts)) == 20


def bad(kind):
    def call():
        if kind == "warning":
            warnings.warn("x", RuntimeWarning, stacklevel=1)
        elif kind == "raw":
            raise ValueError("x")
        while kind == "hang":
            pass

    return call


@pytest.mark.parametrize("kind", ["warning", "raw", "hang"])
def test_warnings_raw_errors_and_hangs_are_findings(kind, monkeypatch):
    if kind == "hang":  # a busy machine may need longer for the others
        monkeypatch.setattr(api, "LIMIT", 0.05)
    monkeypatch.setitem(api.SPACE, "bad", bad(kind))
    assert api.check("bad()")["kind"] == kind


def test_results_and_clear_errors_are_no_findings():
    assert api.check("ops.relu(t(3, grad=True))") is None
    for refused in ("ops.relu('no')", "ops.relu()", "ops.zeros(2**62, 2**62)"):
        assert api.check(refused) == {"kind": api.REFUSED}
