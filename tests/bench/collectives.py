"""All-reduce on two ranks of this machine by sockets and by MPI, beside PyTorch's on gloo.

    pip install torch 'ampkit[mpi]' && python tests/bench/collectives.py [--megabytes 25] [--rounds 15] [--only sockets]

Each library's ranks are processes of their own; in each round they reduce a few times in turn, while the others sleep.
Milliseconds are medians over the rounds, of elapsed time and of one rank's CPU time, which other programs disturb less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

import numpy as np
from processes import Worker

LIBRARIES = ("sockets", "mpi", "gloo")
CALLS, WARMUP = 5, 3
SMALL = 16  # bytes: what all ranks agree on in a step


def reduced(library: str, nbytes: int) -> Any:
    """A function that reduces float32 values of so many bytes, and one that waits for all ranks."""
    if library == "gloo":
        import torch

        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo")
        values, dist = torch.ones(nbytes // 4), torch.distributed
    else:
        import ampkit
        from ampkit import distributed

        ampkit.set_num_threads(1)
        distributed.init_process_group(library)
        values, dist = ampkit.ones(nbytes // 4), distributed
    return lambda: dist.all_reduce(values.fill_(1)), dist


def rank(library: str, nbytes: int) -> None:
    """Answer each line of stdin by [seconds, CPU seconds] of a call."""
    call, dist = reduced(library, nbytes)
    first = dist.get_rank() == 0
    while True:
        said = [sys.stdin.readline() if first else None]
        dist.broadcast_object_list(said)
        if not said[0]:
            break
        begin, cpu = time.perf_counter(), time.process_time()
        for _ in range(json.loads(said[0])):
            call()
        spent = [time.perf_counter() - begin, time.process_time() - cpu]
        if first:
            print(json.dumps(spent), flush=True)
    dist.destroy_process_group()


def started(library: str, nbytes: int) -> Worker:
    by = ["--sockets"] if library != "mpi" else []
    return Worker(["-m", "ampkit", "launch", *by, "-n", 2, __file__, "--rank", library, "--bytes", nbytes])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=25)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", choices=LIBRARIES)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("--bytes", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank(options.rank, options.bytes)
        return
    for nbytes in (int(options.megabytes * 1e6), SMALL):
        workers = {name: started(name, nbytes) for name in ([options.only] if options.only else LIBRARIES)}
        calls = CALLS if nbytes > SMALL else 200
        for worker in workers.values():
            worker.ask(WARMUP)
        found = {name: np.zeros((0, 2)) for name in workers}
        for _ in range(options.rounds):
            for name, worker in workers.items():
                found[name] = np.vstack([found[name], np.array(worker.ask(calls)) / calls * 1e3])
        for name, rows in found.items():
            elapsed, cpu = (statistics.median(rows[:, column]) for column in (0, 1))
            print(f"{name:8} {nbytes:>9} bytes: {elapsed:8.3f} ms, CPU {cpu:8.3f} ms, least {rows[:, 0].min():8.3f} ms")
        for worker in workers.values():
            worker.end()


if __name__ == "__main__":
    main()
