"""How PyTorch prints tensors, for tests/golden/tensor_text.json: `python -m tests.peers.tensor_text`.

An expression is evaluated with `torch` as PyTorch here, and as ampkit in tests/core/test_tensor_text.py.
"""

from __future__ import annotations

import json
from pathlib import Path

EXPRESSIONS = """
tensor(1.5)
tensor(3)
tensor(True)
tensor([])
tensor([], dtype=torch.int64)
zeros(0, 3)
zeros(2, 0, dtype=torch.float16)
tensor([1.0, 2.0, -3.0])
tensor([0.0, -0.0])
tensor([1.25, 100.0, -0.5])
tensor([[1.0, -2.5], [0.125, 1e-3]])
tensor([1e-5, 1.0])
tensor([1.0, 1e9])
tensor([1.0, 1001.0])
tensor([0.5, 501.0])
tensor([123456789.0])
tensor([1.0, float("nan"), float("inf"), -float("inf")])
tensor([0.5, float("nan"), -float("inf")])
tensor([float("nan")])
tensor([[1, -20], [300, 4]])
tensor([True, False])
tensor([1, 2], dtype=torch.uint8)
tensor([1.0, 2.0], dtype=torch.float16)
tensor([1.1, 2.0], dtype=torch.bfloat16)
tensor([0.1, 0.2], dtype=torch.float64)
tensor(0.1, dtype=torch.float64)
tensor([1.0], requires_grad=True)
tensor([1.0], requires_grad=True) * 2
tensor([0.5], dtype=torch.float16, requires_grad=True).exp()
arange(30)
arange(30.0) / 7
arange(1001)
arange(2000.0).reshape(40, 50)
arange(24).reshape(2, 3, 4)
arange(4000).reshape(10, 20, 20)
arange(8000.0).reshape(2, 500, 8) / 3
arange(3000).reshape(3, 1000) % 2 == 0
arange(10.0, dtype=torch.float64).reshape(2, 5).requires_grad_() / 3
arange(1200.0).half().requires_grad_() * 0.5
""".strip().splitlines()

if __name__ == "__main__":
    import torch

    texts = {each: repr(eval(f"torch.{each}", {"torch": torch})) for each in EXPRESSIONS}
    path = Path(__file__).parents[1] / "golden/tensor_text.json"
    path.write_text(json.dumps({"pytorch": torch.__version__.partition("+")[0], "texts": texts}, indent=1) + "\n")
