"""Old names of `torch.autograd`."""

from __future__ import annotations

from typing import Any

from ...core.tensor import Tensor

__all__ = ["Variable"]


class Variable(Tensor):
    """A tensor itself, as in PyTorch since 0.4."""

    def __new__(cls, data: Tensor, requires_grad: bool = False, volatile: bool = False) -> Any:
        return data.requires_grad_() if requires_grad else data
