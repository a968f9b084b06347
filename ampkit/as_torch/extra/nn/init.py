"""`torch.nn.init`: the initializations, their older names without underscore, and the fans of a weight."""

from __future__ import annotations

from ....core.tensor import Tensor
from ....nn import init
from ....nn.init import (
    calculate_gain,
    constant_,
    dirac_,
    eye_,
    kaiming_normal_,
    kaiming_uniform_,
    normal_,
    ones_,
    orthogonal_,
    sparse_,
    trunc_normal_,
    uniform_,
    xavier_normal_,
    xavier_uniform_,
    zeros_,
)  # fmt: skip

__all__ = [
    "_calculate_correct_fan", "_calculate_fan_in_and_fan_out", "calculate_gain", "constant", "constant_", "dirac",
    "dirac_", "eye", "eye_", "kaiming_normal", "kaiming_normal_", "kaiming_uniform", "kaiming_uniform_", "normal",
    "normal_", "ones_", "orthogonal", "orthogonal_", "sparse", "sparse_", "trunc_normal_", "uniform", "uniform_",
    "xavier_normal", "xavier_normal_", "xavier_uniform", "xavier_uniform_", "zeros_",
]  # fmt: skip

constant, dirac, eye, normal, uniform, sparse, orthogonal = (
    constant_,
    dirac_,
    eye_,
    normal_,
    uniform_,
    sparse_,
    orthogonal_,
)
kaiming_normal, kaiming_uniform = kaiming_normal_, kaiming_uniform_
xavier_normal, xavier_uniform = xavier_normal_, xavier_uniform_


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    return init._fans("_calculate_fan_in_and_fan_out", tensor)


def _calculate_correct_fan(tensor: Tensor, mode: str) -> int:
    return init._fan("_calculate_correct_fan", tensor, mode.lower())
