"""A script for PyTorch's FSDP2, which trains a small language model, saves it and goes on from what it has saved."""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
import torch.nn.functional as F  # noqa: N812
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, width=18, vocabulary=31, blocks=3):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(blocks)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def values(count, seed):
    """Numbers that every library makes alike."""
    return [((i * 7919 + seed * 104729) % 1000) / 1000 - 0.5 for i in range(count)]


def make(mesh, dtype):
    model = Model()
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.tensor(values(parameter.numel(), seed)).reshape(parameter.shape) / 3)
    options = {"mesh": mesh}
    if dtype is not None:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)


def train(model, optimizer, first, steps):
    rank, size = dist.get_rank(), dist.get_world_size()
    losses = []
    for step in range(first, first + steps):
        for part in range(2):
            batch = torch.tensor([[(i * j + step + part) % 31 for j in range(9)] for i in range(3, 7)])
            batch = batch[len(batch) * rank // size : len(batch) * (rank + 1) // size]
            model.set_requires_gradient_sync(part == 1)
            logits = model(batch[:, :-1]).float()
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()) / 2
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.SUM)
        losses += [mean.item() / size, norm.item()]
    return losses


def main(path, dtype):
    dist.init_process_group(backend="gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model, optimizer = make(mesh, dtype)
    assert isinstance(model, FSDPModule) and isinstance(model.blocks[0], FSDPModule)
    weight = model.head.weight
    assert isinstance(weight, DTensor) and weight.placements == (Shard(0),) and weight.to_local().shape[1] == 18
    losses = train(model, optimizer, 0, 5)
    weights, states = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": states}, checkpoint_id=path)
    losses += train(model, optimizer, 5, 3)
    again, other = make(mesh, dtype)
    weights, states = get_state_dict(again, other)
    saved = {"model": weights, "optimizer": states}
    dcp.load(saved, checkpoint_id=path)
    set_state_dict(again, other, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
    resumed = train(again, other, 5, 3)
    full = get_model_state_dict(again, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        print("losses", *(f"{value:.7f}" for value in losses))
        print("resumed", resumed == losses[-6:], sorted(full) == sorted(dict(model.named_parameters())))
        print("sums", *(f"{value.double().abs().sum().item():.6f}" for value in full.values()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], {"float32": None, "bfloat16": torch.bfloat16}[sys.argv[2]])
