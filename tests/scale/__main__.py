"""Tables of docs/scaling-out.md: efficiency of data parallelism, and memory of a rank by stage.

    python -m tests.scale [--simgrid]

--simgrid: the communication of a step beside SimGrid's, which needs smpirun.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from . import memory, simgrid
from .cluster import Cluster, step
from .model import data_parallel

# 8 GPUs a machine; a network adapter of 400 Gb/s each, half of NVLink's 900 GB/s in each direction.
CLUSTER = Cluster("8 GPUs a machine, 400 Gb/s each", 8, 5e-6, 50e9, 2e-6, 450e9)
FLOPS, TOKENS = 400e12, 8192  # a second of a GPU in 16 bits, 40 % of an H100's; tokens of a rank in a step
MODELS = {
    "GPT-2 1.5B": (memory.gpt_parameters(48, 1600, 50257, 1024), 1 / 48),
    "LLaMA 7B": (memory.llama_parameters(32, 4096, 11008, 32000), 1 / 32),
}
RANKS = (16, 64, 256, 1024, 4096)


def efficiency(parameters: int, ranks: int, bucket_mb: float) -> float:
    """Of a step of TOKENS tokens a rank, 6 flops a parameter and token (Kaplan et al. 2020)."""
    seconds = 6 * parameters * TOKENS / FLOPS
    return step(
        CLUSTER, data_parallel(parameters, ranks, bucket_mb * 2**20), seconds / 3, 2 * seconds / 3, 0
    ).efficiency


def tables() -> str:
    """The two tables, in Markdown."""
    lines = ["| efficiency | bucket | " + " | ".join(map(str, RANKS)) + " |", "|---" * (len(RANKS) + 2) + "|"]
    for name, (parameters, _) in MODELS.items():
        for bucket in (25, 400):
            row = " | ".join(f"{100 * efficiency(parameters, ranks, bucket):.0f} %" for ranks in RANKS)
            lines.append(f"| {name} | {bucket} MiB | {row} |")
    lines += ["", "| GB of state on a rank | stage | 1 | " + " | ".join(map(str, RANKS)) + " |"]
    lines.append("|---" * (len(RANKS) + 3) + "|")
    for name, (parameters, largest) in MODELS.items():
        for stage in range(4):
            found = (memory.state(parameters, ranks, stage, largest=largest).total / 1e9 for ranks in (1, *RANKS))
            lines.append(f"| {name} | {stage} | " + " | ".join(f"{each:.1f}" for each in found) + " |")
    return "\n".join(lines)


def beside_simgrid() -> None:
    """Communication of one bucket of 25 MiB, by the formulas and by SimGrid."""
    if simgrid.found() is None:
        print(simgrid.missing())
        return
    flat = Cluster("flat", 1, 5e-6, 50e9, 5e-6, 50e9)
    for ranks in (16, 64):
        exchanges = data_parallel(25 * 2**20 // 4, ranks, 25 * 2**20)
        ours = sum(flat.seconds(each) for each in exchanges)
        with tempfile.TemporaryDirectory() as folder:
            simgrid.write(Path(folder), flat, exchanges, ranks, 0.0)
            theirs = simgrid.replayed(Path(folder), ranks)
        print(f"25 MiB on {ranks} ranks: formulas {1e3 * ours:.2f} ms, SimGrid {1e3 * theirs:.2f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simgrid", action="store_true")
    if parser.parse_args().simgrid:
        beside_simgrid()
    else:
        print(tables())
