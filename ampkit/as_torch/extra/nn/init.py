"""Names of `torch.nn.init` beside ampkit.nn.init's: the older ones without underscore, and the fans of a weight."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

from ....core.tensor import Tensor
from ....nn import init

__all__ = [
    "_calculate_correct_fan", "_calculate_fan_in_and_fan_out", "constant", "dirac", "eye", "kaiming_normal",
    "kaiming_uniform", "normal", "orthogonal", "sparse", "uniform", "xavier_normal", "xavier_uniform",
]  # fmt: skip


def _older(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    name = function.__name__.removesuffix("_")

    @wraps(function)
    def called(*given: Any, **options: Any) -> Tensor:
        said = f"torch.nn.init.{name}: deprecated, its name is {name}_"
        warnings.warn(said, FutureWarning, stacklevel=2)
        return function(*given, **options)

    return called


constant, dirac, eye = _older(init.constant_), _older(init.dirac_), _older(init.eye_)
orthogonal, sparse = _older(init.orthogonal_), _older(init.sparse_)
kaiming_normal, kaiming_uniform = _older(init.kaiming_normal_), _older(init.kaiming_uniform_)
normal, uniform = _older(init.normal_), _older(init.uniform_)
xavier_normal, xavier_uniform = _older(init.xavier_normal_), _older(init.xavier_uniform_)


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    return init._fans("_calculate_fan_in_and_fan_out", tensor)


def _calculate_correct_fan(tensor: Tensor, mode: str) -> int:
    return init._fan("_calculate_correct_fan", tensor, mode.lower())
