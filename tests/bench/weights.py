"""Load PyTorch's weights from safetensors files and compare outputs: a ResNet-18 and a GPT-2.

    pip install torch && python tests/bench/weights.py

PyTorch initializes the weights and writes the file, ampkit loads it; the table shows the largest difference relative to
the largest output. GPT-2's file has the names of the official one, without "transformer." and the tied head, and stores
the weights in `TRANSPOSED` as [in, out].
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytorch_models
import torch
from safetensors.torch import save_file

import ampkit
from ampkit import models

BOUND = 1e-5
TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


def resnet18(path: Path) -> tuple[np.ndarray, np.ndarray]:
    theirs, ours = pytorch_models.resnet18().eval(), models.resnet18().eval()
    save_file(theirs.state_dict(), path)
    ours.load_state_dict(ampkit.load(path))
    images = np.random.default_rng(0).standard_normal((4, 3, 64, 64)).astype(np.float32)
    return ours(ampkit.tensor(images)).numpy(), theirs(torch.from_numpy(images)).detach().numpy()


def gpt2(path: Path) -> tuple[np.ndarray, np.ndarray]:
    sizes = {"vocab_size": 50257, "block_size": 128, "n_layer": 12, "n_head": 12, "n_embd": 768}
    theirs, ours = pytorch_models.GPT(**sizes).eval(), models.gpt("small", block_size=128).eval()
    state = theirs.transformer.state_dict()
    save_file(
        {name: value.T.contiguous() if name.endswith(TRANSPOSED) else value for name, value in state.items()}, path
    )
    loaded = ampkit.load(path)
    ours.transformer.load_state_dict({n: v.T if n.endswith(TRANSPOSED) else v for n, v in loaded.items()})
    tokens = np.random.default_rng(0).integers(0, 50257, (2, 64))
    return ours(ampkit.tensor(tokens)).numpy(), theirs(torch.from_numpy(tokens)).detach().numpy()


def main() -> int:
    torch.manual_seed(0)
    failed = False
    for make in (resnet18, gpt2):
        with tempfile.TemporaryDirectory() as folder, ampkit.no_grad(), torch.no_grad():
            ours, theirs = make(Path(folder) / "model.safetensors")
        apart = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
        failed |= not apart <= BOUND
        print(f"{make.__name__:<10}{apart:10.2e}  bound {BOUND:g}  {'ok' if apart <= BOUND else 'TOO FAR'}", flush=True)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
