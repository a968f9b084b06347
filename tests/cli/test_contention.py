"""Whether `ampkit train` says that other processes take the cores from its threads."""

from __future__ import annotations

import sys
import threading

import pytest

from ampkit import cli
from ampkit.cli import train
from ampkit.cli.contention import Contention, account

pytestmark = pytest.mark.cpu


def notices(threads, *accounts):
    """What is said after each of the accounts but the first."""
    given = iter([dict.fromkeys(accounts[0], (0.0, 0.0)), *accounts])
    found = Contention(threads, lambda: next(given))
    return [found.notice() for _ in accounts]


def test_threads_that_wait_much_for_a_core_are_told_of_once_and_with_the_cure():
    early, line, later = notices(2, {"1": (1.0, 1.5)}, {"1": (2.0, 1.0), "2": (0.5, 0.5)}, {"1": (9.0, 9.0)})
    assert early == later == ""
    assert line == (
        "other processes compete for the CPU cores: this run's 2 threads spend 33% of their time waiting for one; "
        "train.threads=1 may be faster"
    )


def test_nothing_is_said_of_threads_that_sleep_of_one_thread_and_where_the_system_keeps_no_account():
    assert notices(2, {"1": (10.0, 0.5), "2": (0.1, 0.0)}) == [""]  # a second thread without work
    assert notices(1, {"1": (5.0, 5.0)}) == [""]
    assert notices(2, {}) == [""]


def test_a_thread_that_has_ended_is_left_out():
    given = iter([{"1": (0.0, 0.0), "2": (5.0, 5.0)}, {"1": (4.0, 0.1), "3": (1.0, 9.0)}])
    assert Contention(2, lambda: next(given)).notice() == ""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux keeps the account")
def test_the_account_has_the_time_that_threads_ran():
    before = account()[str(threading.get_native_id())]
    sum(range(1_000_000))
    ran, waited = account()[str(threading.get_native_id())]
    assert ran > before[0] > 0 and waited >= before[1] >= 0


def test_training_shows_the_line_and_keeps_it_out_of_the_metrics(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train, "Contention", lambda threads: type("Told", (), {"notice": lambda self: "told"})())
    assert cli.main(["train", "digits_mlp", "train.epochs=", "train.steps=1", "--run-dir", str(tmp_path)]) == 0
    assert "told" in capsys.readouterr().out.splitlines()
    assert "told" not in (tmp_path / "metrics.jsonl").read_text()
