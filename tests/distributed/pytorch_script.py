"""A script for PyTorch's DistributedDataParallel, which trains a classifier and saves it."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F  # noqa: N812
from torch.amp import GradScaler, autocast
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.fc1, self.fc2 = nn.Linear(8 * 4 * 4, 32), nn.Linear(32, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))


def dataset():
    torch.manual_seed(0)
    labels = torch.randint(0, 4, (128,))
    images = torch.randn(128, 1, 8, 8) * 0.5
    for number in range(4):
        images[labels == number, :, number * 2 : number * 2 + 2] += 1.0
    return TensorDataset(images, labels)


def train(model, loader, sampler, optimizer, scheduler, scaler, epochs):
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            optimizer.zero_grad(set_to_none=True)
            with autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        scheduler.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.SUM)
        mean /= dist.get_world_size()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {mean.item():.4f}, lr {scheduler.get_last_lr()[0]:g}")


def accuracy(model, data):
    model.eval()
    counts = torch.zeros(2)
    with torch.no_grad():
        for x, y in DataLoader(data, batch_size=32, sampler=DistributedSampler(data, shuffle=False)):
            counts += torch.tensor([(model(x).argmax(dim=1) == y).sum().item(), len(y)])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main(path):
    dist.init_process_group(backend="gloo")
    rank, data = dist.get_rank(), dataset()
    torch.manual_seed(rank)
    model = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(Net()) if torch.cuda.is_available() else Net())
    sampler = DistributedSampler(data, num_replicas=dist.get_world_size(), rank=rank, shuffle=True)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=0, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, loader, sampler, optimizer, StepLR(optimizer, 2, gamma=0.5), GradScaler("cpu", enabled=False), 4)
    if rank == 0:
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, path)
    dist.barrier()
    saved = torch.load(path, map_location="cpu", weights_only=True)
    again = DDP(Net())
    again.module.load_state_dict(saved["model"])
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, accuracy(again, data))
    if rank == 0:
        print(f"accuracy {found[0]:.3f} on all ranks: {len(set(found)) == 1}")
        Path(path).unlink()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
