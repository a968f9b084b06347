"""The fuzzer's short form: the same calls every time, in this process; and what it takes for a finding."""

from __future__ import annotations

import signal
import warnings

import pytest

from fuzz import api

pytestmark = pytest.mark.cpu

CALLS, SEED = 1500, 1


@pytest.fixture(autouse=True)
def limited():
    before = signal.signal(signal.SIGALRM, api.overdue)
    yield
    signal.signal(signal.SIGALRM, before)


def test_no_call_of_the_public_api_ends_in_an_error_that_says_nothing():
    found = [api.judged(api.text_of(SEED, number, api.targets())) for number in range(CALLS)]
    assert [f"{f['kind']} {f['error']} {f['where']}: {f['call']}" for f in found if f is not None] == []


def test_the_same_seed_gives_the_same_calls():
    texts = [api.text_of(3, number, api.targets()) for number in range(20)]
    assert texts == [api.text_of(3, number, api.targets()) for number in range(20)]
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
def test_a_warning_an_error_of_pythons_and_a_call_without_end_are_findings(kind, monkeypatch):
    monkeypatch.setattr(api, "LIMIT", 0.05)
    monkeypatch.setitem(api.SPACE, "bad", bad(kind))
    assert api.judged("bad()")["kind"] == kind


def test_what_says_what_was_wrong_is_none():
    assert api.judged("ops.relu(t(3, grad=True))") is None
    assert api.judged("ops.relu('no')") is None
    assert api.judged("ops.relu()") is None
    assert api.judged("ops.zeros(2**62, 2**62)") is None
