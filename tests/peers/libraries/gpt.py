"""A small GPT of plain layers, its tokens, and the times of its steps, for programs of a training of a realistic size.

Width 256, 4 layers, 8 heads, and a vocabulary of 1000, in steps of 8 x 128 tokens.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from job import start
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

STEPS, ROWS, LENGTH = 24, 8, 128


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        rows, length, width = x.shape
        heads = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*heads.unbind(0), is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary=1000, width=256, layers=4, heads=8):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        start(self)

    def forward(self, tokens):
        """The mean loss of predicting each token from those before it."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        logits = self.head(self.norm(self.blocks(x)))
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def rows() -> Any:
    """The tokens of all steps, [STEPS * ROWS, LENGTH]: squares modulo 997."""
    return torch.arange(STEPS * ROWS * LENGTH).reshape(-1, LENGTH) ** 2 % 997


def loader() -> Any:
    """Batches of [ROWS, LENGTH] tokens, in order."""
    return DataLoader(TensorDataset(rows()), batch_size=ROWS)


class Clock:
    """Times all steps but the first two, which allocate, and compile on some backends."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self) -> None:
        """To be called as a step begins."""
        if self.steps == 2:
            self.began = time.perf_counter()
        self.steps += 1

    def end(self) -> None:
        """To be called after the last step."""
        print("SECONDS", time.perf_counter() - self.began, flush=True)
