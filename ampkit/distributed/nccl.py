"""The transport of NCCL, by CuPy: bytes from GPU to GPU, on a stream of its own beside that of backward.

A collective is handed to the device and waited for by an event, never by the host. So it overlaps with the work of
the compute stream, and a recorded step (`ampkit.compile`) contains it. NCCL moves bytes, as MPI does: bfloat16 needs no
type of its own, and sums are reduction.py's, in rank order. A transport of the host connects the ranks, compares their
calls the first time that each is made, and finds out who is missing where one does not end.

Run on one GPU, with one rank; not yet on several.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from .. import backends
from ..backends import Array
from ..base.errors import DeviceError, StateError
from .transport import Call, DistError, Transport, call_site
from .watchdog import Watchdog


class Queued:
    """A collective that the device has been asked for, as a future of what `action` returned on the host."""

    def __init__(self, transport: NCCLTransport, value: Any, end: Any):
        self._transport, self._value, self._end = transport, value, end

    def result(self, seconds: float | None = None) -> Any:
        """Let the current stream wait for it; the host does not, whatever `seconds`. Raises what went wrong so far."""
        self._transport.raise_error()
        with self._transport.backend.here():
            self._transport.xp.cuda.get_current_stream().wait_event(self._end)
        return self._value

    def done(self) -> bool:
        return bool(self._end.done)

    def exception(self) -> Exception | None:
        return self._transport.error


class NCCLTransport(Transport):
    """The GPUs of a group's ranks, one each; they are connected when the first array comes.

    control: the ranks by a transport of the host, which nobody else uses.
    """

    def __init__(self, control: Transport):
        super().__init__(control.rank, control.size)
        self.control = control
        self.backend: Any = None  # of the GPU that the first array is on
        self._checked: set[str] = set()  # calls that all ranks have made, at least once
        self._recording: Any = None  # the recording that contains collectives of this transport
        self._watchdog: Watchdog | None = None

    @property
    def xp(self) -> Any:
        return self.backend.xp

    @property
    def error(self) -> Exception | None:
        """What went wrong on the device: the watchdog's, once it has found it."""
        return None if self._watchdog is None else self._watchdog.error

    def raise_error(self) -> None:
        """Raise `error` if there is one."""
        if self.error is not None:
            raise self.error

    # streams

    def enqueue(self, action: Callable[[], Any], array: Array) -> Queued:
        """Have the device do what `action` asks for, after the current stream's work; `array` is one that it uses."""
        if self.backend is None:
            self._connect(backends.backend_of(array))
        with self.backend.here():
            self.stream.wait_event(self.xp.cuda.get_current_stream().record())
            with self.stream:
                value = action()
            return Queued(self, value, self.stream.record())

    def _connect(self, backend: Any) -> None:
        call = Call("connecting GPUs by NCCL", call_site())
        if backend.recording is not None:
            cure = "call it once before, or compile with warmup=1 or more"
            raise StateError("compile", "a collective whose ranks are connected", "its first call", cure)
        self.library = library(backend.xp)
        self.control.barrier(call)  # with a time limit, which NCCL's own call has not
        number = np.zeros(128, np.uint8)
        if self.rank == 0:
            number[:] = np.frombuffer(self.library.get_unique_id(), np.uint8)
        self.control.broadcast(call, number, 0)
        with backend.here(), self._taken(call):
            self.communicator = self.library.NcclCommunicator(self.size, number.tobytes(), self.rank)
            self.stream = backend.xp.cuda.Stream(non_blocking=True)
        backend.side_streams.add(self.stream.ptr)
        self.backend = backend
        with backend.here():
            self._watchdog = Watchdog(self.control, self.communicator.check_async_error, self._fail)

    # messages

    def exchange_others(self, call: Call, sent: Sequence[Array], received: Sequence[Array]) -> None:
        with self._watched(call, [*sent, *received]), self._grouped():
            for rank in range(self.size):
                if rank != self.rank and sent[rank].size:
                    self.communicator.send(*self._bytes(sent[rank]), rank, self.stream.ptr)
                if rank != self.rank and received[rank].size:
                    self.communicator.recv(*self._bytes(received[rank]), rank, self.stream.ptr)

    def broadcast(self, call: Call, array: Array, source: int) -> None:
        with self._watched(call, [array]):
            address, *what = self._bytes(array)
            if array.size:
                self.communicator.broadcast(address, address, *what, source, self.stream.ptr)

    def barrier(self, call: Call) -> None:
        self.control.barrier(call)

    def _bytes(self, array: Array) -> tuple[int, int, int]:
        if not isinstance(array, self.xp.ndarray) or array.data.device_id != self.backend.index:
            got = backends.backend_of(array).device_of(array)
            raise DeviceError("distributed", f"tensors of a group on one device, {self.backend.device}", got)
        return array.data.ptr, array.nbytes, self.library.NCCL_UINT8

    @contextmanager
    def _grouped(self) -> Iterator[None]:
        # Without a group the first message would wait for its receiver, which waits for another one.
        self.library.groupStart()
        try:
            yield
        finally:
            self.library.groupEnd()

    @contextmanager
    def _taken(self, call: Call) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if type(error).__name__ != "NcclError":
                raise
            cure = "a GPU of its own for each rank; NCCL_DEBUG=INFO prints more"
            raise DistError(call.place, "NCCL to take it", str(error), cure) from None

    # errors

    @contextmanager
    def _watched(self, call: Call, arrays: Sequence[Array]) -> Iterator[None]:
        """The context of handing `call`, which uses `arrays`, over to the device."""
        if call.says not in self._checked:
            self.control.barrier(call)
            self._checked.add(call.says)
        recording = self.backend.recording
        if recording is None:
            with self.watched(call, arrays), self._taken(call):
                yield
            return
        recording.keep(arrays)
        if recording is not self._recording:
            self._recording = recording
            first = Call(f"a recorded step that begins with {call.says}", call.site)
            recording.around.append(lambda: self.watched(first))
        with self._taken(call):
            yield

    def _fail(self, error: Exception) -> None:
        # What the device holds from here on has no meaning.
        self.backend.failure = error
        self.communicator.abort()

    def tell_all(self, text: str) -> None:
        """Tell ranks that wait on their GPUs of an error that ends this one."""
        if self._watchdog is not None:
            self._watchdog.tell_all(text)

    def watched(self, call: Call, arrays: Sequence[Array] = ()) -> AbstractContextManager[None]:
        """The context of handing something over to the current stream that is to end within the time limit."""
        assert self._watchdog is not None
        return _watched(self._watchdog, self.xp, call, arrays)

    def abandon(self) -> None:
        """Disconnect without waiting for ranks, some of which are dead."""
        if self._watchdog is not None:
            self._watchdog.close()
            self.communicator.abort()
            self.backend.side_streams.discard(self.stream.ptr)
            self._watchdog = self.backend.failure = None

    def close(self) -> None:
        """Wait for the device, and disconnect."""
        if self._watchdog is None:
            return
        self._watchdog.close()
        with self.backend.here():
            self.stream.synchronize()
            self.communicator.destroy()
        self.backend.side_streams.discard(self.stream.ptr)


@contextmanager
def _watched(watchdog: Watchdog, xp: Any, call: Call, arrays: Sequence[Array]) -> Iterator[None]:
    begun = watchdog.begin(call)
    begun.kept = arrays
    try:
        yield
    except BaseException:
        watchdog.withdraw(begun)
        raise
    begun.end = xp.cuda.get_current_stream().record()


def library(xp: Any) -> Any:
    """CuPy's module of NCCL. Raises StateError where the library is missing."""
    if not hasattr(xp.cuda, "nccl"):
        try:
            importlib.import_module("cupy.cuda.nccl")
        except ImportError as error:
            missing, major = str(error).partition("\n")[0], xp.cuda.runtime.runtimeGetVersion() // 1000
            cure = f"pip install nvidia-nccl-cu{major}; or 'mpi', which copies through the host's memory"
            raise StateError("init_process_group('nccl')", "NCCL", missing, cure) from None
    return xp.cuda.nccl
