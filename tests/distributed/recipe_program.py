"""`ampkit train` on the ranks that mpiexec starts, with a fault on one of them.

mpiexec -n 2 python tests/distributed/recipe_program.py FAULT RECIPE [key=value ...] --run-dir DIR
mpiexec -n 2 python tests/distributed/recipe_program.py plan RECIPE
"""

from __future__ import annotations

import os
import signal
import sys

from program_device import on_device_of

from ampkit import cli
from ampkit.base.errors import FileError
from ampkit.distributed.environment import launched
from ampkit.run import checkpoint, loop, metrics_log, ranks

RANK, AT = launched().rank, 7  # the fault is in this step


def calls_until(count, fault, method):
    """`method`, and in its call number `count` also `fault`, which gives what it returns instead."""
    calls = 0

    def wrapped(*args, **kwargs):
        nonlocal calls
        calls += 1
        result = method(*args, **kwargs)
        return fault(result) if calls == count else result

    return wrapped


def interrupt(result):
    os.kill(os.getpid(), signal.SIGINT)
    return result


def killed(result):
    os.kill(os.getpid(), signal.SIGKILL)


def unreadable(result):
    raise FileError("sample 7", "a file that can be read", "a directory")


def full(result):
    raise FileError("disk", "space", "none")


def with_nan(batch):
    inputs, *rest = batch
    inputs.array[0, 0] = float("nan")
    return (inputs, *rest)


FAULTS = {  # on which rank, in which method, from which call on, what
    "none": (-1, loop.Run, "_step", 1, None),
    "signal": (1, loop.Run, "_step", AT, interrupt),
    "sample": (1, ranks.Ranks, "weighted", AT, unreadable),
    "loss": (1, ranks.Ranks, "mean", AT, unreadable),
    "metrics": (0, metrics_log.MetricsLog, "write", AT, full),
    "checkpoint": (0, checkpoint.Checkpoints, "save", 1, full),
    "death": (1, loop.Run, "_step", AT, killed),
    "death of the first": (0, loop.Run, "_step", AT, killed),
    "death at the end": (1, loop.Run, "_evaluate", 2, killed),
    "nan": (1, ranks.Ranks, "weighted", AT, with_nan),
    "one core": (-1, loop.Run, "_step", 1, None),
    "other seed": (-1, loop.Run, "_step", 1, None),
}

if __name__ == "__main__":
    if "nccl" in on_device_of(sys.argv):
        sys.argv += ["--device", "cuda"]
    if sys.argv[1] == "plan":
        sys.exit(cli.main(sys.argv[1:]))
    rank, owner, name, count, fault = FAULTS[sys.argv[1]]
    if rank == RANK:
        setattr(owner, name, calls_until(count, fault, getattr(owner, name)))
    if sys.argv[1] == "one core":
        ranks.usable_cpus = lambda: 1
    words = ["train.seed=5"] if sys.argv[1] == "other seed" and RANK == 1 else []
    sys.exit(cli.main(["train", *sys.argv[2:], *words]))
