"""`torch._C`: what libraries call of PyTorch's private module; it sets up what ampkit does not have."""

from __future__ import annotations

from typing import Any

from ....core.dispatch.overrides import DisableTorchFunction, DisableTorchFunctionSubclass, is_enabled, modes
from ....core.dispatch.overrides import disabled as _disabled_torch_function_impl
from ....core.tensor import Tensor
from ..dispatch.overrides import has_torch_function as _has_torch_function
from ..dispatch.overrides import has_torch_function_unary as _has_torch_function_unary
from ..dispatch.overrides import has_torch_function_variadic as _has_torch_function_variadic

__all__ = [
    "DisableTorchFunction", "DisableTorchFunctionSubclass", "TensorBase", "_TensorBase", "_TensorMeta",
    "_are_functorch_transforms_active", "_disabled_torch_function_impl", "_get_privateuse1_backend_name",
    "_get_tracing_state", "_has_torch_function", "_has_torch_function_unary", "_has_torch_function_variadic",
    "_is_torch_function_enabled", "_is_torch_function_mode_enabled", "_jit_override_can_fuse_on_cpu",
    "_jit_override_can_fuse_on_gpu", "_jit_set_nvfuser_enabled", "_jit_set_profiling_executor",
    "_jit_set_profiling_mode", "_jit_set_texpr_fuser_enabled", "_log_api_usage_once",
]  # fmt: skip

_TensorMeta = type(Tensor)  # classes of tensors


TensorBase = _TensorBase = Tensor
_is_torch_function_enabled = is_enabled


def _is_torch_function_mode_enabled() -> bool:
    """Whether a TorchFunctionMode is in force."""
    return bool(modes())


def _get_tracing_state() -> None:
    """None: nothing is traced."""


def _are_functorch_transforms_active() -> bool:
    """False: arrays of transforms are not seen by code of others."""
    return False


def _log_api_usage_once(event: Any) -> None:
    """Does nothing."""


def _get_privateuse1_backend_name() -> str:
    return "privateuseone"


def _jit_set_profiling_executor(enabled: Any) -> bool:
    """Does nothing; returns the former setting, False."""
    return False


_jit_override_can_fuse_on_cpu = _jit_override_can_fuse_on_gpu = _jit_set_profiling_executor
_jit_set_nvfuser_enabled = _jit_set_profiling_mode = _jit_set_texpr_fuser_enabled = _jit_set_profiling_executor
