"""Run the random programs of `tests/fuzz/memory_programs.py` on PyTorch: its answers must be the oracle's.

python -m tests.peers.memory_programs [--programs 5000] [--seed N]
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import torch

from ..fuzz.memory_programs import main

if __name__ == "__main__":
    names = ("tensor", "full", "eye", "no_grad", "autocast", "bfloat16", "float32", "nn", "optim")
    library = SimpleNamespace(linear=torch.nn.functional.linear, **{name: getattr(torch, name) for name in names})
    sys.exit(main(library) > 0)
