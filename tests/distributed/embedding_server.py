"""A script for PyTorch: a server has the embeddings, two trainers run a DistributedDataParallel model on what it sends.

Each trainer asks for rows, goes forward and backward, and sends the rows' gradient to the server, which steps once all
trainers have. Trainer 0 compares losses and rows with those of one process on the whole batch.

torchrun --nproc-per-node 3 -m ampkit.as_torch tests/distributed/embedding_server.py
"""

import os
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import rpc
from torch.nn.parallel import DistributedDataParallel

TRAINERS, ROWS, WIDTH, BATCH, STEPS = 2, 40, 8, 6, 10


class Embeddings:
    def __init__(self):
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(ROWS, WIDTH) / 4)
        self.optimizer = torch.optim.SGD([self.weight], lr=0.5, momentum=0.9)
        self.lock, self.came, self.stepped = threading.Lock(), {}, torch.futures.Future()

    def rows(self, indices):
        return self.weight.detach()[indices]

    def table(self):
        return self.weight.detach()

    @rpc.functions.async_execution
    def step(self, trainer, indices, gradient):
        """The answer comes when all trainers have called it."""
        with self.lock:
            self.came[trainer] = indices, gradient
            stepped = self.stepped
            if len(self.came) == TRAINERS:
                total = torch.zeros_like(self.weight)
                for _, (indices, gradient) in sorted(self.came.items(), key=lambda each: each[0]):
                    total.index_add_(0, indices, gradient / TRAINERS)
                self.weight.grad = total
                self.optimizer.step()
                self.came, self.stepped = {}, torch.futures.Future()
                stepped.set_result(True)
        return stepped


def dense():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 3))


def batch(step):
    torch.manual_seed(100 + step)
    return torch.randint(0, ROWS, (BATCH,)), torch.randint(0, 3, (BATCH,))


def train(server, trainer):
    address = f"tcp://127.0.0.1:{int(os.environ['MASTER_PORT']) + 20}"
    dist.init_process_group("gloo", init_method=address, rank=trainer, world_size=TRAINERS)
    model = DistributedDataParallel(dense())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, part = [], slice(trainer * BATCH // TRAINERS, (trainer + 1) * BATCH // TRAINERS)
    for step in range(STEPS):
        indices, labels = (each[part] for each in batch(step))
        x = server.rpc_sync().rows(indices).requires_grad_()
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        stepped = server.rpc_async().step(trainer, indices, x.grad)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(mean := loss.detach().clone())
        losses.append(mean.item() / TRAINERS)
        stepped.wait()
    dist.destroy_process_group()
    return losses


def alone():
    """Losses and rows of one process."""
    embeddings, model, losses = Embeddings(), dense(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        indices, labels = batch(step)
        loss = nn.functional.cross_entropy(model(embeddings.weight[indices]), labels)
        loss.backward()
        for each in (optimizer, embeddings.optimizer):
            each.step()
            each.zero_grad()
        losses.append(loss.item())
    return losses, embeddings.table()


if __name__ == "__main__":
    rank = int(os.environ["RANK"])
    name = f"trainer{rank}" if rank < TRAINERS else "server"
    rpc.init_rpc(name, rank=rank, world_size=TRAINERS + 1)
    if rank == 0:
        server = rpc.remote("server", Embeddings)
        training = rpc.rpc_async("trainer1", train, args=(server, 1))
        losses = train(server, 0)
        assert losses == training.wait()
        expected, table = alone()
        error = (server.rpc_sync().table() - table).abs().max().item()
        assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) < 1e-6 and error < 1e-6, (
            losses,
            expected,
            error,
        )
        print("right, last loss", round(losses[-1], 6))
    rpc.shutdown()
