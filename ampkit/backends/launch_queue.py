"""The launches of a compiled step that wait to run together: on a CPU while it runs, on a GPU while it is recorded.

A kernel that only launches elementwise functions, on a GPU also reductions, norms, losses and `cat`, may leave them
here: their outputs exist as arrays, whose elements are computed when they are needed. So whatever reads memory, or
writes to it, says so first: every other kernel before it runs, every access to `Tensor.array` but that of a call of an
op, the parts of a backward pass that add, cast or store gradients by plain array code, and the end of the step.

kernels/cpu/pointwise/chain.py holds the launches of a CPU, which run tile by tile, all of them whatever is needed;
backends/cuda/launch/chains.py those of a GPU, of which what is needed runs, as one generated kernel per chain.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

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


_PLAIN = (int, float, str, bytes, type(None), np.dtype, type, slice, np.random.Generator)


def arrays_in(values: Any) -> list[Any] | None:
    """The arrays among arguments of a kernel, those in lists and tuples too; None where there is something else."""
    found: list[Any] = []
    for value in values:
        if hasattr(value, "strides"):
            found.append(value)
        elif isinstance(value, (tuple, list, dict)):
            inner = arrays_in(value.values() if isinstance(value, dict) else value)
            if inner is None:
                return None
            found += inner
        elif not isinstance(value, _PLAIN):
            return None
    return found


class Chains:
    """What holds the launches of a backend; this one holds none."""

    backend = ""
    observers = 0  # how many of those that are notified read no elements
    any_thread = True  # whether other threads than the step's may run what waits
    looks_ahead = False  # whether a backward pass visits nodes early whose launches may wait

    def add(self, *launch: Any) -> Any:
        """Let a launch wait. -> its outputs, or None for one that must run at once; what it reads is computed then."""

    def cast(self, array: Any, dtype: Any) -> Any:
        """The same for a cast."""

    def copy(self, array: Any) -> Any:
        """The same for a copy, in the memory order of `array`."""

    def holds(self, array: Any) -> bool:
        """Whether `array` is the output of a launch that waits, so that a later one may take its place."""
        return False

    def add_rows(self, *reduction: Any) -> Any:
        """The same for a reduction of rows."""

    def add_columns(self, x: Any, call: Any) -> Any:
        """The same for a reduction of columns of x, if that waits."""

    def add_cat(self, arrays: Sequence[Any], axis: int, join: Any) -> Any:
        """The same for a concatenation, which `join(out, arrays, axis)` stores; an int is so many zeros."""

    def add_template(self, call: Any) -> bool:
        """Let a norm or a softmax wait, whose outputs are allocated. -> whether it does."""
        return False

    def add_sequence(self, kernels: Any, reads: Sequence[Any], outs: Sequence[Any]) -> bool:
        """Let several kernels wait if what the first one loads does. -> whether they do."""
        return False

    def add_following(self, name: str, call: Any, reads: Sequence[Any], outs: Sequence[Any]) -> bool:
        """Let `call(reads, outs)` wait for the results `reads` of what waits. -> whether it does."""
        return False

    def add_copy(self, source: Any, target: Any) -> bool:
        """Let a copy of `source`, which waits, wait, of its dtype, in other memory. -> whether it does."""
        return False

    def views_wait(self, array: Any) -> bool:
        """Whether views of an array may be made while it waits."""
        return False

    def references(self, array: Any) -> int:
        """How many launches refer to `array`."""
        return 0

    def run(self, reads: Sequence[Any] | None = None, writes: Sequence[Any] = ()) -> None:
        """Compute what the arrays `reads` need, None for all; and whatever reads or makes the memory of `writes`."""

    def abandon(self) -> None:
        """The step has raised an error."""


class LaunchQueue:
    """active: whether a compiled step runs. opened: whether the kernel that runs may leave its launches here.

    waiting: whether there are any. owner: the thread of the step; what others launch runs at once. cpu: the chains of
    a CPU. chains: those of a recording on a GPU, None for the CPU's. fills: whether outputs are NaN until they are
    computed, so that a test sees what reads them too early.
    """

    __slots__ = ("active", "chains", "cpu", "fills", "lock", "log", "opened", "owner", "waiting")

    def __init__(self) -> None:
        self.active = self.opened = self.waiting = self.fills = False
        self.owner = 0
        self.lock = threading.RLock()
        self.log = Log()
        self.cpu = Chains()  # until kernels/cpu/pointwise/chain.py is loaded
        self.chains: Chains | None = None

    @property
    def held(self) -> Chains:
        """The chains of the step that runs."""
        return self.chains or self.cpu

    def opens(self, backend: str) -> bool:
        """Whether a launch of this backend may wait."""
        return self.opened and self.held.backend == backend

    def before(
        self,
        kernel: Any,
        versions: Sequence[Sequence[int]] = (),
        reads: Sequence[Any] | None = None,
        writes: Sequence[Any] = (),
    ) -> None:
        """Before `kernel` runs: let its launches wait, or compute what it reads.

        versions: of its inputs. Memory that other code may write to without notice is read at once. reads: its
        arguments, if it reads nothing else; it writes to none of them. writes: arrays that it writes to, besides new
        ones.
        """
        if self.owner == threading.get_ident():
            watched = len(observe.observers) > self.held.observers or observe.profilers
            self.opened = kernel.launches and not watched
            for version in versions if self.opened else ():
                if len(version) > 1:
                    self.opened = False
                    self.log.alone["reads memory that NumPy code may write to"] += 1
            if self.opened:
                return
            if watched:
                reads = None
            elif kernel.views is not None and reads and self.held.views_wait(reads[0]) and kernel.views(reads[0]):
                return
        if self.waiting:
            self.log.ends[kernel.name] += 1
            self.flush(reads, writes)

    def after(self) -> None:
        """After it."""
        if self.owner == threading.get_ident():
            self.opened = False

    def flush(self, reads: Sequence[Any] | None = None, writes: Sequence[Any] = ()) -> None:
        """Compute what waits: all of it, or at least what the arrays `reads` need and what reads or makes `writes`."""
        held = self.held
        if not held.any_thread and self.owner != threading.get_ident():
            return
        with self.lock:
            if self.waiting:
                held.run(reads, writes)

    def run_step(
        self, step: Callable[..., Any], args: Any, kwargs: Any, chains: Chains | None = None
    ) -> tuple[Any, Log | None]:
        """Call `step`, whose launches may wait. -> its result, and what became of them.

        Within another such call, or while one runs in another thread, it is a plain call.
        """
        with self.lock:
            if self.active:
                mine = False
            else:
                mine = self.active = True
                self.owner, self.log, self.chains = threading.get_ident(), Log(), chains
        if not mine:
            return step(*args, **kwargs), None
        log = self.log
        try:
            out = step(*args, **kwargs)
        except BaseException:
            with self.lock:
                self.held.abandon()
            raise
        finally:
            with self.lock:
                try:
                    self.flush()
                finally:
                    self.active = self.opened = self.waiting = False
                    self.owner, self.chains = 0, None
        return out, log


queue = LaunchQueue()
