"""Ranks as threads of one process: a transport of arrays in memory, for tests with many ranks and faults at will."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ampkit.distributed.process_group import ProcessGroup
from ampkit.distributed.transport import Transport, mismatch, need_present


class Board:
    """The messages under way: by sender and receiver, in order."""

    def __init__(self):
        self.messages: dict[tuple[int, int], list[Any]] = defaultdict(list)
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


def on_ranks(size, program, timeout=20.0):
    """The results of program(group) on `size` ranks, each a thread; the first error is raised."""
    board = Board()
    groups = [ProcessGroup(range(size), ThreadTransport(board, rank, size, timeout)) for rank in range(size)]
    with ThreadPoolExecutor(size) as threads:
        futures = [threads.submit(program, group) for group in groups]
        return [future.result() for future in futures]
