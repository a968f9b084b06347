"""Datasets that worker processes can load, and a run of them that is stopped from outside."""

from __future__ import annotations

import os
import sys
import time

import numpy as np

from ampkit.utils.data import DataLoader, Dataset


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
