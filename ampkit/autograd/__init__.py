"""PyTorch's address of what has to do with gradients: `Function`, `grad`, `backward`, `no_grad` and their kin."""

from ..core.autograd.grad_mode import enable_grad, inference_mode, no_grad, set_grad_enabled
from ..core.autograd.tape import backward, grad
from ..testing import gradcheck, gradgradcheck
from . import anomaly_mode, forward_ad, function, functional, graph
from .anomaly_mode import detect_anomaly, set_detect_anomaly
from .function import Function

__all__ = [
    "Function", "anomaly_mode", "backward", "detect_anomaly", "enable_grad", "forward_ad", "function", "functional",
    "grad", "gradcheck", "gradgradcheck", "graph", "inference_mode", "no_grad", "set_detect_anomaly",
    "set_grad_enabled",
]  # fmt: skip
