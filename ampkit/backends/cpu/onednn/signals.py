"""Signals wait while oneDNN computes: kernels/cpu/onednn.cpp says why, and does the same where it is compiled."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable
from functools import cache
from typing import Any

_BYTES = 128  # of sigset_t, on Linux
_RAISED = ("SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP")  # by instructions of the thread itself


@cache
def _library() -> Any:
    return ctypes.PyDLL(None)  # with the GIL, which takes longer to release than a call does


@cache
def _waiting() -> Any:
    signals, lib = ctypes.create_string_buffer(_BYTES), _library()
    lib.sigfillset(signals)
    for name in _RAISED:
        lib.sigdelset(signals, getattr(signal, name))
    return signals


def without_signals(call: Callable[..., int], *arguments: Any) -> int:
    """call(*arguments), with the signals of this thread, and of threads that it starts, blocked until it returns."""
    mask, before = _library().pthread_sigmask, ctypes.create_string_buffer(_BYTES)
    mask(signal.SIG_BLOCK, None, before)
    try:  # around the call that blocks, too: the handler of a signal that came before may raise right after it
        mask(signal.SIG_BLOCK, _waiting(), None)
        return call(*arguments)
    finally:
        mask(signal.SIG_SETMASK, before, None)
