"""Names of `torch.optim.optimizer` that optimizers of others import."""

from __future__ import annotations

from typing import Any

__all__ = ["ParamsT", "_params_t", "required"]

ParamsT = _params_t = Any


class _Required:
    def __repr__(self) -> str:
        return "<required parameter>"


required = _Required()  # the default of an option that has none
