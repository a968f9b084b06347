"""Lazy layers, which take their input size from the first batch and then become the layers they stand for.

Until then they have no Parameters, and what needs some (an optimizer, a state dict) raises. Hooks, the training mode,
and the device and dtype to which the model was moved persist.
"""

from __future__ import annotations

from inspect import Signature, signature
from typing import Any, ClassVar

from ampkit.backends import Device
from ampkit.base.dtypes import DType
from ampkit.base.errors import DTypeError, ShapeError, StateError
from ampkit.core.parameter import Parameter
from ampkit.core.tensor import Tensor

from .. import hooks
from ..module import Module
from ..module_tree import RUN_FIRST
from .conv import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from .instance_norm import InstanceNorm1d, InstanceNorm2d, InstanceNorm3d
from .linear import Linear
from .norm import BatchNorm1d, BatchNorm2d, BatchNorm3d

__all__ = [
    "LazyBatchNorm1d", "LazyBatchNorm2d", "LazyBatchNorm3d", "LazyConv1d", "LazyConv2d", "LazyConv3d",
    "LazyConvTranspose1d", "LazyConvTranspose2d", "LazyConvTranspose3d", "LazyInstanceNorm1d", "LazyInstanceNorm2d",
    "LazyInstanceNorm3d", "LazyLinear", "UninitializedBuffer", "UninitializedParameter",
]  # fmt: skip

_PERSISTENT = {"training", "_hooked", "_state_hooks", *hooks.TABLES}


class UninitializedParameter(Parameter):
    """What a lazy layer of PyTorch holds before its first batch; those of ampkit hold none, so that nothing is one.

    Raises StateError when it is called.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        cure = "use nn.LazyLinear and its like, or nn.Parameter(ampkit.empty(shape))"
        raise StateError(type(self).__name__, "a shape", "none", cure)


class UninitializedBuffer(UninitializedParameter):
    """See UninitializedParameter."""


class _Lazy(Module):
    # `_options`: the arguments of the layer by name, but for the inferred one.
    is_lazy = True
    cls_to_become: ClassVar[type[Module]]
    _inferred: ClassVar[str]  # the argument that is inferred
    _like: ClassVar[type[Module] | None] = None  # the class with its arguments and defaults; None: the layer
    _ranks: ClassVar[tuple[int, ...]] = ()  # allowed numbers of input axes; () for any
    _options: dict[str, Any]
    __signature__: ClassVar[Signature]

    def __init_subclass__(cls) -> None:
        # The signature of the layer without the inferred argument.
        super().__init_subclass__()
        if "cls_to_become" in vars(cls):
            full = signature(cls._like or cls.cls_to_become)
            arguments = [argument for name, argument in full.parameters.items() if name != cls._inferred]
            cls.__signature__ = full.replace(parameters=arguments)

    def __init__(self, *args: Any, **kwargs: Any):
        try:
            bound = self.__signature__.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}: {error}") from None
        bound.apply_defaults()
        Module.__init__(self)
        self.__dict__["_options"] = bound.arguments

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.initialize_parameters(*args, **kwargs)
        return self(*args, **kwargs)

    def initialize_parameters(self, input: Tensor, *args: Any, **kwargs: Any) -> None:
        """Become the layer for inputs like this one, on its device. Raises ShapeError if its rank does not fit."""
        where = type(self).__name__
        if not isinstance(input, Tensor):
            raise DTypeError(where, "a Tensor for `input`", type(input).__name__)
        if not input.ndim or (self._ranks and input.ndim not in self._ranks):
            ranks = " or ".join(map(str, self._ranks)) or "at least 1"
            raise ShapeError(where, f"input of {ranks} axes", f"shape {tuple(input.shape)}")
        options = dict(self._options)
        if options["device"] is None:
            options["device"] = input.device
        layer = self.cls_to_become(**{self._inferred: self._size_of(input)}, **options)
        self.__dict__.pop("_options")
        self.__dict__.update({name: value for name, value in vars(layer).items() if name not in _PERSISTENT})
        self.__class__ = self.cls_to_become  # type: ignore[assignment]  # becomes the layer

    def _size_of(self, input: Tensor) -> int:
        return input.shape[1] if input.ndim == max(self._ranks) else input.shape[0]

    def has_uninitialized_params(self) -> bool:
        """True: after the first batch the layer is no longer a lazy one."""
        return True

    def set_destination(self, device: Device | None, dtype: DType | None) -> None:
        """Create the layer on that device and in that dtype; None leaves it."""
        moved = {"device": device, "dtype": dtype}
        self._options.update({name: value for name, value in moved.items() if value is not None})

    def reset_parameters(self) -> None:
        """Do nothing: the layer is initialized with the first batch."""

    def __getattr__(self, name: str) -> Any:
        if name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked", self._inferred):
            raise AttributeError(f"{type(self).__name__}.{name}: needs a first batch, got none yet\nhelp: {RUN_FIRST}")
        if name in self.__dict__.get("_options", ()):
            return self._options[name]
        return super().__getattr__(name)

    def extra_repr(self) -> str:
        return ", ".join(f"{k}={v}" for k, v in self._options.items() if k not in ("device", "dtype"))


class LazyLinear(_Lazy, Linear):
    """A Linear whose in_features are those of the first batch: input [..., in_features] -> [..., out_features].

    It becomes a Linear at the first call and has no Parameters before that.
    """

    cls_to_become, _inferred = Linear, "in_features"

    def _size_of(self, input: Tensor) -> int:
        return input.shape[-1]


class _LazyConv(_Lazy):
    _inferred = "in_channels"


class LazyConv1d(_LazyConv, Conv1d):
    """A Conv1d whose in_channels are those of the first batch, [N, C, L] or [C, L]; see LazyLinear."""

    cls_to_become, _ranks = Conv1d, (2, 3)


class LazyConv2d(_LazyConv, Conv2d):
    """A Conv2d whose in_channels are those of the first batch, [N, C, H, W] or [C, H, W]; see LazyLinear."""

    cls_to_become, _ranks = Conv2d, (3, 4)


class LazyConv3d(_LazyConv, Conv3d):
    """A Conv3d whose in_channels are those of the first batch, [N, C, D, H, W] or [C, D, H, W]; see LazyLinear."""

    cls_to_become, _ranks = Conv3d, (4, 5)


class LazyConvTranspose1d(_LazyConv, ConvTranspose1d):
    """A ConvTranspose1d whose in_channels are those of the first batch, [N, C, L] or [C, L]; see LazyLinear."""

    cls_to_become, _ranks = ConvTranspose1d, (2, 3)


class LazyConvTranspose2d(_LazyConv, ConvTranspose2d):
    """A ConvTranspose2d whose in_channels are those of the first batch, [N, C, H, W] or [C, H, W]; see LazyLinear."""

    cls_to_become, _ranks = ConvTranspose2d, (3, 4)


class LazyConvTranspose3d(_LazyConv, ConvTranspose3d):
    """A ConvTranspose3d whose in_channels are those of the first batch, [N, C, D, H, W] or one without N."""

    cls_to_become, _ranks = ConvTranspose3d, (4, 5)


class _LazyNorm(_Lazy):
    _inferred, _like = "num_features", BatchNorm1d  # of instance norms too, as PyTorch has it


class LazyBatchNorm1d(_LazyNorm, BatchNorm1d):
    """A BatchNorm1d of as many features as the first batch has, [N, C] or [N, C, L]; see LazyLinear."""

    cls_to_become, _ranks = BatchNorm1d, (2, 3)

    def _size_of(self, input: Tensor) -> int:
        return input.shape[1]


class LazyBatchNorm2d(_LazyNorm, BatchNorm2d):
    """A BatchNorm2d of as many features as the first batch has, [N, C, H, W]; see LazyLinear."""

    cls_to_become, _ranks = BatchNorm2d, (4,)


class LazyBatchNorm3d(_LazyNorm, BatchNorm3d):
    """A BatchNorm3d of as many features as the first batch has, [N, C, D, H, W]; see LazyLinear."""

    cls_to_become, _ranks = BatchNorm3d, (5,)


class LazyInstanceNorm1d(_LazyNorm, InstanceNorm1d):
    """An InstanceNorm1d, affine and with statistics, of as many features as the first batch has, [N, C, L]."""

    cls_to_become, _ranks = InstanceNorm1d, (2, 3)


class LazyInstanceNorm2d(_LazyNorm, InstanceNorm2d):
    """An InstanceNorm2d, affine and with statistics, of as many features as the first batch has, [N, C, H, W]."""

    cls_to_become, _ranks = InstanceNorm2d, (3, 4)


class LazyInstanceNorm3d(_LazyNorm, InstanceNorm3d):
    """An InstanceNorm3d, affine and with statistics, of as many features as the first batch has, [N, C, D, H, W]."""

    cls_to_become, _ranks = InstanceNorm3d, (4, 5)
