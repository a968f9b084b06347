"""Lazy layers, which take their input size from the first batch and then become the layers they stand for.

Until then the parameters and statistics that depend on it are uninitialized ones (UninitializedParameter). Hooks, the
training mode, and the device and dtype to which the model was moved persist.
"""

from __future__ import annotations

from inspect import Signature, signature
from typing import Any, ClassVar

from ampkit.base.errors import DTypeError, ShapeError, StateError
from ampkit.core.random import get_rng_state, set_rng_state
from ampkit.core.tensor import Tensor

from .. import hooks
from ..module import Module
from ..uninitialized import Uninitialized, UninitializedBuffer, UninitializedParameter
from .conv import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from .instance_norm import InstanceNorm1d, InstanceNorm2d, InstanceNorm3d
from .linear import Linear
from .norm import BatchNorm1d, BatchNorm2d, BatchNorm3d

__all__ = [
    "LazyBatchNorm1d", "LazyBatchNorm2d", "LazyBatchNorm3d", "LazyConv1d", "LazyConv2d", "LazyConv3d",
    "LazyConvTranspose1d", "LazyConvTranspose2d", "LazyConvTranspose3d", "LazyInstanceNorm1d", "LazyInstanceNorm2d",
    "LazyInstanceNorm3d", "LazyLinear", "UninitializedBuffer", "UninitializedParameter",
]  # fmt: skip

_PERSISTENT = {
    *("training", "_has_own_hooks", "_state_hooks", "_parameters", "_buffers", "_modules"),
    *(*hooks.TABLES, hooks.OPTIONS),
}


class LazyModuleMixin:
    """A base to write before Module, for layers that find their sizes in the first batch.

    The first call runs `initialize_parameters` on the arguments of forward, which must `materialize` what is
    uninitialized; then the layer becomes a `cls_to_become`, where the class has one.
    """

    cls_to_become: ClassVar[type[Module] | None] = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module: Any = self
        if "_inferred_sizes" not in module.__dict__:
            module.initialize_parameters(*args, **kwargs)
            if module.has_uninitialized_params():
                where = f"{type(self).__name__}.initialize_parameters"
                raise StateError(where, "to initialize all parameters and buffers", "uninitialized ones left")
            if self.cls_to_become is not None:
                module.__class__ = self.cls_to_become
                return module(*args, **kwargs)
            module.__dict__["_inferred_sizes"] = True
        return super().__call__(*args, **kwargs)  # type: ignore[misc]  # Module's

    def initialize_parameters(self, *args: Any, **kwargs: Any) -> None:
        """Give uninitialized parameters the sizes for these arguments of forward; subclasses define it."""
        raise StateError(type(self).__name__, "a method `initialize_parameters`", "a class without one")

    def has_uninitialized_params(self) -> bool:
        """Whether a parameter or buffer of this layer has no shape yet."""
        module: Any = self
        return any(isinstance(t, Uninitialized) for t in (*module._parameters.values(), *module._buffers.values()))


class _Lazy(LazyModuleMixin, Module):
    # `_options`: the arguments of the layer by name, but for the inferred one.
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
        options = bound.arguments
        state = get_rng_state()  # a layer of some size tells what there is to hold; its numbers are not drawn
        layer = self.cls_to_become(**{self._inferred: options.get("groups", 1)}, **options)
        set_rng_state(state)
        self.__dict__.update(vars(layer), _options=options, **{self._inferred: 0})
        kinds: Any = ((self._parameters, UninitializedParameter), (self._buffers, UninitializedBuffer))
        for table, kind in kinds:
            for name, tensor in table.items():
                if tensor is not None and tensor.ndim:
                    table[name] = kind(tensor.requires_grad, tensor.device, tensor.dtype)

    def initialize_parameters(self, input: Tensor, *args: Any, **kwargs: Any) -> None:
        """Take the sizes for inputs like this one, on its device. Raises ShapeError if its rank does not fit."""
        where = type(self).__name__
        if not isinstance(input, Tensor):
            raise DTypeError(where, "a Tensor for `input`", type(input).__name__)
        if not input.ndim or (self._ranks and input.ndim not in self._ranks):
            ranks = " or ".join(map(str, self._ranks)) or "at least 1"
            raise ShapeError(where, f"input of {ranks} axes", f"shape {tuple(input.shape)}")
        own = {**self._parameters, **self._buffers}
        first = next((tensor for tensor in own.values() if isinstance(tensor, Uninitialized)), None)
        options = dict(self._options)
        if first is not None:
            here = Tensor(()).device
            options.update(dtype=first.dtype, device=input.device if first.device == here else first.device)
        layer = self.cls_to_become(**{self._inferred: self._size_of(input)}, **options)
        for name, made in {**layer._parameters, **layer._buffers}.items():
            if made is not None and isinstance(tensor := own.get(name), Uninitialized):
                tensor.become(made.array)
        self.__dict__.pop("_options")
        self.__dict__.update({name: value for name, value in vars(layer).items() if name not in _PERSISTENT})

    def _size_of(self, input: Tensor) -> int:
        return input.shape[1] if input.ndim == max(self._ranks) else input.shape[0]

    def reset_parameters(self) -> None:
        """Draw the parameters anew, where they have a shape already."""
        if not self.has_uninitialized_params():
            super().reset_parameters()  # type: ignore[misc]  # the layer's


class LazyLinear(_Lazy, Linear):
    """A Linear whose in_features are those of the first batch: input [..., in_features] -> [..., out_features].

    It becomes a Linear at the first call; before that its Parameters are uninitialized ones.
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
