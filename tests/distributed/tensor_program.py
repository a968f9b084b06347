"""Data and tensor parallelism on a mesh of 2 x 2, tensor parallelism on other numbers of ranks, parameters that the
ranks of a row share out while rows have copies of them, and parts that ranks share out, beside one process.

mpiexec -n 4 python tests/distributed/tensor_program.py
ampkit launch --sockets -n 4 tests/distributed/tensor_program.py sockets
"""

from __future__ import annotations

import sys

import numpy as np
from program_device import on_device_of

import ampkit
from ampkit import distributed as dist
from ampkit import ops, optim
from ampkit.distributed.tensor import parallelize_module
from ampkit.nn.parallel import DistributedDataParallel

dist.init_process_group(on_device_of(sys.argv), timeout=30)
SIZE = dist.get_world_size()
TOKENS = np.random.default_rng(0).integers(0, 31, (3, 4, 9))  # 31 rows of a table, which 2 do not divide


def model():
    ampkit.manual_seed(0)
    return ampkit.models.GPT(vocab_size=31, block_size=8, n_layer=1, n_head=4, n_embd=16)


def train(net, rows, parameters, region=None):
    optimizer, scaler, losses = optim.SGD(parameters, lr=0.2), ampkit.GradScaler(enabled=region == "float16"), []
    for tokens in TOKENS:
        part = ampkit.tensor(tokens[rows])
        with ampkit.autocast(part.device.type, dtype=region or "bfloat16", enabled=region is not None):
            logits = net(part[:, :-1])
            loss = ops.cross_entropy(logits.reshape(-1, 31), part[:, 1:].reshape(-1))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = optim.clip_grad_norm_(parameters, 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(float(norm))
    return losses


def steps_have_the_numbers_of_one_process(region, rtol, shares=False):
    plain = model()
    expected = train(plain, slice(None), list(plain.parameters()), region)
    mesh = dist.init_device_mesh("cpu", (SIZE // 2, 2), mesh_dim_names=("data", "tensor"))
    net = parallelize_module(model(), mesh["tensor"])
    rank, ranks = mesh.get_local_rank("data"), mesh.size("data")
    if shares:
        replica = dist.fully_shard(net, mesh=mesh["data"])
        assert SIZE == 2 or (net.lm_head.weight.device_mesh is mesh and len(net.lm_head.weight.placements) == 2)
    else:
        replica = DistributedDataParallel(net, process_group=mesh.get_group("data"))
    found = train(replica, slice(4 * rank // ranks, 4 * (rank + 1) // ranks), list(net.parameters()), region)
    np.testing.assert_allclose(found, expected, rtol=rtol)
    for (name, one), other in zip(plain.named_parameters(), net.parameters(), strict=True):
        whole = other.full_tensor() if hasattr(other, "full_tensor") else other.detach()
        np.testing.assert_allclose(
            whole.cpu().numpy(), one.detach().cpu().numpy(), rtol=100 * rtol, atol=rtol, err_msg=name
        )


def copies_of_shared_parameters_have_the_numbers_of_one_process(region, rtol):
    plain = model()
    expected = train(plain, slice(None), list(plain.parameters()), region)
    mesh = dist.init_device_mesh("cpu", (SIZE // 2, 2), mesh_dim_names=("replicate", "shard"))
    net = dist.fully_shard(model(), mesh=mesh)
    rank = dist.get_rank()
    found = train(net, slice(4 * rank // SIZE, 4 * (rank + 1) // SIZE), list(net.parameters()), region)
    np.testing.assert_allclose(found, expected, rtol=rtol)
    for (name, one), other in zip(plain.named_parameters(), net.parameters(), strict=True):
        whole = other.full_tensor().cpu().numpy()
        np.testing.assert_allclose(whole, one.detach().cpu().numpy(), rtol=100 * rtol, atol=rtol, err_msg=name)


if __name__ == "__main__":
    copies_of_shared_parameters_have_the_numbers_of_one_process(None, 2e-6)
    copies_of_shared_parameters_have_the_numbers_of_one_process("float16", 5e-3)
    steps_have_the_numbers_of_one_process(None, 2e-6)
    steps_have_the_numbers_of_one_process(None, 2e-6, shares=True)
    steps_have_the_numbers_of_one_process("float16", 5e-3)
    steps_have_the_numbers_of_one_process("float16", 5e-3, shares=True)
    steps_have_the_numbers_of_one_process("bfloat16", 5e-2)
    dist.barrier()
    print(f"rank {dist.get_rank()}: the numbers of data and tensor parallelism are right")
