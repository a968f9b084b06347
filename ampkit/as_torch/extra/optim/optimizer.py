"""Names of `torch.optim.optimizer` that optimizers of others import."""

from __future__ import annotations

from typing import Any

from ....optim.optimizer_hooks import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

__all__ = [
    "ParamsT", "_params_t", "register_optimizer_step_post_hook", "register_optimizer_step_pre_hook", "required",
]  # fmt: skip

ParamsT = _params_t = Any


class _Required:
    def __repr__(self) -> str:
        return "<required parameter>"


required = _Required()  # the default of an option that has none
