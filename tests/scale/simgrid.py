"""SimGrid beside the formulas: the exchanges of all ranks as a trace that smpirun replays on a described cluster."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .cluster import Cluster
from .trace import Exchange


def found() -> str | None:
    """The command of SimGrid, or None."""
    return shutil.which("smpirun")


def missing() -> str:
    """What is said where it is absent."""
    return "SimGrid: needs smpirun, got no such program: apt-get install libsimgrid-dev"


def trace_of(exchanges: Sequence[Exchange], rank: int, size: int, seconds: float) -> str:
    """The actions of a rank: it computes, then exchanges as rank 0's trace does, without overlap. 1 flop is 1 ns."""
    lines = ["init", f"compute {seconds * 1e9:.0f}"]
    for number, each in enumerate(exchanges):
        most = max(each.sent)  # parts differ by an element
        others = [(rank + shift) % size for shift in range(1, size)] if most else []
        lines += [f"irecv {other} {number} {most} 6" for other in others]
        lines += [f"isend {other} {number} {most} 6" for other in others]
        lines += ["waitall"] if others else []
    return "".join(f"{rank} {line}\n" for line in [*lines, "finalize"])


def platform_of(cluster: Cluster, size: int) -> str:
    """A cluster of one rank per host, as SimGrid reads it: a link for each host to a switch without limits."""
    return (
        '<?xml version="1.0"?>\n<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">\n'
        '<platform version="4.1">\n'
        f'<cluster id="c" prefix="host-" suffix="" radical="0-{size - 1}" speed="1Gf" '
        f'bw="{cluster.bandwidth:.0f}Bps" lat="{cluster.latency / 2:.9f}s"/>\n</platform>\n'
    )


def write(folder: Path, cluster: Cluster, exchanges: Sequence[Exchange], size: int, seconds: float) -> None:
    """Write trace-<rank>.txt, traces.txt, hosts.txt and platform.xml."""
    for rank in range(size):
        (folder / f"trace-{rank}.txt").write_text(trace_of(exchanges, rank, size, seconds))
    (folder / "traces.txt").write_text("".join(f"{folder}/trace-{rank}.txt\n" for rank in range(size)))
    (folder / "hosts.txt").write_text("".join(f"host-{rank}\n" for rank in range(size)))
    (folder / "platform.xml").write_text(platform_of(cluster, size))


def replayed(folder: Path, size: int) -> float:
    """The simulated seconds of what `write` wrote. Raises RuntimeError for what smpirun refuses."""
    command = [found() or "smpirun", "-replay", f"{folder}/traces.txt", "-np", str(size), "-hostfile", "hosts.txt",
               "-platform", "platform.xml", "--cfg=smpi/host-speed:1Gf"]  # fmt: skip
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    ends = re.search(r"Simulation time (\S+)", said.stdout + said.stderr)
    if said.returncode or ends is None:
        raise RuntimeError((said.stderr or said.stdout).strip().splitlines()[-1])
    return float(ends[1])
