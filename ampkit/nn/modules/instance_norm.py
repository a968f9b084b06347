"""Instance normalization, and local response normalization across neighbouring channels."""

from __future__ import annotations

from typing import Any, ClassVar

from ampkit import ops
from ampkit.base.errors import ShapeError
from ampkit.core.tensor import Tensor
from ampkit.ops.argument_checks import checked

from ..module import Module
from .norm import _RunningNorm

__all__ = ["CrossMapLRN2d", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "LocalResponseNorm"]


class _InstanceNorm(_RunningNorm):
    _axes: ClassVar[str]  # of a sample, after its channels

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        self._check(input)
        unbatched = input.ndim == len(self._axes) + 1
        y = ops.instance_norm(
            ops.unsqueeze(input, 0) if unbatched else input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            self.momentum or 0.0,
            self.eps,
        )
        return ops.squeeze(y, 0) if unbatched else y

    @checked
    def _check(self, input: Tensor) -> None:
        rank = len(self._axes) + 1
        if input.ndim not in (rank, rank + 1) or input.shape[-rank] != self.num_features:
            axes = f"{self.num_features}, {', '.join(self._axes)}"
            raise ShapeError(type(self).__name__, f"input [N, {axes}] or [{axes}]", f"shape {tuple(input.shape)}")


class InstanceNorm1d(_InstanceNorm):
    """Mean 0 and variance 1 of each channel of each sample: [N, C, L] or [C, L] -> the same; see InstanceNorm2d."""

    _axes = "L"


class InstanceNorm2d(_InstanceNorm):
    """Mean 0 and variance 1 of each channel of each sample: input [N, C, H, W] or [C, H, W] -> the same.

    affine: with weight and bias [C], which start as ones and zeros. track_running_stats: in training mode update the
    running statistics by `momentum` towards the averages over the samples, in eval mode use them.
    Ulyanov, Vedaldi and Lempitsky 2016, arXiv:1607.08022, eq. 3. Raises ShapeError for other shapes.
    """

    _axes = "HW"


class InstanceNorm3d(_InstanceNorm):
    """Mean 0 and variance 1 of each channel of each sample: [N, C, D, H, W] or [C, D, H, W]; see InstanceNorm2d."""

    _axes = "DHW"


class LocalResponseNorm(Module):
    """x (k + alpha mean(x^2))^-beta, the mean over `size` neighbouring channels: input [N, C, ...] -> the same.

    Krizhevsky, Sutskever and Hinton 2012, NeurIPS 25, section 3.3.
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0):
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        return ops.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


class CrossMapLRN2d(LocalResponseNorm):
    """LocalResponseNorm of images [N, C, H, W], PyTorch's older class of it.

    Those of PyTorch differ: its forward never takes channel 0 out of the sums again, and its backward is that of the
    right sums. Raises ShapeError for input that has not four axes.
    """

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim != 4:
            raise ShapeError("CrossMapLRN2d", "input [N, C, H, W]", f"shape {tuple(input.shape)}")
        return super().forward(input)
