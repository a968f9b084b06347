"""`ampkit launch`: start a program on several ranks, by mpiexec where there is one, and again when one of them died."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console

from .. import config
from ..backends.cpu.threads import usable_cpus
from ..base.errors import ConfigError
from ..distributed import is_mpi_available
from ..distributed.environment import machines
from ..distributed.sockets import launcher
from ..run.run_dir import default_directories
from . import train
from .display import WRONG, print_line

# A rank that a signal ends cannot say so, and a launcher names the process. Signals to stop reach the program itself.
# It ends by the same signal: MPICH lets the others wait for a rank that only exits, if that is before MPI_Init.
_RANK = """
trap : HUP INT TERM
"$@"
status=$?
case $status in 13[4-9])
  rank=${PMI_RANK-${OMPI_COMM_WORLD_RANK-$SLURM_PROCID}}
  echo "ampkit: rank $rank was ended by SIG$(kill -l $status)" >&2
  kill -$((status - 128)) $$;;
esac
exit $status
"""
RESTARTS = "TORCHELASTIC_RESTART_COUNT"  # by which torchrun, too, tells a script how often it was restarted


def run(options: argparse.Namespace, console: Console, parse: Callable[[Sequence[str]], argparse.Namespace]) -> int:
    """Run the command on the ranks; returns its exit status. parse: of the arguments of `ampkit`."""
    if options.n < 1 or options.max_restarts < 0:
        given = f"-n {options.n} --max-restarts {options.max_restarts}"
        raise ConfigError("launch", "-n from 1 and --max-restarts from 0", given)
    start = [*_launcher(options, str(options.n)), sys.executable]
    first, again = _commands(options.words, parse)
    with train.Signals() as signals:
        for restart in range(options.max_restarts + 1):
            status, stopped = _supervise([*start, *(again if restart else first)], options.n, restart, signals)
            if status in (0, WRONG) or stopped or restart == options.max_restarts:
                break
            again_in_words = f"restart {restart + 1} of {options.max_restarts}"
            print_line(console, f"a rank ended with status {status}: {again_in_words}")
    if again[:1] == ["-m"] and status not in (0, 1, WRONG) and not stopped:  # a rank that fails itself says what to do
        print_line(console, f"to resume: {_resume_command(options, again[2:])}")
    return status


def _resume_command(options: argparse.Namespace, words: list[str]) -> str:
    by = ["--sockets"] if options.sockets else ["--mpiexec", options.mpiexec] if options.mpiexec else []
    return shlex.join(["ampkit", "launch", *by, "-n", str(options.n), *words])


def _launcher(options: argparse.Namespace, ranks: str) -> list[str]:
    """The command that starts what follows it on the ranks."""
    if options.sockets and options.mpiexec:
        raise ConfigError("launch", "--mpiexec or --sockets", "both")
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    words = shlex.split(options.mpiexec) or ["mpiexec"]
    found = shutil.which(words[0], path=beside)
    several = None if options.mpiexec else machines()
    if options.sockets or several or (not options.mpiexec and not (found and is_mpi_available())):
        where = ["--machine", ",".join(map(str, several))] if several else []
        return [sys.executable, "-P", launcher.__file__, "-n", ranks, *where]
    if found is None:
        raise ConfigError("launch", words[0], "no such program", "pip install 'ampkit[mpi]', or load a cluster's MPI")
    return [found, *words[1:], "-n", ranks, "sh", "-c", _RANK, "rank"]


def _commands(words: list[str], parse: Callable[[Sequence[str]], argparse.Namespace]) -> tuple[list[str], list[str]]:
    """What Python runs at first, and what after a rank has died."""
    words = words[1:] if words[:1] == ["--"] else words
    if not words or not (words[0] == "train" or words[0].endswith(".py")):
        got = repr(words[0]) if words else "nothing"
        raise ConfigError("launch", "`train RECIPE.toml` or a SCRIPT.py", got, "ampkit launch -n 2 train RECIPE.toml")
    if words[0] != "train":
        if not Path(words[0]).is_file():
            raise ConfigError("launch", "a script that is there", repr(words[0]))
        return words, words
    asked = parse(words)
    dtype = config.load(asked.recipe, train.overrides(asked)).amp.precision
    if not asked.run_dir:
        words = [*words, "--run-dir", str(next(default_directories(asked.recipe, dtype, datetime.now())))]
    command = ["-m", "ampkit", *words]
    return command, command if asked.resume else [*command, "--resume"]


def _supervise(command: list[str], ranks: int, restart: int, signals: train.Signals) -> tuple[int, bool]:
    """(exit status, whether a signal ended it). A signal to this process goes on to the launcher, once."""
    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(max(1, usable_cpus() // ranks))}
    environment = {**os.environ, **threads, RESTARTS: str(restart)}
    # In a process group of its own: Ctrl-C would reach it twice, and the second one ends it without a checkpoint.
    ends = launcher.ends_with(os.getpid())
    with subprocess.Popen(command, env=environment, process_group=0, preexec_fn=ends) as process:
        stopped = False

        def stop() -> None:
            nonlocal stopped
            stopped = True
            # A launcher hands SIGINT and SIGTERM on; at SIGHUP it ends, and its ranks without a checkpoint.
            process.send_signal(signal.SIGINT if signals.status == 128 + signal.SIGINT else signal.SIGTERM)

        signals.stop = stop
        try:
            status = process.wait()
        except train.Ended:  # the second signal, at which mpiexec ends the ranks at once
            process.send_signal(signal.SIGINT)
            raise
    if stopped and status:
        return signals.status, True
    return (status if status >= 0 else 128 - status), stopped
