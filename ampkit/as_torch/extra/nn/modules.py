"""Names of `torch.nn.modules` and of the modules in it that models of others import."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

from .... import ops
from ....nn import hooks
from ....nn.modules.conv import _Conv, _ConvTranspose
from ....nn.modules.dropout import Dropout
from ....nn.modules.instance_norm import _InstanceNorm
from ....nn.modules.lazy import LazyModuleMixin, _LazyConv, _LazyNorm
from ....nn.modules.linear import Linear
from ....nn.modules.loss import _Loss, _WeightedLoss
from ....nn.modules.norm import _BatchNorm, _RunningNorm
from ....nn.modules.padding import CircularPad1d, ConstantPad1d, ReflectionPad1d, ReplicationPad1d
from ....nn.modules.pool import AdaptiveAvgPool2d, AdaptiveMaxPool2d, LPPool2d, MaxPool2d, MaxUnpool2d, _AvgPool
from ....nn.state_dict import Keys

__all__ = [
    "_EXTRA_STATE_KEY_SUFFIX",
    "LazyModuleMixin",
    "NonDynamicallyQuantizableLinear",
    "_AdaptiveAvgPoolNd",
    "_AdaptiveMaxPoolNd",
    "_AvgPoolNd",
    "_BatchNorm",
    "_CircularPadNd",
    "_ConstantPadNd",
    "_ConvNd",
    "_ConvTransposeMixin",
    "_ConvTransposeNd",
    "_DropoutNd",
    "_IncompatibleKeys",
    "_InstanceNorm",
    "_LPPoolNd",
    "_LazyConvXdMixin",
    "_LazyNormBase",
    "_Loss",
    "_MaxPoolNd",
    "_MaxUnpoolNd",
    "_NormBase",
    "_ReflectionPadNd",
    "_ReplicationPadNd",
    "_WeightedLoss",
    "_get_activation_fn",
    "_global_buffer_registration_hooks",
    "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
    "_ntuple",
    "_pair",
    "_quadruple",
    "_reverse_repeat_tuple",
    "_single",
    "_triple",
    "consume_prefix_in_state_dict_if_present",
]  # fmt: skip

_global_buffer_registration_hooks = hooks.registration["_buffers"]
_global_module_registration_hooks = hooks.registration["_modules"]
_global_parameter_registration_hooks = hooks.registration["_parameters"]
_EXTRA_STATE_KEY_SUFFIX = "_extra_state"  # the end of the name in a state_dict
# Bases of layers for one, two and three axes; here the one for one axis is that of the others.
_NormBase, _DropoutNd, _ConstantPadNd, _CircularPadNd = _RunningNorm, Dropout, ConstantPad1d, CircularPad1d
_ReflectionPadNd, _ReplicationPadNd = ReflectionPad1d, ReplicationPad1d
_AvgPoolNd, _MaxPoolNd, _LPPoolNd, _MaxUnpoolNd = _AvgPool, MaxPool2d, LPPool2d, MaxUnpool2d
_AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd = AdaptiveAvgPool2d, AdaptiveMaxPool2d
_ConvTransposeNd = _ConvTransposeMixin = _ConvTranspose
_LazyConvXdMixin, _LazyNormBase = _LazyConv, _LazyNorm
_ConvNd, _IncompatibleKeys, NonDynamicallyQuantizableLinear = _Conv, Keys, Linear


def consume_prefix_in_state_dict_if_present(state_dict: dict[str, Any], prefix: str) -> None:
    """Take `prefix`, such as "module." of a DistributedDataParallel, from the names in state_dict, in place."""
    for name in [name for name in state_dict if name.startswith(prefix)]:
        state_dict[name[len(prefix) :]] = state_dict.pop(name)
    versions = getattr(state_dict, "_metadata", {})
    for path in [path for path in versions if path and f"{path}.".startswith(prefix)]:
        versions[path[len(prefix) :]] = versions.pop(path)


def _get_activation_fn(activation: str) -> Callable[..., Any]:
    return getattr(ops, activation)


def _ntuple(n: int, name: str = "parse") -> Callable[[Any], tuple[Any, ...]]:
    def parse(x: Any) -> tuple[Any, ...]:
        return tuple(x) if isinstance(x, Iterable) else tuple(repeat(x, n))

    parse.__name__ = name
    return parse


_single, _pair, _triple, _quadruple = (_ntuple(n) for n in (1, 2, 3, 4))


def _reverse_repeat_tuple(t: tuple[Any, ...], n: int) -> tuple[Any, ...]:
    return tuple(x for x in reversed(t) for _ in range(n))
