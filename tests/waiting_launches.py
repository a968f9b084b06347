"""Compiled steps on a CPU beside eager ones, bit for bit, with launches of any size that wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ampkit
from ampkit.backends.cpu.native.arrays import available
from ampkit.backends.launch_queue import queue


def let_all_wait(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The body of a fixture: launches of any size wait, and their outputs are NaN until they are computed."""
    if available():
        from ampkit.kernels.cpu.pointwise import chain, elementwise

        monkeypatch.setattr(elementwise, "MIN_WAITING", 1)
        monkeypatch.setattr(chain, "MIN_WAITING", 1)
        monkeypatch.setattr(chain, "PAST_CACHES", 0)
    monkeypatch.setattr(queue, "fills", True)
    yield
    assert not queue.active
    assert not queue.waiting


def bits(result: Any) -> list[bytes]:
    """The bytes of arrays and tensors."""
    found = result if isinstance(result, (tuple, list)) else [result]
    return [
        np.ascontiguousarray(one.numpy(force=True) if isinstance(one, ampkit.Tensor) else one).tobytes()
        for one in found
    ]


def same(step: Callable[..., Any], make: Callable[[], list[Any]], least: int = 1) -> Any:
    """Assert that a compiled step gives the bits of an eager one, with at least so many chains. -> its report."""
    compiled = ampkit.compile(step)
    expected, found = bits(step(*make())), bits(compiled(*make()))
    assert expected == found
    report = compiled.report()
    if available():
        assert sum(report.chains.values()) >= least, str(report)
    return report
