"""Signals wait while oneDNN computes: some of its products have no stack on which a handler could run."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ampkit.backends.cpu.native.arrays import available
from ampkit.backends.cpu.onednn import primitive
from ampkit.backends.cpu.onednn.library import library, unavailable_reason
from ampkit.backends.cpu.onednn.signals import without_signals

pytestmark = [pytest.mark.no_gpu, pytest.mark.skipif(library() is None, reason=unavailable_reason())]

_STOPS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1}
# Products of float32 by the kernels for AVX2, on threads that another primitive has started, under a rain of signals.
_PRODUCTS = """
import signal
from pathlib import Path
import numpy as np
from ampkit.backends.cpu import threads
from ampkit.backends.cpu.onednn.gemm import gemm
from ampkit.backends.cpu.onednn.primitive import Layout, packing_reorder

def masks():
    tasks = [(int(task.name), (task / "status").read_text()) for task in Path("/proc/self/task").iterdir()]
    return {task: int(text.split("SigBlk:")[1].split()[0], 16) for task, text in tasks}

threads.set_num_threads(2)
a, b = np.ones((512, 512), np.float32), np.ones((512, 512), np.float32).T
packing_reorder(Layout.of(a), Layout.of(b))(a, b)
came = []
signal.signal(signal.SIGALRM, lambda *_: came.append(1))
signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)
while len(came) < 40:
    for _ in range(10):
        assert (gemm(a[:64], b, a.dtype) == 512).all()
signal.setitimer(signal.ITIMER_REAL, 0)
main, *others = [mask for _, mask in sorted(masks().items())]
stop = 1 << signal.SIGTERM - 1
print(main & stop, len(others), all(mask & stop for mask in others))
"""


def blocked():
    """The signals that this thread has blocked."""
    return signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_products_for_avx2_compute_under_signals_and_corrupt_nothing():
    settings = {"ONEDNN_MAX_CPU_ISA": "AVX2", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
    run = subprocess.run([sys.executable, "-c", _PRODUCTS], env=os.environ | settings, capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "0 1 True\n", "")


@pytest.mark.skipif(not available(), reason="without compiled kernels")
def test_a_primitive_that_moves_the_stack_runs_without_signals_and_so_do_those_after_it():
    seen = []

    @ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 2, ctypes.c_int, ctypes.c_void_p)
    def execute(*_):
        seen.append(blocked())
        return 7

    def run(moves_stack):
        at = ctypes.cast(execute, ctypes.c_void_p)
        execution = primitive._Execution(None, at, None, None, None, 0, None, (ctypes.c_void_p * 5)(), moves_stack)
        assert primitive._execute_primitive(ctypes.addressof(execution), *[None] * 5) == 7
        seen.append(blocked())

    thread = threading.Thread(target=lambda: [run(each) for each in (False, True, False)])  # that has run none so far
    thread.start()
    thread.join()
    before, none, *rest = seen
    assert before == none == rest[1] == rest[3]
    assert not before & _STOPS
    for during in (rest[0], rest[2]):
        assert during >= _STOPS
        assert signal.SIGSEGV not in during


def test_without_compiled_kernels_signals_wait_too_and_come_after_an_error():
    before, seen = blocked(), []

    def call(value):
        seen.append(blocked())
        return 1 // value

    assert without_signals(call, 1) == 1
    with pytest.raises(ZeroDivisionError):
        without_signals(call, 0)
    assert blocked() == before
    assert all(during >= _STOPS and signal.SIGSEGV not in during for during in seen)


def test_a_signal_that_comes_meanwhile_is_handled_afterwards():
    handled = []
    previous = signal.signal(signal.SIGUSR1, lambda *_: handled.append("signal"))
    try:
        without_signals(lambda: signal.raise_signal(signal.SIGUSR1) or handled.append("product") or 0)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert handled == ["product", "signal"]
