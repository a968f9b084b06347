"""ProcessGroup: the ranks that call a collective together, and Work, a collective that runs in the background.

The collectives of a group run in the order in which they were called, on all ranks: those that were called with
async_op=True on a thread of the group's own, others in the caller where nothing runs before them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any

from .. import backends
from ..backends.threads import on_this_device
from ..base.dtypes import Array, DType
from ..base.errors import ArgumentError, DTypeError
from ..core.tensor import Tensor
from . import reduction
from .reduction import ReduceOp
from .transport import Call, Transport, call_site

if TYPE_CHECKING:
    from .nccl import NCCLTransport


class Work:
    """A collective that was begun. `wait()` returns when its tensors hold the result, and raises what went wrong.

    On a GPU it returns at once, and what the current stream does next comes after the collective.
    """

    def __init__(self, future: Any):
        self._future = future

    def wait(self, timeout: Any = None) -> bool:
        """Wait until it is complete. timeout: a timedelta or seconds. Raises what the collective raised."""
        seconds = timeout.total_seconds() if hasattr(timeout, "total_seconds") else timeout
        self._future.result(seconds)
        return True

    def is_completed(self) -> bool:
        return self._future.done()

    def is_success(self) -> bool:
        """Whether it is complete without an error."""
        return self._future.done() and self._future.exception() is None

    def exception(self) -> BaseException | None:
        """What it raised, once it is complete; None so far."""
        return self._future.exception() if self._future.done() else None

    def result(self) -> Any:
        return self._future.result()


class ProcessGroup:
    """Some ranks, in order, and how bytes move between them.

    ranks: their numbers among all processes. transport: that of arrays in the host's memory. gpu_transport: that of
    arrays on a GPU, whose collectives the device does beside its other work, without the host; for None they use
    `transport`, where need be by copies in the host's memory.
    """

    def __init__(self, ranks: Sequence[int], transport: Transport, gpu_transport: NCCLTransport | None = None):
        self.ranks, self.transport, self.gpu_transport = list(ranks), transport, gpu_transport
        self._thread: ThreadPoolExecutor | None = None
        self._messages: ThreadPoolExecutor | None = None
        self._last: Future[Any] | None = None
        self._lock = Lock()

    def rank(self) -> int:
        """This process's number in the group."""
        return self.transport.rank

    def size(self) -> int:
        return self.transport.size

    def __repr__(self) -> str:
        return f"ProcessGroup(ranks={self.ranks})"

    def rank_of(self, where: str, rank: Any) -> int:
        """The number in the group of a number among all processes. Raises ArgumentError for one outside of it."""
        if isinstance(rank, bool) or not hasattr(rank, "__index__") or rank.__index__() not in self.ranks:
            several = ", ".join(map(str, self.ranks))
            ranks = f"0 to {self.size() - 1}" if self.ranks == list(range(self.size())) else several
            raise ArgumentError(where, f"a rank of the group ({ranks})", repr(rank))
        return self.ranks.index(rank.__index__())

    def run(self, action: Callable[[], Any], in_background: bool, array: Array | None = None) -> Any:
        """Call `action` after all that was called before it. -> a Work if `in_background`, else what it returns.

        array: one that it works on. On a GPU the device does the work, and the caller's stream waits for it.
        """
        if array is not None and backends.backend_of(array).name != "cpu" and self.in_background(array):
            queued = self.transport_of(array).enqueue(action, array)
            return Work(queued) if in_background else queued.result()
        with self._lock:
            waits = in_background or (self._last is not None and not self._last.done())
            if waits:
                self._thread = self._thread or _threads(1, "ampkit-collectives")
                self._last = self._thread.submit(action)
            future = self._last
        if not waits:
            return action()
        assert future is not None
        return Work(future) if in_background else future.result()

    def all_reduce_array(
        self, array: Array, op: ReduceOp = ReduceOp.SUM, wire: DType | None = None, in_background: bool = False,
        first_nonfinite: Array | None = None, tree: bool = False,
    ) -> Any:  # fmt: skip
        """`all_reduce` of a contiguous array, in place.

        first_nonfinite: int32 [1] on the array's device, lowered to the first rank with inf or NaN among the values
        that this rank adds up. So the least over the ranks is the first of all. tree: add neighbouring ranks, then
        their sums, as `reduction.in_tree` does; else one rank after the other.
        """
        reduction.check("all_reduce", op, array.dtype, wire)
        said = f"all_reduce({op.name}, {describe(array)}{'' if wire is None else f', wire {wire.name}'})"
        call = Call(said, call_site())

        def action(transport: Transport, flat: Array) -> None:
            noted = None if first_nonfinite is None else self.flat_for(transport, first_nonfinite)
            reduction.all_reduce(transport, call, flat, op, wire, noted, tree)
            if first_nonfinite is not None and noted is not None:
                self.store(first_nonfinite, noted)

        return self.run(lambda: self.on_flat(action, array), in_background, array)

    def broadcast_array(self, array: Array, source: int = 0) -> None:
        """`broadcast` of an array from the rank `source` of the group, in place."""
        call = Call(f"broadcast({describe(array)}, from {self.ranks[source]})", call_site())

        def action(transport: Transport, flat: Array) -> None:
            transport.broadcast(call, flat, source)

        self.run(lambda: self.on_flat(action, array), False, array)

    def gather_ranges(
        self, mine: Array, whole: Array | None, bounds: Sequence[int], to: int | None = None,
        in_background: bool = False,
    ) -> Any:  # fmt: skip
        """Write the flat array `mine` of each rank r into elements bounds[r] to bounds[r + 1] of `whole`.

        to: the one rank that has a `whole`; None: all do, of which `mine` may be a view. -> a Work if `in_background`.
        """
        said = f"gather_ranges({mine.dtype.name}, {list(bounds)}, to {'all' if to is None else to})"
        call, via = Call(said, call_site()), self.transport_of(mine)

        def action() -> None:
            with backends.device_guard(mine):
                sent = self.flat_for(via, mine)
                outgoing = [sent if to in (None, rank) else sent[:0] for rank in range(via.size)]
                incoming = [sent[:0]] * via.size
                flat = None if whole is None else self.flat_for(via, whole)
                if flat is not None:
                    incoming = [flat[begin:end] for begin, end in pairwise(bounds)]
                via.exchange(call, outgoing, incoming)
                if whole is not None and flat is not None:
                    self.store(whole, flat)

        return self.run(action, in_background, mine)

    def reduce_ranges(
        self, whole: Array, bounds: Sequence[int], mine: Array, op: ReduceOp = ReduceOp.SUM,
        in_background: bool = False, tree: bool = False,
    ) -> Any:  # fmt: skip
        """Reduce elements bounds[r] to bounds[r + 1] of the flat array `whole` into the flat `mine` of each rank r.

        `mine` may have a wider dtype, to which the sum in the accumulator dtype is not rounded. `whole` may be changed
        when it is complete. tree: as of `all_reduce_array`.
        """
        reduction.check("reduce_ranges", op, whole.dtype)
        call = Call(f"reduce_ranges({op.name}, {whole.dtype.name}, {list(bounds)})", call_site())
        via = self.transport_of(whole)

        def action() -> None:
            with backends.device_guard(whole):
                sent, out = self.flat_for(via, whole), self.flat_for(via, mine)
                parts = [sent[begin:end] for begin, end in pairwise(bounds)]
                reduction.reduce_scatter(via, call, parts, op, out, tree=tree)
                self.store(mine, out)

        return self.run(action, in_background, whole)

    def message(self, finish: Callable[[], Any]) -> Work:
        """Wait in the background for the end of a message between two ranks that was begun."""
        with self._lock:
            self._messages = self._messages or _threads(8, "ampkit-messages")
        return Work(self._messages.submit(finish))

    def on_flat(self, action: Callable[[Transport, Array], Any], array: Array) -> Any:
        """Call action(transport, `array` as a flat contiguous one that the transport takes); the changes are kept."""
        transport = self.transport_of(array)
        with backends.device_guard(array):
            flat = self.flat_for(transport, array)
            result = action(transport, flat)
            self.store(array, flat)
            return result

    @staticmethod
    def flat_for(transport: Transport, array: Array) -> Array:
        """The values of `array` as a flat contiguous array that `transport` takes: in place where it can be."""
        backend = backends.backend_of(array)
        on_host = backend.name == "cpu" or transport.on_device
        flat = (array if on_host else backend.to_numpy(array)).reshape(-1)
        return flat if flat.flags.c_contiguous else flat.copy()  # of one axis with a stride

    @staticmethod
    def store(array: Array, flat: Array) -> None:
        """Write what `flat_for` made of `array` back to it, where it is a copy."""
        backend = backends.backend_of(array)
        if type(flat) is not type(array) or not array.flags.c_contiguous:
            array[...] = backend.asarray(flat).reshape(array.shape)

    def in_background(self, array: Array) -> bool:
        """Whether a collective of `array` can run beside the caller's work: not where a GPU's is copied to the host."""
        return backends.backend_of(array).name == "cpu" or self.transport_of(array).on_device

    def transport_of(self, array: Array) -> Transport:
        """The transport for arrays like `array`."""
        on_gpu = backends.backend_of(array).name != "cpu"
        return self.gpu_transport if on_gpu and self.gpu_transport is not None else self.transport

    def tell(self, text: str) -> None:
        """Tell ranks that wait for a collective on their GPUs of an error that ends this one."""
        if self.gpu_transport is not None:
            self.gpu_transport.tell_all(text)

    @property
    def device_error(self) -> Exception | None:
        """What went wrong in a collective on GPUs."""
        return None if self.gpu_transport is None else self.gpu_transport.error

    def close(self) -> None:
        """Wait for all that was called, and end the threads."""
        for threads in (self._thread, self._messages):
            if threads is not None:
                threads.shutdown()
        self._thread = self._messages = None
        for transport in (self.gpu_transport, self.transport):
            if transport is not None:
                transport.close()


def describe(array: Array) -> str:
    """dtype and shape of an array, as a call on all ranks must have them."""
    return f"{array.dtype.name} {list(array.shape)}"


def need_tensor(where: str, value: Any) -> Tensor:
    """`value`, or DTypeError if it is no Tensor."""
    if not isinstance(value, Tensor):
        raise DTypeError(where, "a Tensor", f"a {type(value).__name__}")
    return value


def _threads(count: int, name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix=name, initializer=on_this_device(lambda: None))
