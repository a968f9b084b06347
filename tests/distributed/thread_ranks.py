"""Ranks as threads of one process, for tests with many ranks and faults at will: by arrays in memory, or by sockets."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from ampkit.distributed.device_mesh import DeviceMesh
from ampkit.distributed.process_group import ProcessGroup
from ampkit.distributed.sockets.launcher import free_port
from ampkit.distributed.sockets.peers import Peers
from ampkit.distributed.sockets.rendezvous import Meeting
from ampkit.distributed.sockets.transport import SocketTransport
from ampkit.distributed.transport import Transport, mismatch, need_present
from ampkit.optim import clip_grad_norm_


class Board:
    """The messages under way: by sender and receiver, in order."""

    def __init__(self):
        self.messages: dict[tuple[int, ...], list[Any]] = defaultdict(list)
        self.changed = threading.Condition()


class ThreadTransport(Transport):
    def __init__(self, board: Board, rank: int, size: int, timeout: float = 20.0):
        super().__init__(rank, size, timeout)
        self.board = board

    def exchange_others(self, call, sent, received):
        board, deadline = self.board, time.monotonic() + self.timeout
        with board.changed:
            for rank, array in enumerate(sent):
                if rank != self.rank and array.size:
                    board.messages[self.rank, rank].append((call.says, np.array(array)))
            board.changed.notify_all()
            sources = [rank for rank, array in enumerate(received) if rank != self.rank and array.size]
            while late := [rank for rank in sources if not board.messages[rank, self.rank]]:
                if not board.changed.wait(deadline - time.monotonic()):
                    need_present(call, late, self.timeout)
            for rank in sources:
                said, values = board.messages[rank, self.rank].pop(0)
                if said != call.says or values.size != received[rank].size:
                    raise mismatch(call, rank, said)
                received[rank][...] = values

    def send(self, call, array, to, tag):
        with self.board.changed:
            self.board.messages[self.rank, to, tag].append(np.array(array))
            self.board.changed.notify_all()
        return lambda: None

    def receive(self, call, array, source, tag):
        def finish():
            board, deadline = self.board, time.monotonic() + self.timeout
            with board.changed:
                while not board.messages[source, self.rank, tag]:
                    if not board.changed.wait(deadline - time.monotonic()):
                        need_present(call, [source], self.timeout)
                array[...] = board.messages[source, self.rank, tag].pop(0)
            return source

        return finish


def on_ranks(size, program, timeout=20.0, by="memory"):
    """The results of program(group) on `size` ranks, each a thread; the first error is raised."""
    board = Board()
    made = {"memory": lambda rank: ThreadTransport(board, rank, size, timeout), "sockets": None}[by]
    with sockets(size, timeout) if made is None else nullcontext([made(rank) for rank in range(size)]) as transports:
        groups = [ProcessGroup(range(size), transport) for transport in transports]
        with ThreadPoolExecutor(size) as threads:
            futures = [threads.submit(program, group) for group in groups]
            return [future.result() for future in futures]


def on_mesh(shape, program, timeout=20.0):
    """As `on_ranks` on a mesh of ranks: the results of program(all, *groups along the dimensions)."""
    ranks = np.arange(np.prod(shape)).reshape(shape)
    boards = {}

    def run(world):
        place = np.argwhere(ranks == world.rank())[0].tolist()
        groups = []
        for dim, number in enumerate(place):
            line = ranks[(*place[:dim], slice(None), *place[dim + 1 :])].tolist()
            board = boards.setdefault((dim, *line), Board())
            groups.append(ProcessGroup(line, ThreadTransport(board, number, len(line), timeout)))
        return program(world, *groups)

    return on_ranks(ranks.size, run, timeout)


class ThreadMesh(DeviceMesh):
    """The mesh of the ranks of `on_mesh`: world, groups are what its program is given."""

    def __init__(self, world, *groups):
        self.number = world.rank()
        ranks = np.arange(world.size()).reshape([group.size() for group in groups])
        self._set("cpu", ranks, tuple("abc"[: len(groups)]), list(groups))

    def get_rank(self):
        return self.number


@contextmanager
def sockets(size, timeout=20.0):
    """The transports of `size` ranks that sockets connect."""
    meetings = [Meeting(rank, size, "127.0.0.1", free_port(), b"k" * 32) for rank in range(size)]
    meetings = [meeting._replace(first_port=meetings[0].first_port) for meeting in meetings]
    with ThreadPoolExecutor(size) as threads:
        peers = list(threads.map(Peers, meetings, [20.0] * size))
        try:
            yield [SocketTransport(each, range(size), "group", timeout) for each in peers]
        finally:
            list(threads.map(Peers.close, peers))


def clipped_step(model, optimizer, scaler):
    """A step with the gradients that are there, by a scaler or a disabled one. -> the norm before they were clipped."""
    if scaler.is_enabled():
        scaler.unscale_(optimizer)
    norm = clip_grad_norm_(model.parameters(), 0.5)
    scaler.step(optimizer)
    if scaler.is_enabled():
        scaler.update()
    optimizer.zero_grad()
    return norm
