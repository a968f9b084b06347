"""Names of `torch.nn.init` beside ampkit.nn.init's: the older ones without underscore, and the fans of a weight."""

from __future__ import annotations

from ....core.tensor import Tensor
from ....nn import init

__all__ = [
    "_calculate_correct_fan", "_calculate_fan_in_and_fan_out", "constant", "dirac", "eye", "kaiming_normal",
    "kaiming_uniform", "normal", "orthogonal", "sparse", "uniform", "xavier_normal", "xavier_uniform",
]  # fmt: skip

constant, dirac, eye, orthogonal, sparse = init.constant_, init.dirac_, init.eye_, init.orthogonal_, init.sparse_
kaiming_normal, kaiming_uniform = init.kaiming_normal_, init.kaiming_uniform_
normal, uniform = init.normal_, init.uniform_
xavier_normal, xavier_uniform = init.xavier_normal_, init.xavier_uniform_


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    return init._fans("_calculate_fan_in_and_fan_out", tensor)


def _calculate_correct_fan(tensor: Tensor, mode: str) -> int:
    return init._fan("_calculate_correct_fan", tensor, mode.lower())
