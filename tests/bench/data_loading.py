"""Seconds per epoch of a DataLoader: without workers, with threads and with processes.

    python tests/bench/data_loading.py [--workers 2]

Augmentation runs in NumPy, which releases the GIL, so threads work in parallel; parsing runs in Python, so they do not.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from ampkit.data.augment import AugmentedImages
from ampkit.utils.data import DataLoader, Dataset


class Parsed(Dataset):
    """Items that Python parses number by number."""

    LINE = " ".join(f"{number / 7:.4f}" for number in range(3072))

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> np.ndarray:
        return np.array([float(word) + index for word in self.LINE.split()], np.float32)


def augmented() -> AugmentedImages:
    images = np.random.default_rng(0).integers(0, 256, (8192, 3, 32, 32), np.uint8)
    return AugmentedImages(images, np.zeros(len(images), np.int64), crop=4, flip=True, cutout=8)


def seconds(loader: DataLoader) -> float:
    list(loader)  # warm-up: starts the processes
    start = time.perf_counter()
    list(loader)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    count = parser.parse_args().workers
    ways = {
        "no workers": {},
        f"{count} threads": {"num_workers": count},
        f"{count} processes": {
            "num_workers": count,
            "multiprocessing_context": "forkserver",
            "persistent_workers": True,
        },
    }
    for name, dataset in (("augment", augmented()), ("parse", Parsed())):
        for way, words in ways.items():
            print(f"{name:<10}{way:<14}{seconds(DataLoader(dataset, 128, **words)):8.2f} s", flush=True)


if __name__ == "__main__":
    main()
