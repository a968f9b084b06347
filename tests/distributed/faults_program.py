"""A fault on one rank of several, by name: which error do the others end with?

mpiexec -n 2 python tests/distributed/faults_program.py late
mpiexec -n 2 python tests/distributed/faults_program.py late_again emulated
"""

from __future__ import annotations

import sys
import time

from program_device import on_device_of

import ampkit
from ampkit import distributed as dist
from ampkit import nn, optim
from ampkit.distributed.environment import launched
from ampkit.nn.parallel import DistributedDataParallel

backend, fault = on_device_of(sys.argv), sys.argv[1]
if fault.endswith("_before") and launched().rank == 1:
    if fault == "end_before":
        sys.exit(0)
    time.sleep(60)
dist.init_process_group(backend, timeout=2 if fault != "end_before" else 60)
rank = dist.get_rank()
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
elif fault == "late_recorded":
    step = ampkit.compile(lambda x: dist.all_reduce(x) or x * 2, warmup=1)
    for number in range(4):
        time.sleep(60 if odd and number == 3 else 0)
        step(tensor)
    dist.all_reduce(tensor)
elif fault.endswith("_again"):  # after calls that all ranks have made, so that a GPU's are not compared once more
    for each in (tensor, ampkit.zeros(4)):
        dist.all_reduce(each)
    time.sleep(60 if odd and fault == "late_again" else 0)
    dist.all_reduce(ampkit.zeros(4) if odd else tensor)
    dist.all_reduce(tensor)
elif fault == "error":
    if odd:
        raise ValueError("something of the script's own")
    dist.all_reduce(tensor)
elif fault == "end":
    if odd:
        sys.exit(3)
    dist.all_reduce(tensor)
elif fault == "overflow":  # of one rank's gradients, in each step
    model = DistributedDataParallel(nn.Linear(3, 3).to(tensor.device))
    scaler, optimizer = ampkit.GradScaler(min_scale=16384.0), optim.SGD(model.parameters(), lr=0.1)
    while True:
        factor = ampkit.full((3,), 3e38 if odd else 1.0)
        scaler.scale((model(tensor.reshape(1, 3)) * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
elif fault == "message":
    if odd:
        dist.send(tensor, 0)
    else:
        dist.recv(tensor.int(), 1)
