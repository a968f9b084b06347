"""Programs of this folder, one after the other on the same ranks, which are slow to start.

mpiexec -n 3 python tests/distributed/programs.py collectives_program data_parallel_program
ampkit launch --sockets -n 3 tests/distributed/programs.py collectives_program data_parallel_program sockets
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from ampkit import distributed as dist

words = sys.argv[1:]
for name in [word for word in words if word.endswith("_program")]:
    sys.argv[1:] = [word for word in words if not word.endswith("_program")]
    runpy.run_path(str(Path(__file__).with_name(f"{name}.py")), run_name="__main__")
    if dist.is_initialized():
        dist.destroy_process_group()
