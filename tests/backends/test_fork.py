"""A forked child has one thread and none of its parent's: it must not wait for them, nor for locks that they held."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable

import numpy as np
import pytest

from ampkit import Tensor
from ampkit.backends.cpu import threads
from ampkit.backends.cpu.onednn import primitive
from ampkit.backends.cpu.onednn.library import library, unavailable_reason
from ampkit.base.dtypes import float32
from ampkit.data.download import _locked
from ampkit.data.parquet import Columns

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system"),
]
needs_onednn = pytest.mark.skipif(library() is None, reason=unavailable_reason())


def ends_well(child: Callable[[], bool], seconds: float = 10) -> bool:
    """Whether a forked child that runs `child` ends within `seconds`, and with True."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python's own about forks beside threads
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if child() else 1
        finally:
            os._exit(status)
    late = time.monotonic() + seconds
    while time.monotonic() < late:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


@needs_onednn
def test_a_forked_child_computes_with_two_threads_after_its_parent_did(two_threads):
    values = Tensor(np.ones((256, 256), np.float32))
    expected = (values @ values).tolist()
    for _ in range(2):  # the parent's threads work again after a fork
        assert ends_well(lambda: (values @ values).tolist() == expected and threads.get_num_threads() == 2)
        assert (values @ values).tolist() == expected


@needs_onednn
def test_a_lock_that_another_thread_holds_is_free_in_a_forked_child():
    def describe() -> bool:
        return primitive.Layout.dense((3, 5), float32).interned_id >= 0

    release = threading.Event()
    held = threading.Event()

    def hold() -> None:
        with primitive._intern_lock:
            held.set()
            release.wait(5)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(5)
    threading.Timer(0.05, release.set).start()
    try:
        assert ends_well(describe)
    finally:
        release.set()
        holder.join()


def test_the_lock_on_a_download_ends_with_it_though_a_child_was_forked_meanwhile(tmp_path):
    part = tmp_path / "x.part"
    stop, stopped = os.pipe()
    with part.open("ab") as file, _locked(file, part), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        if (pid := os.fork()) == 0:
            os.close(stopped)
            os.read(stop, 1)
            os._exit(0)
    try:
        with part.open("ab") as file, _locked(file, part):
            pass
    finally:
        os.close(stopped)
        os.close(stop)
        os.waitpid(pid, 0)


def test_columns_that_another_thread_reads_at_a_fork_can_be_read_in_the_child(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"x": [1.0, 2.0]}), tmp_path / "x.parquet")
    columns = Columns(tmp_path / "x.parquet", ["x"])
    assert columns[1][0].item() == 2
    with columns._lock:
        assert ends_well(lambda: columns[0][0].item() == 1)
