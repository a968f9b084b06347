"""PyTorch's public names by namespace, with which docs/coming-from-pytorch.md compares ampkit's.

    python -m tests.bench.pytorch_names        # writes tests/golden/pytorch_names.json, where PyTorch is installed

A name is public if it does not begin with an underscore and is neither a module nor imported from elsewhere.
"""

from __future__ import annotations

import functools
import inspect
import json
from pathlib import Path
from typing import Any

import torch

GOLDEN = Path(__file__).parents[1] / "golden" / "pytorch_names.json"
NAMESPACES = [
    "torch", "torch.Tensor", "torch.nn", "torch.nn.functional", "torch.nn.init", "torch.nn.utils",
    "torch.nn.utils.parametrizations", "torch.nn.utils.parametrize", "torch.optim", "torch.optim.lr_scheduler",
    "torch.optim.swa_utils", "torch.amp", "torch.autograd", "torch.linalg", "torch.special", "torch.utils.data",
]  # fmt: skip


def public(path: str) -> list[str]:
    """The public names of a module or a class, sorted."""
    space = functools.reduce(getattr, path.split(".")[1:], torch)
    return sorted(name for name in dir(space) if not name.startswith("_") and defined_in(path, getattr(space, name)))


def defined_in(path: str, value: Any) -> bool:
    """Whether `value` is defined in the namespace; exact for classes, approximate for functions and other values."""
    module = getattr(value, "__module__", None) or "torch"
    if inspect.ismodule(value) or module.split(".")[0] not in ("torch", "math", "builtins"):
        return False
    return path == "torch" or not inspect.isclass(value) or module.startswith(path)


def main() -> None:
    """Write the golden file."""
    found = {path: public(path) for path in NAMESPACES}
    rows = [f" {json.dumps(path)}: {json.dumps(names)}" for path, names in found.items()]
    version = json.dumps(torch.__version__.partition("+")[0])
    GOLDEN.write_text("{\n" + ",\n".join([f' "version": {version}', *rows]) + "\n}\n")


if __name__ == "__main__":
    main()
