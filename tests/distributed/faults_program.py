"""A fault on one rank of several, by name: which error do the others end with?

mpiexec -n 2 python tests/distributed/faults_program.py late
"""

from __future__ import annotations

import sys
import time

import ampkit
from ampkit import distributed as dist

dist.init_process_group("mpi", timeout=2)
rank, fault = dist.get_rank(), sys.argv[1]
odd = rank == dist.get_world_size() - 1
tensor = ampkit.zeros(3)
if fault == "late":
    time.sleep(60 if odd else 0)
    dist.all_reduce(tensor)
elif fault == "shape":
    dist.all_reduce(ampkit.zeros(4) if odd else tensor)
elif fault == "dtype":
    dist.all_reduce(tensor.double() if odd else tensor)
elif fault == "call":
    dist.barrier() if odd else dist.all_reduce(tensor)
elif fault == "error":
    if odd:
        raise ValueError("something of the script's own")
    dist.all_reduce(tensor)
