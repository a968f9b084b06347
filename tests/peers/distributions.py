"""Write `tests/golden/distributions.json`, what PyTorch's distributions and transforms answer in float64.

python -m tests.peers.distributions
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import distributions

from ..distribution_cases import MAKE, PAIRS, TRANSFORMS, answers, transformed

GOLDEN = Path(__file__).parents[1] / "golden" / "distributions.json"


def tensor(values: Any) -> torch.Tensor:
    """Numbers in float64."""
    return torch.tensor(values, dtype=torch.float64)


def main() -> None:
    """Ask PyTorch, and write what it says."""
    torch.set_default_dtype(torch.float64)
    refused = (NotImplementedError,)
    found: dict[str, Any] = {name: answers(distributions, tensor, name, refused) for name in MAKE}
    made = {name: make(distributions, tensor) for name, (make, _) in MAKE.items()}
    pairs = {f"{p} {q}": distributions.kl_divergence(made[p], made[q]).tolist() for p, q in PAIRS}
    maps = {name: transformed(distributions, tensor, name, refused) for name in TRANSFORMS}
    GOLDEN.write_text(json.dumps({"distributions": found, "pairs": pairs, "transforms": maps}, indent=0) + "\n")


if __name__ == "__main__":
    main()
