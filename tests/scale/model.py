"""The step that is traced: a small GPT, data parallel, with AdamW whose moments may be shared out."""

from __future__ import annotations

from typing import Any

import ampkit
from ampkit import nn, ops, optim
from ampkit.distributed.optim import ZeroRedundancyOptimizer
from ampkit.nn.parallel import DistributedDataParallel

from .trace import Exchange, one_of

TOKENS, CONTEXT = 64, 16


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        q, k, v = self.c_attn(self.ln_1(x)).chunk(3, dim=-1)
        x = x + self.proj(ops.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.c_proj(ops.gelu(self.c_fc(self.ln_2(x))))


class GPT(nn.Module):
    """A GPT-2 of one head, with tied embeddings."""

    def __init__(self, layers: int, width: int):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(TOKENS, width), nn.Embedding(CONTEXT, width)
        for table in (self.wte, self.wpe):
            nn.init.normal_(table.weight, std=0.02)  # by default logits are so large that gradients are subnormal
        self.h, self.ln_f = nn.ModuleList([Block(width) for _ in range(layers)]), nn.LayerNorm(width)

    def forward(self, tokens: Any) -> Any:
        x = self.wte(tokens) + self.wpe(ampkit.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return ops.linear(self.ln_f(x), self.wte.weight)


def gpt(layers: int, width: int) -> GPT:
    ampkit.manual_seed(0)
    return GPT(layers, width)


def traced(model: GPT, ranks: int, sharded: bool, bucket_mb: float = 25.0) -> tuple[list[Exchange], int]:
    """The exchanges of a step of rank 0 among `ranks`, and the bytes of its weights, gradients and moments."""
    with one_of(ranks) as trace:
        replica = DistributedDataParallel(model, bucket_cap_mb=bucket_mb)
        if sharded:
            optimizer: Any = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=optim.AdamW, lr=1e-3)
        else:
            optimizer = optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(2):
            trace.clear()
            tokens = ampkit.randint(0, TOKENS, (2, CONTEXT))
            ops.cross_entropy(replica(tokens).flatten(0, 1), tokens.flatten()).backward()
            optimizer.step()
            held = bytes_held(model)
            optimizer.zero_grad()
        return list(trace), held


def bytes_held(model: nn.Module) -> int:
    """The bytes of the arenas that hold a model's weights, gradients and moments on this rank."""
    arenas = {each._arena_segment.arena for each in model.parameters()}
    arrays = [array for arena in arenas for array in (arena.master, arena.gradient, *arena.moment_arrays())]
    return sum(array.nbytes for array in arrays)


def data_parallel(parameters: int, ranks: int, bucket_bytes: float) -> list[Exchange]:
    """The exchanges of gradients in float32, by buckets: parts to where they are summed, and the sums to all."""
    found, left = [], 4 * parameters
    while left > 0:
        part = int(min(bucket_bytes, left)) // ranks
        counts = (0,) + (part,) * (ranks - 1)
        found += [Exchange("parts", counts, counts), Exchange("sums", counts, counts)]
        left -= int(bucket_bytes)
    return found
