"""Normalization layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from ampkit import backends, ops
from ampkit.base import dtypes
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.autograd.recompute import is_recomputing
from ampkit.core.tensor import Tensor
from ampkit.ops.argument_checks import checked

from .. import init
from ..factory import check_sizes, new_parameter, per_axis
from ..module import Module

__all__ = ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "GroupNorm", "LayerNorm", "RMSNorm", "SyncBatchNorm"]


class _Norm(Module):
    # weight and bias of one shape, ones and zeros, or None.

    def _affine(self, shape: tuple[int, ...], weight: bool, bias: bool, device: Any, dtype: Any) -> None:
        self.register_parameter("weight", new_parameter(shape, device, dtype) if weight else None)
        self.register_parameter("bias", new_parameter(shape, device, dtype) if weight and bias else None)

    def reset_parameters(self) -> None:
        """Set weight to ones and bias to zeros."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.__dict__["_parameters"].get("bias") is not None:
            init.zeros_(self.bias)


class LayerNorm(_Norm):
    """Mean 0 and variance 1 over the trailing axes, then weight and bias: input [..., *S] -> [..., *S].

    weight [*S] starts as ones, bias [*S] as zeros. Ba, Kiros, Hinton 2016, arXiv:1607.06450, eq. 3-4.
    """

    def __init__(
        self,
        normalized_shape: Any,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        self.normalized_shape = _trailing("LayerNorm", normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self._affine(self.normalized_shape, elementwise_affine, bias, device, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        return ops.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}{_bias(self)}"


class RMSNorm(_Norm):
    """Root mean square 1 over the trailing axes, then weight: input [..., *S] -> [..., *S].

    weight [*S] starts as ones. eps=None is the machine epsilon of float32 (float64 for float64 input).
    Zhang and Sennrich 2019, arXiv:1910.07467, eq. 4.
    """

    def __init__(
        self,
        normalized_shape: Any,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        self.normalized_shape = _trailing("RMSNorm", normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self.register_parameter(
            "weight", new_parameter(self.normalized_shape, device, dtype) if elementwise_affine else None
        )
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        return ops.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(_Norm):
    """Mean 0 and variance 1 over each group of channels, then weight and bias: [N, num_channels, ...] -> the same.

    weight and bias [num_channels] start as ones and zeros. Wu and He 2018, arXiv:1803.08494, eq. 1-7.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ):
        super().__init__()
        check_sizes("GroupNorm", num_groups=num_groups, num_channels=num_channels)
        if num_channels % num_groups:
            raise ArgumentError("GroupNorm", "num_channels that num_groups divides", f"{num_channels} and {num_groups}")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self._affine((num_channels,), affine, bias, device, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        return ops.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}{_bias(self)}"


class _RunningNorm(_Norm):
    # Per-channel norms with optional running statistics. States of version 1, or of none, have no num_batches_tracked.

    _version = 2

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ):
        super().__init__()
        check_sizes(type(self).__name__, num_features=num_features)
        if momentum is not None and not math.isfinite(momentum):
            raise ArgumentError(type(self).__name__, "a finite momentum", f"{momentum}")
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self._affine((num_features,), affine, bias, device, dtype)
        track = track_running_stats
        self.register_buffer("running_mean", ops.zeros(num_features, device=device, dtype=dtype) if track else None)
        self.register_buffer("running_var", ops.zeros(num_features, device=device, dtype=dtype) if track else None)
        self.register_buffer("num_batches_tracked", ops.zeros((), device=device, dtype=dtypes.int64) if track else None)
        self.reset_running_stats()
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Reset the running statistics to mean 0 and variance 1."""
        if self.track_running_stats:
            init.zeros_(self.running_mean)
            init.ones_(self.running_var)
            init.zeros_(self.num_batches_tracked)

    def _check(self, input: Tensor) -> None:
        raise NotImplementedError

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any) -> None:
        if self.num_batches_tracked is not None and (local_metadata.get("version") or 1) < 2:
            state_dict.setdefault(prefix + "num_batches_tracked", self.num_batches_tracked.detach())
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_RunningNorm):
    _layouts: ClassVar[tuple[str, ...]]  # the axes that may follow N and the channels

    @checked
    def _check(self, input: Tensor) -> None:
        ranks = [2 + layout.count(",") for layout in self._layouts]
        if input.ndim not in ranks or input.shape[1] != self.num_features:
            needs = " or ".join(f"[N, {self.num_features}{layout}]" for layout in self._layouts)
            raise ShapeError(type(self).__name__, f"input {needs}", f"shape {tuple(input.shape)}")

    def forward(self, input: Tensor) -> Tensor:
        return self.normalized(ops.batch_norm, input)

    def normalized(self, function: Callable[..., Tensor], input: Tensor) -> Tensor:
        """Call `function`, of the signature of `ops.batch_norm`, on `input` and the layer's state."""
        self._check(input)
        updates = self.training and self.track_running_stats and not is_recomputing()
        if updates:
            count = self.num_batches_tracked.array
            with backends.device_guard(count):
                count += 1
            self.num_batches_tracked.changed()
        momentum = self.momentum
        if momentum is None:
            momentum = 1 / self.num_batches_tracked.item() if updates else 0.0
        has_stats = not self.training or self.track_running_stats
        mean, var = (self.running_mean, self.running_var) if has_stats else (None, None)
        return function(input, mean, var, self.weight, self.bias, self.training or mean is None, momentum, self.eps)


class BatchNorm1d(_BatchNorm):
    """Mean 0 and variance 1 of each channel over the batch: input [N, C] or [N, C, L] -> the same; see BatchNorm2d."""

    _layouts = ("", ", L")


class BatchNorm2d(_BatchNorm):
    """Mean 0 and variance 1 of each channel over the batch, then weight and bias: input [N, C, H, W] -> the same.

    In training mode it uses the statistics of the batch and updates the running ones by `momentum` (running_var with
    the unbiased variance); momentum=None keeps their average over all batches, which reads the count from the device.
    In eval mode it uses the running statistics. weight and bias [C] start as ones and zeros.
    Ioffe and Szegedy 2015, arXiv:1502.03167, algorithm 1. Raises ShapeError for other shapes.
    """

    _layouts = (", H, W",)


class BatchNorm3d(_BatchNorm):
    """Mean 0 and variance 1 of each channel over the batch: input [N, C, D, H, W] -> the same; see BatchNorm2d."""

    _layouts = (", D, H, W",)


class SyncBatchNorm(_BatchNorm):
    """Batch normalization by the statistics of all ranks together: input [N, C, ...] -> the same; see BatchNorm2d.

    process_group: the ranks, by default all of ampkit.distributed. With one rank, before init_process_group and in eval
    mode it is BatchNorm. The ranks may have batches of different sizes, and all of them must run the layer.
    """

    _layouts = ("", ", L", ", H, W", ", D, H, W")

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        if process_group is not None and (
            isinstance(process_group, type) or not callable(getattr(process_group, "size", None))
        ):
            got = f"a {type(process_group).__name__}"
            raise DTypeError("SyncBatchNorm", "a ProcessGroup of ampkit.distributed, or None", got)
        self.process_group = process_group

    def forward(self, input: Tensor) -> Tensor:
        from ...distributed.world import group

        ranks = self.process_group or group.WORLD
        if ranks is None or ranks.size() == 1:
            return self.normalized(ops.batch_norm, input)
        from ...distributed.sync_batch_norm import sync_batch_norm

        return self.normalized(partial(sync_batch_norm, group=ranks), input)

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Module:
        """`module` with every BatchNorm1d, 2d and 3d in it replaced by a SyncBatchNorm of the same tensors."""
        converted: Module = module
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            options = module.eps, module.momentum, module.affine, module.track_running_stats
            converted = cls(module.num_features, *options, process_group)
            converted.training = module.training
            for name, parameter in module._parameters.items():
                converted.register_parameter(name, parameter)
            for name, buffer in module._buffers.items():
                converted.register_buffer(name, buffer)
        for name, child in module.named_children():
            converted.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return converted


def _bias(norm: Any) -> str:
    return ", bias=False" if norm.weight is not None and norm.bias is None else ""


def _trailing(where: str, shape: Any) -> tuple[int, ...]:
    found = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    return per_axis(where, "normalized_shape", found, max(1, len(found)))
