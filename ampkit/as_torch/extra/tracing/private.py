"""`torch._C`: what libraries call of PyTorch's private module; it sets up what ampkit does not have."""

from __future__ import annotations

from typing import Any

from ....core.tensor import Tensor

__all__ = [
    "_TensorMeta",
    "_get_privateuse1_backend_name", "_jit_override_can_fuse_on_cpu", "_jit_override_can_fuse_on_gpu",
    "_jit_set_nvfuser_enabled", "_jit_set_profiling_executor", "_jit_set_profiling_mode",
    "_jit_set_texpr_fuser_enabled", "_log_api_usage_once",
]  # fmt: skip

_TensorMeta = type(Tensor)  # classes of tensors


def _log_api_usage_once(event: Any) -> None:
    """Does nothing."""


def _get_privateuse1_backend_name() -> str:
    return "privateuseone"


def _jit_set_profiling_executor(enabled: Any) -> bool:
    """Does nothing; returns the former setting, False."""
    return False


_jit_override_can_fuse_on_cpu = _jit_override_can_fuse_on_gpu = _jit_set_profiling_executor
_jit_set_nvfuser_enabled = _jit_set_profiling_mode = _jit_set_texpr_fuser_enabled = _jit_set_profiling_executor
