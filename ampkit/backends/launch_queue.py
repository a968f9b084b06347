"""The elementwise launches of a compiled step on the CPU that wait to run together, tile by tile.

While a compiled step runs, a kernel that does nothing but launch elementwise functions may leave them here: their
outputs exist as arrays, whose elements are computed by `flush`. So whatever reads memory, or writes to it, flushes
first: every other kernel before it runs, every access to `Tensor.array` but that of a call of an op, the parts of a
backward pass that add, cast or store gradients by plain array code, and the end of the step.

kernels/cpu/pointwise/chain.py holds the launches and runs them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..base import observe


class FusedChain(NamedTuple):
    """A chain of launches that has run. names: of its functions, in their order. shape, dtypes: of their outputs.

    before, after: bytes that it reads and writes, one by one and together. stored: how many outputs were written.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]
    before: int
    after: int
    stored: int


class Log:
    """What became of the launches of a call.

    alone: why a launch ran by itself. small: how many had too few elements to wait. ends: before which kernels chains
    ran.
    """

    def __init__(self) -> None:
        self.small = 0
        self.chains: list[FusedChain] = []
        self.alone: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()


class LaunchQueue:
    """active: whether a compiled step runs. opened: whether the kernel that runs may leave its launches here.

    waiting: whether there are any. owner: the thread of the step; what others launch runs at once. fills: whether
    outputs are NaN until they are computed, so that a test sees what reads them too early.
    """

    __slots__ = ("active", "add", "cast", "fills", "lock", "log", "opened", "owner", "references", "run", "waiting")

    def __init__(self) -> None:
        self.active = self.opened = self.waiting = self.fills = False
        self.owner = 0
        self.lock = threading.RLock()
        self.log = Log()
        # Set by chain.py. add(name, plan, loops, operands) -> the outputs, or None for a launch that must run
        # at once. cast(array, dtype): the same for a cast. references(array): how many
        # launches refer to it. run(): run all.
        self.add: Callable[..., Any] = lambda *launch: None
        self.cast: Callable[[Any, Any], Any] = lambda array, dtype: None
        self.references: Callable[[Any], int] = lambda array: 0
        self.run: Callable[[], None] = lambda: None

    def before(self, kernel: Any, versions: Sequence[Sequence[int]] = ()) -> None:
        """Before `kernel` runs: let its launches wait, or flush.

        versions: of its inputs. Memory that other code may write to without notice is read at once.
        """
        if self.owner == threading.get_ident():
            self.opened = kernel.launches and not (observe.observers or observe.profilers)
            for version in versions if self.opened else ():
                if len(version) > 1:
                    self.opened = False
                    self.log.alone["reads memory that NumPy code may write to"] += 1
            if self.opened:
                return
        if self.waiting:
            self.log.ends[kernel.name] += 1
            self.flush()

    def after(self) -> None:
        """After it."""
        if self.owner == threading.get_ident():
            self.opened = False

    def flush(self) -> None:
        """Compute the outputs of all launches that wait."""
        with self.lock:
            if self.waiting:
                self.run()

    def run_step(self, step: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Log | None]:
        """Call `step`, whose launches may wait. -> its result, and what became of them.

        Within another such call, or while one runs in another thread, it is a plain call.
        """
        with self.lock:
            if self.active:
                mine = False
            else:
                mine = self.active = True
                self.owner, self.log = threading.get_ident(), Log()
        if not mine:
            return step(*args, **kwargs), None
        log = self.log
        try:
            out = step(*args, **kwargs)
        finally:
            with self.lock:
                try:
                    self.flush()
                finally:
                    self.active = self.opened = False
                    self.owner = 0
        return out, log


queue = LaunchQueue()
