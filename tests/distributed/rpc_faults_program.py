"""A fault of one of two workers, by name: which error does the other end with?

torchrun --nproc-per-node 2 tests/distributed/rpc_faults_program.py died
"""

from __future__ import annotations

import os
import signal
import sys
import time

from ampkit.distributed import rpc
from ampkit.distributed.environment import launched


@rpc.register
def die():
    os.kill(os.getpid(), signal.SIGKILL)


@rpc.register
def ready():
    time.sleep(60)


fault, rank = sys.argv[1], launched().rank
if fault == "absent" and rank:
    sys.exit(0)
rpc.init_rpc("same" if fault == "name" else "ab"[rank], timeout=3)
if fault == "late":
    rpc.shutdown(timeout=0.5) if rank == 0 else time.sleep(20)
if rank == 0 and fault == "died":
    rpc.rpc_sync("b", die)
elif rank == 0 and fault == "died_in_shutdown":
    rpc.rpc_async("b", die)
elif rank == 0 and fault in ("error", "left"):
    rpc.rpc_sync("b", ready)
elif rank == 1 and fault == "error":
    raise ValueError("something of the script's own")
elif rank == 1 and fault == "left":
    sys.exit(0)
rpc.shutdown()
