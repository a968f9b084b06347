"""Whether other processes take the CPU cores from a run's threads, by Linux's account of each thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

Account = Mapping[str, tuple[float, float]]

_ENOUGH = 3.0  # seconds that threads were ready to run, after which the share that they waited says something
_MUCH = 0.25  # beside one busy process on each core it is about 0.5


def account() -> Account:
    """Of each thread of this process, the seconds that it ran and those that it waited for a core; {} but on Linux."""
    found = {}
    with suppress(OSError):
        for thread in Path("/proc/self/task").iterdir():
            with suppress(OSError, ValueError):  # a thread that has ended meanwhile, a kernel without the account
                ran, waited, _ = map(int, (thread / "schedstat").read_text().split())
                found[thread.name] = ran * 1e-9, waited * 1e-9
    return found


class Contention:
    """Watches a run that computes with `threads` threads from now on, and says once if they wait much for a core.

    A thread that sleeps, for want of work, does not wait for a core: a small model on an idle machine waits little.
    """

    def __init__(self, threads: int, read: Callable[[], Account] = account):
        self._threads, self._read = threads, read
        self._before = read() if threads > 1 else {}

    def notice(self) -> str:
        """The line to show; "" while too little is known, with one thread, and after it was known once."""
        if not self._before:
            return ""
        now = self._read()
        both = [(now[thread], self._before[thread]) for thread in now.keys() & self._before.keys()]
        ran, waited = (sum(after[i] - before[i] for after, before in both) for i in (0, 1))
        if ran + waited < _ENOUGH:
            return ""
        self._before = {}
        if waited < _MUCH * (ran + waited):
            return ""
        return (
            f"other processes compete for the CPU cores: this run's {self._threads} threads spend "
            f"{waited / (ran + waited):.0%} of their time waiting for one; train.threads=1 may be faster"
        )
