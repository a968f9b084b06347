"""Start a command on several ranks of this machine, which find each other by sockets, and end all when one fails.

python launcher.py -n 4 python script.py
python launcher.py -n 4 --machine 1,2,node0,29500 python script.py      # the second of two machines

It imports nothing of ampkit: the ranks alone do. Each has torchrun's variables. The first SIGINT or SIGTERM goes on to
the ranks, the second ends them. The exit status is that of the first rank that failed. Where this process is killed,
Linux ends the ranks with it.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

PERIOD = 0.02  # seconds between two looks at the ranks
_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>
GRACE = 5.0  # seconds for ranks to say why they end after another one has; and again after SIGTERM


class Ranks:
    """`count` processes that run `command`.

    machine: which one this is of how many that do the same, and host and port of rank 0. Their ranks then need a token
    that they have in common; those of one machine get one.
    """

    def __init__(self, count: int, command: list[str], machine: tuple[int, int, str, int] | None = None):
        self._interrupted = False
        signal.signal(signal.SIGINT, self._hand_on)
        signal.signal(signal.SIGTERM, self._hand_on)
        place, machines, host, port = machine or (0, 1, "127.0.0.1", free_port())
        common = {
            "MASTER_ADDR": host,
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(count * machines),
            "LOCAL_WORLD_SIZE": str(count),
            **({"AMPKIT_RENDEZVOUS_TOKEN": secrets.token_hex(16)} if machine is None else {}),
        }
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        for here in range(count):
            rank = place * count + here
            own = {"RANK": str(rank), "LOCAL_RANK": str(here)}
            stdin = None if rank == 0 else subprocess.DEVNULL
            environment = {**os.environ, **common, **own}
            self._running[rank] = subprocess.Popen(
                command, env=environment, stdin=stdin, preexec_fn=ends_with(os.getpid())
            )

    def wait(self) -> int:
        """Wait for the end of all. -> the status of the first that failed, 128 + its number for a signal; or 0."""
        status, deadline, ending = 0, float("inf"), [signal.SIGTERM, signal.SIGKILL]
        while self._running:
            for rank, found in self._ended():
                if found < 0 and len(ending) == 2 and not self._interrupted:
                    sys.stderr.write(f"ampkit: rank {rank} was ended by {signal.Signals(-found).name}\n")
                    sys.stderr.flush()
                if found and not status:
                    status, deadline = (found if found > 0 else 128 - found), time.monotonic() + GRACE
            if time.monotonic() > deadline:
                self._send(ending.pop(0))
                deadline = time.monotonic() + GRACE if ending else float("inf")
            time.sleep(PERIOD)
        return status

    def _ended(self) -> list[tuple[int, int]]:
        """Ranks that have ended since the last call, and their status: first those that a signal has, negative."""
        codes = [(rank, process.poll()) for rank, process in self._running.items()]
        ended = [(rank, code) for rank, code in codes if code is not None]
        for rank, _ in ended:
            del self._running[rank]
        return sorted(ended, key=lambda each: each[1])

    def _hand_on(self, number: int, _: Any) -> None:
        self._send(signal.SIGKILL if self._interrupted else number)
        self._interrupted = True

    def _send(self, number: int) -> None:
        for process in list(self._running.values()):
            process.send_signal(number)


def ends_with(parent: int) -> Callable[[], None] | None:
    """What a child of `parent` calls first, so that it is killed once `parent` has ended; None where not on Linux."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up here: a child between fork and exec may allocate little

    def end_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it has ended meanwhile
            os._exit(1)

    return end_with_parent


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def main(count: str, *words: str) -> int:
    """Start the ranks of the command line and wait for them. -> the exit status."""
    if words[0] != "--machine":
        return Ranks(int(count), list(words)).wait()
    place, machines, host, port = words[1].split(",")
    return Ranks(int(count), list(words[2:]), (int(place), int(machines), host, int(port))).wait()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[2:]))
