"""An emulated `cupy.cuda.nccl` whose ranks are processes of MPI, each with an emulated device.

What a group of calls asks for is done at its end, or at each launch of the graph that a stream captures, and holds up
this thread where a card would hold up its stream: until the other ranks have come with messages of the same size, or
`abort` from another thread. As in NCCL, an aborted exchange leaves its memory as it was. The names and parameters are
CuPy's: tests/backends/cuda/test_nccl.py compares them with those of CuPy itself.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import time
from typing import Any

import numpy as np

from . import memory, streams

NCCL_INT8, NCCL_UINT8, NCCL_INT32, NCCL_UINT32, NCCL_INT64, NCCL_UINT64 = range(6)
NCCL_FLOAT16, NCCL_FLOAT32, NCCL_FLOAT64, NCCL_BFLOAT16 = range(6, 10)
_BYTES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2)  # of an element, by its type
_INVALID_ARGUMENT, _INVALID_USAGE = 4, 5
_CONNECTING, _FIRST_TAG = 9000, 9100  # tags of MPI

_numbers = itertools.count()
_group: list[tuple[NcclCommunicator, _Call]] | None = None  # calls since groupStart


class NcclError(RuntimeError):
    def __init__(self, status: int):
        self.status = status
        super().__init__({4: "NCCL_ERROR_INVALID_ARGUMENT", 5: "NCCL_ERROR_INVALID_USAGE"}[status])


class _Call:
    """Messages of one call: (peer, bytes of the device) to send and to receive."""

    def __init__(self, stream: int, sends: list[tuple[int, Any]], receives: list[tuple[int, Any]]):
        self.stream, self.sends, self.receives = streams.numbered(stream), sends, receives


def get_version():
    return 22907


def get_unique_id():
    where = f"{_world().rank if 'mpi4py.MPI' in sys.modules else 0}:{next(_numbers)}"
    return where.encode().ljust(128, b"\0")


def groupStart():
    global _group
    if _group is not None:
        raise NcclError(_INVALID_USAGE)
    _group = []


def groupEnd():
    global _group
    if _group is None:
        raise NcclError(_INVALID_USAGE)
    calls, _group = _group, None
    by_stream: dict[tuple[int, int], list[Any]] = {}
    for communicator, call in calls:
        by_stream.setdefault((id(communicator), call.stream.ptr), []).append((communicator, call))
    for (communicator, call), *more in by_stream.values():
        for _, other in more:
            call.sends += other.sends
            call.receives += other.receives
        _queue(communicator, call)


def _queue(communicator: NcclCommunicator, call: _Call) -> None:
    accesses = [streams.Access(*streams.extent(held), False) for _, held in call.sends]
    accesses += [streams.Access(*streams.extent(held), True) for _, held in call.receives]
    streams.asked_of(call.stream, lambda: communicator.exchange(call), accesses)


class NcclCommunicator:
    def __init__(self, ndev: int, commId: bytes, rank: int, config: Any = None):  # noqa: N803  CuPy's
        if not isinstance(commId, bytes) or len(commId) != 128 or not 0 <= rank < ndev:
            raise NcclError(_INVALID_ARGUMENT)
        root, number = map(int, commId.rstrip(b"\0").split(b":"))
        self._rank, self._tag, self._device = rank, _FIRST_TAG + 100 * root + number, memory.current.device
        self._ranks, self._aborted, self.calls = [0], False, 0
        if ndev > 1:
            self._ranks = self._connected(ndev, root)

    def _connected(self, size: int, root: int) -> list[int]:
        # The ranks among all processes, which the first one collects.
        world = _world()
        if os.environ.get("OMPI_MCA_mpi_ft_enable"):  # noqa: SIM112  some ranks may be dead
            world.Ack_failed()
        world.isend((self._rank, world.rank), root, _CONNECTING + self._tag).wait()
        if self._rank == 0:
            found = sorted(world.recv(tag=_CONNECTING + self._tag) for _ in range(size))
            for _, rank in found:
                world.send([each for _, each in found], rank, 2 * _CONNECTING + self._tag)
        ranks: list[int] = world.recv(source=root, tag=2 * _CONNECTING + self._tag)
        return ranks

    def size(self):
        return len(self._ranks)

    def rank_id(self):
        return self._rank

    def device_id(self):
        return self._device

    def send(self, sendbuf, count, datatype, peer, stream):
        self._add(_Call(stream, [(self._peer(peer), self._held(sendbuf, count, datatype))], []))

    def recv(self, recvbuf, count, datatype, peer, stream):
        self._add(_Call(stream, [], [(self._peer(peer), self._held(recvbuf, count, datatype))]))

    def broadcast(self, sendbuff, recvbuff, count, datatype, root, stream):
        others = [rank for rank in range(self.size()) if rank != self._rank]
        if self._peer(root) == self._rank:
            sent = self._held(sendbuff, count, datatype)
            self._add(_Call(stream, [(rank, sent) for rank in others], []))
        else:
            self._add(_Call(stream, [], [(root, self._held(recvbuff, count, datatype))]))

    def check_async_error(self):
        pass

    def abort(self):
        self._aborted = True

    def destroy(self):
        self._aborted = True

    def _add(self, call: _Call) -> None:
        if self._aborted:
            raise NcclError(_INVALID_ARGUMENT)
        if call.stream.device_id != self._device:
            raise NcclError(_INVALID_USAGE)
        if _group is None:
            _queue(self, call)
        else:
            _group.append((self, call))

    def _peer(self, rank: int) -> int:
        if not 0 <= rank < self.size():
            raise NcclError(_INVALID_ARGUMENT)
        return rank

    def _held(self, address: int, count: int, datatype: int) -> Any:
        """The bytes of the device at an address, which a live block of this device must hold."""
        nbytes, segment = count * _BYTES[datatype], memory.segment_of(address)
        if segment is None or segment.device_id != self._device or not memory.serial_of(address):
            raise NcclError(_INVALID_ARGUMENT)
        if address + nbytes > segment.ptr + segment.size:
            raise NcclError(_INVALID_ARGUMENT)
        return np.frombuffer((ctypes.c_ubyte * nbytes).from_address(address), np.uint8)

    def exchange(self, call: _Call) -> None:
        self.calls += 1
        if self._aborted:
            return
        if self.size() == 1:
            for (_, sent), (_, received) in zip(call.sends, call.receives, strict=False):
                received[:] = sent
            return
        world, library = _world(), _library()
        requests = [world.Irecv([held, library.BYTE], self._ranks[peer], self._tag) for peer, held in call.receives]
        requests += [world.Isend([held, library.BYTE], self._ranks[peer], self._tag) for peer, held in call.sends]
        statuses = [library.Status() for _ in requests]
        while not self._aborted:
            try:
                done = library.Request.Testall(requests, statuses)
            except library.Exception:  # a message longer than what is to come
                done = False
            counts = [status.Get_count(library.BYTE) for status in statuses]
            if done and all(count == held.size for count, (_, held) in zip(counts, call.receives, strict=False)):
                return
            time.sleep(2e-4)
        for request in filter(None, requests):
            request.Cancel()


def _library() -> Any:
    from mpi4py import MPI

    return MPI


def _world() -> Any:
    return _library().COMM_WORLD
