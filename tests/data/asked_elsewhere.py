"""Datasets that worker processes can load, and a run of them that is stopped from outside."""

from __future__ import annotations

import os
import sys
import time

import numpy as np

from ampkit.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


class Noted(Dataset):
    """Item i is i, the process it came from, and what `note` said there; at `fails` an error, at `dies` no process."""

    def __init__(self, count=12, fails=None, dies=None, seconds=0.0):
        self.count, self.fails, self.dies, self.seconds = count, fails, dies, seconds

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == self.fails:
            raise KeyError(f"item {index}")
        if index == self.dies:
            os._exit(3)
        time.sleep(self.seconds)
        return np.int64(index), np.int64(os.getpid()), np.int64(noted)


class Counted(IterableDataset):
    """The numbers from `first` up to `end`, and the process they came from; each worker's share is every so many."""

    def __init__(self, end, first=0):
        self.first, self.end = first, end

    def __iter__(self):
        info = get_worker_info()
        share = (0, 1) if info is None else (info.id, info.num_workers)
        return ((np.int64(i), np.int64(os.getpid())) for i in range(self.first + share[0], self.end, share[1]))


class Uneven(Counted):
    """The numbers from `first` up to `end`, in every worker."""

    def __iter__(self):
        return ((np.int64(i), np.int64(os.getpid())) for i in range(self.first, self.end))


def divide(number):
    dataset = get_worker_info().dataset
    dataset.first, dataset.end = 10 * number, 10 * number + number


def divide_more(number):
    divide(number)
    get_worker_info().dataset.end += 1


noted = -1


def note(number):
    global noted
    noted = number


def wait_for_the_end(context):
    """Fetch a batch, say which processes are at work, and go on."""
    loader = DataLoader(Noted(10_000, seconds=0.001), 4, num_workers=1, multiprocessing_context=context)
    source = iter(loader)
    pids = {int(pid) for _ in range(8) for pid in next(source)[1].numpy()}
    sys.stdout.write(" ".join(map(str, pids)) + "\n")
    sys.stdout.flush()
    for _ in source:
        time.sleep(0.01)


if __name__ == "__main__":
    wait_for_the_end(sys.argv[1])
