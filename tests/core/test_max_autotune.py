"""mode="max-autotune" chooses kernels of products by time once, and a run goes on with the choice bit for bit."""

from __future__ import annotations

import errno
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, optim
from ampkit.backends.cpu.onednn.library import library
from ampkit.base import atomic_file
from ampkit.base.errors import ArgumentError, FileError
from ampkit.core.dispatch import tuning

pytestmark = [
    pytest.mark.no_gpu,
    pytest.mark.skipif(library() is None, reason="without oneDNN products have one kernel"),
]


class Run:
    """A training of a small convolutional model: its step, and the bits of what it has."""

    def __init__(self, choices: Path | None = None, mode: str | None = "max-autotune"):
        ampkit.manual_seed(0)
        self.model = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 64), nn.Tanh(), nn.Linear(64, 10)
        )
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        random = np.random.default_rng(0)
        self.x = ampkit.tensor(random.normal(size=(16, 3, 8, 8)).astype(np.float32))
        self.y = ampkit.tensor(random.integers(0, 10, 16))
        self.step = ampkit.compile(self.eager, mode=mode, choices=choices)

    def eager(self) -> Any:
        loss = ops.cross_entropy(self.model(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def bits(self) -> list[bytes]:
        return [p.numpy(force=True).tobytes() for p in self.model.parameters()]


def choose(monkeypatch: pytest.MonkeyPatch, last: bool) -> None:
    """Let the choice by time be the reference, the last candidate, or the usual kernel."""
    monkeypatch.setattr(tuning, "fastest", lambda kernels, usual, run: kernels[-1] if last else usual)


def steps(run: Run, count: int) -> list[bytes]:
    for _ in range(count):
        run.step()
    return run.bits()


def test_a_run_goes_on_with_the_stored_choice_though_timing_would_choose_otherwise(tmp_path, monkeypatch):
    path = tmp_path / "choices.json"
    choose(monkeypatch, last=True)
    whole = steps(Run(path), 4)
    first = Run(other := tmp_path / "resumed.json")
    steps(first, 2)
    held = {"model": first.model.state_dict(), "optimizer": first.optimizer.state_dict()}

    choose(monkeypatch, last=False)
    second = Run(other)
    second.model.load_state_dict(held["model"])
    second.optimizer.load_state_dict(held["optimizer"])
    assert steps(second, 2) == whole
    assert steps(Run(), 4) != whole  # the kernels differ in bits
    names = set(second.step.report().kernels.values())
    assert names == set(json.loads(path.read_text())["kernels"].values())
    assert {"linear", "conv2d"} <= names
    assert "kernel chosen by time: linear (1)" in str(second.step.report())


def test_kernels_are_timed_once_and_each_is_run(monkeypatch):
    timed: list[list[str]] = []
    fastest = tuning.fastest
    monkeypatch.setattr(
        tuning, "fastest", lambda kernels, *how: timed.append([k.name for k in kernels]) or fastest(kernels, *how)
    )
    run = Run()
    steps(run, 1)
    first = len(timed)
    steps(run, 2)
    forwards = [names for names in timed if names[-1] == "linear"]
    assert forwards == [["linear_cpu", "linear"]]  # the second product is too small for others
    assert 0 < first == len(timed) <= len(run.step.choices.kernels)


def test_the_usual_kernel_stays_unless_another_is_clearly_faster(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(tuning.time, "perf_counter", lambda: clock[0])

    def run(seconds: float) -> None:
        clock[0] += seconds

    assert tuning.fastest([1.0, 0.97], 1.0, run) == 1.0
    assert tuning.fastest([1.0, 0.9], 1.0, run) == 0.9
    assert tuning.fastest([2.0, 1.0, 50.0, 0.5], 2.0, run) == 0.5


def test_gradients_have_the_values_of_other_modes(monkeypatch):
    choose(monkeypatch, last=True)
    found, wanted = Run(), Run(mode=None)
    steps(found, 3), steps(wanted, 3)
    for a, b in zip(found.model.parameters(), wanted.model.parameters(), strict=True):
        np.testing.assert_allclose(a.numpy(force=True), b.numpy(force=True), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("change", ["version", "content", "cut", "list", "kernel"])
def test_a_file_that_cannot_be_used_leaves_the_usual_kernels_and_says_so_once(change, tmp_path, monkeypatch):
    path = tmp_path / "choices.json"
    usual = steps(Run(mode=None), 2)
    choose(monkeypatch, last=True)
    steps(Run(path), 1)
    held = json.loads(path.read_text())
    if change == "version":
        held["about"]["ampkit"] = "0.0.1"
    held["kernels"] = {key: "linear" if change == "content" else name for key, name in held["kernels"].items()}
    if change == "kernel":
        held["kernels"] = dict.fromkeys(held["kernels"], "none_such")
    if change in ("version", "kernel"):
        held["digest"] = tuning._digest(held["about"], held["kernels"])
    text = json.dumps(held)
    path.write_text({"cut": text[: len(text) // 2], "list": "[]"}.get(change, text))
    before = path.read_bytes()
    said = {
        "version": "is of ampkit 0.0.1, this is ", "content": "are not those that were written",
        "cut": "broke off", "list": "is no file of choices", "kernel": "names a kernel none_such that does not fit",
    }[change]  # fmt: skip
    with pytest.warns(RuntimeWarning, match=f"kernels are chosen as in other modes: .*{said}") as told:
        assert steps(Run(path), 2) == usual
    assert len(told) == 1
    assert path.read_bytes() == before


def test_a_full_disk_keeps_the_choice_for_the_process_and_says_so_once(tmp_path, monkeypatch):
    def full(where: str, path: Path, data: bytes) -> None:
        raise FileError(where, "a file that can be written", f"{path}: No space left on device") from OSError(
            errno.ENOSPC, "No space left on device"
        )

    choose(monkeypatch, last=True)
    whole = steps(Run(), 2)
    monkeypatch.setattr(atomic_file, "write", full)
    with pytest.warns(RuntimeWarning, match="of this process alone: .*No space left on device") as told:
        assert steps(Run(tmp_path / "choices.json"), 2) == whole
    assert len(told) == 1


def test_other_threads_run_the_usual_kernels():
    choices = tuning.Choices(None, {})
    with choices:
        with choices:  # a step within itself
            pass
        assert tuning.in_force() is choices
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(tuning.in_force()))
        thread.start(), thread.join()
        assert found == [None]
    assert not tuning.running
    assert not choices.owners


def test_choices_belong_to_the_mode_that_makes_them(tmp_path):
    with pytest.raises(ArgumentError, match="mode='max-autotune' where choices names a file, got mode=None"):
        ampkit.compile(lambda: None, choices=tmp_path / "choices.json")
