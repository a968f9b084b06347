"""Linear and Conv2d while they are calibrated, and in int8: the layers that they were, of another class.

Both compute the activation after them and the sum with a residual too (`run`), which `chain` and the residual blocks of
the library hand over to a layer whose `_runs_fused` is True.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from ampkit import ops
from ampkit.base.dtypes import bfloat16, float32, int8, int32
from ampkit.base.errors import NonFiniteError, StateError
from ampkit.core.policy import autocast
from ampkit.core.tensor import Tensor
from ampkit.ops.quantized.codes import MAX_CODE, QParams, QuantizedTensor, quantize_per_tensor
from ampkit.ops.quantized.products import conv2d_int8, linear_int8

from ..module import Module
from ..modules.conv import Conv2d
from ..modules.linear import Linear
from ..modules.pool import MaxPool2d
from .observers import MinMaxObserver
from .readers import Readers

_TABLES = ("_parameters", "_buffers", "_modules")


class _Fused(Module):
    _runs_fused = True

    def forward(self, input: Tensor) -> Tensor:
        return self.run(input)

    def run(self, input: Tensor, activation: str = "", residual: Tensor | None = None) -> Tensor:
        """activation(the layer's output + residual); activation: one of `ops.quantized.products.ACTIVATIONS`."""
        raise NotImplementedError

    def pool(self, output: Tensor, pool: MaxPool2d) -> Any:
        """What `pool` returns for an output of `run`."""
        raise NotImplementedError


# while it is calibrated


class _Observed(_Fused):
    # The layer in float32. `input_observer` and `output_observer` see what it reads and returns.

    input_observer: MinMaxObserver
    output_observer: MinMaxObserver
    readers: Readers
    trial: Any  # the layer in int8, which runs in its place while it is not None
    macs: int  # multiply-adds of its last call

    def run(self, input: Tensor, activation: str = "", residual: Tensor | None = None) -> Tensor:
        self.readers.read(self, input, residual)
        if self.trial is not None:
            return self.trial.run(input, activation, residual)
        self.input_observer(input)
        out = super(_Fused, self).forward(Tensor(input.array))
        out = _activated(out if residual is None else out + Tensor(residual.array), activation)
        self.output_observer(out)
        self.readers.made(self, out)
        self.macs = out.numel() * self.weight.numel() // len(self.weight)
        return out

    def pool(self, output: Tensor, pool: MaxPool2d) -> Any:
        found = pool(Tensor(output.array))
        if isinstance(found, Tensor):  # without indices
            self.readers.passed_on(output, found)
        return found

    def returns_codes_to(self, chosen: Iterable[Any]) -> bool:
        """Whether all who read the output are among the observed layers `chosen`."""
        readers = self.readers.of(self)
        return readers is not None and readers <= {id(each) for each in chosen}


class ObservedLinear(_Observed, Linear):
    """A Linear between `prepare` and `convert`."""


class ObservedConv2d(_Observed, Conv2d):
    """A Conv2d between `prepare` and `convert`."""


def _activated(out: Tensor, activation: str) -> Tensor:
    if activation == "relu":
        return ops.relu(out)
    return ops.gelu(out, "tanh" if activation == "gelu_tanh" else "none") if activation else out


# in int8


class _Quantized(_Fused):
    # weight: a buffer of int8 codes, one scale per output channel. Where output_scale is not None, it returns codes.

    weight: Any
    weight_scale: Tensor
    input_scale: Tensor
    bias: Tensor | None
    output_scale: Tensor | None

    def run(self, input: Tensor, activation: str = "", residual: Tensor | None = None) -> Tensor:
        if self.training:
            cure = "call .eval(); to train on, keep the model in float32"
            raise StateError(type(self).__name__, "eval mode: int8 is for inference", "train mode", cure)
        codes, given = self._codes(input)
        result = None if self.output_scale is None else self._qparams("output")
        if residual is None or (result is not None and isinstance(residual, QuantizedTensor)):
            more, added = (None, None) if residual is None else (residual.codes, residual.qparams)
            return _as_tensor(self._product(codes, more, given, activation, result, added), result)
        out = self._product(codes, None, given, "", None, None)
        out = _activated(out + residual, activation)
        return out if result is None else _as_tensor(quantize_per_tensor(out, result), result)

    def pool(self, output: Tensor, pool: MaxPool2d) -> Any:
        if not isinstance(output, QuantizedTensor) or pool.return_indices:
            return pool(output)
        return QuantizedTensor(pool(output.codes), output.qparams)  # the larger number has the larger code

    def _codes(self, input: Tensor) -> tuple[Tensor, QParams]:
        # Codes of a plain tensor are kept with it: query, key and value read the same.
        if isinstance(input, QuantizedTensor):
            return input.codes, input.qparams
        qparams, version = self._qparams("input"), input._version_counter[0]
        at, made = input.__dict__.get("_codes", (None, None))
        if at != (version, qparams):
            made = quantize_per_tensor(input, qparams)
            input.__dict__["_codes"] = (version, qparams), made
        return made, qparams

    def _qparams(self, which: str) -> QParams:
        buffers = self.__dict__["_buffers"]
        return QParams(float(buffers[f"{which}_scale"].array), int(buffers[f"{which}_zero_point"].array))

    def _product(self, *given: Any) -> Tensor:
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, int8{'' if self.output_scale is None else ' -> uint8'}"


def _as_tensor(out: Tensor, qparams: QParams | None) -> Tensor:
    return out if qparams is None else QuantizedTensor(out, qparams)


class QuantizedLinear(_Quantized, Linear):
    """A Linear in int8: weight [out, in] int8, weight_scale [out], bias [out] or None; see `linear_int8`.

    input_scale and input_zero_point [] are those of the codes that a float32 input becomes, output_scale and
    output_zero_point those of the codes that it returns, or None for an output in float32.
    """

    def _product(self, codes: Any, residual: Any, given: Any, activation: str, result: Any, added: Any) -> Tensor:
        own = self.weight, self.weight_scale, self.bias
        return linear_int8(codes, *own, residual, given, activation, result, added)


class QuantizedConv2d(_Quantized, Conv2d):
    """A Conv2d in int8: weight [out, in / groups, *kernel_size] int8; see QuantizedLinear and `conv2d_int8`."""

    def _product(self, codes: Any, residual: Any, given: Any, activation: str, result: Any, added: Any) -> Tensor:
        own, geometry = (self.weight, self.weight_scale, self.bias), (self.stride, self.padding, self.dilation)
        return conv2d_int8(codes, *own, residual, *geometry, self.groups, given, activation, result, added)


# what loses too much in int8


class _LowPrecision(Module):
    low_dtype: ClassVar[Any] = bfloat16

    def forward(self, input: Tensor) -> Tensor:
        with autocast(dtype=self.low_dtype):
            return super().forward(input).float()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.low_dtype.name}"


class Bfloat16Linear(_LowPrecision, Linear):
    """A Linear whose product is in bfloat16, and its result in float32."""


class Bfloat16Conv2d(_LowPrecision, Conv2d):
    """A Conv2d whose products are in bfloat16, and its result in float32."""


OBSERVED: dict[type[Module], Any] = {Linear: ObservedLinear, Conv2d: ObservedConv2d}
INT8: dict[type[Module], Any] = {Linear: QuantizedLinear, Conv2d: QuantizedConv2d}
BFLOAT16: dict[type[Module], Any] = {Linear: Bfloat16Linear, Conv2d: Bfloat16Conv2d}


def kind_of(layer: Module) -> type[Module]:
    """Linear or Conv2d: the class that a layer had."""
    return Linear if isinstance(layer, Linear) else Conv2d


def observe(layer: Any, observer: Any, readers: Readers, path: str) -> None:
    """Make `layer`, at `path`, an observed one."""
    layer.__class__ = OBSERVED[type(layer)]
    layer.input_observer, layer.output_observer = observer(path), observer(path)
    layer.readers, layer.trial, layer.macs = readers, None, 0


def end_observation(layer: Any) -> None:
    """Make an observed layer the one that it was."""
    layer.__class__ = kind_of(layer)
    for name in ("input_observer", "output_observer", "readers", "trial", "macs"):
        layer.__dict__.pop(name, None)


def in_int8(layer: Any, path: str, returns_codes: bool) -> Any:
    """An observed layer in int8, a module of its own that shares the bias. Raises as the observers."""
    given, result = layer.input_observer.calculate_qparams(), None
    if returns_codes:
        result = layer.output_observer.calculate_qparams()
    made = copy.copy(layer)
    made.__dict__.update({name: dict(layer.__dict__[name]) for name in _TABLES})
    end_observation(made)
    to_int8(made, returns_codes)
    codes, scale = quantized_weight(layer.weight.array, path)
    made.weight, made.weight_scale = Tensor(codes), Tensor(scale)
    for name, qparams in (("input", given), ("output", result)):
        if qparams is not None:
            setattr(made, f"{name}_scale", Tensor(np.array(qparams.scale, float32)))
            setattr(made, f"{name}_zero_point", Tensor(np.array(qparams.zero_point, int32)))
    return made


def to_int8(layer: Any, returns_codes: bool) -> None:
    """Give a Linear or Conv2d the class and the buffers of int8, of no meaning yet: a state is loaded into them."""
    weight = layer.weight.array
    layer.__class__ = INT8[type(layer)]
    del layer.weight
    layer.register_buffer("weight", Tensor(np.zeros(weight.shape, int8)))
    layer.register_buffer("weight_scale", Tensor(np.ones(len(weight), float32)))
    for name, is_there in (("input", True), ("output", returns_codes)):
        layer.register_buffer(f"{name}_scale", Tensor(np.ones((), float32)) if is_there else None)
        layer.register_buffer(f"{name}_zero_point", Tensor(np.zeros((), int32)) if is_there else None)


def quantized_weight(weight: Any, path: str) -> tuple[Any, Any]:
    """Symmetric codes [out, ...] int8 of a weight, and the scale of each output channel [out] float32.

    The largest magnitude of a channel has the code 127 or -127. Raises NonFiniteError for a weight that is not finite.
    """
    wide = np.asarray(weight, float32)
    largest = np.abs(wide.reshape(len(wide), -1)).max(1, initial=0)
    if not np.isfinite(largest).all():
        raise NonFiniteError(path, "a finite weight", "one with NaN or infinity", "take an earlier checkpoint")
    scale = (largest / MAX_CODE).astype(float32)
    scale[scale < np.finfo(np.float32).tiny] = 1
    codes = np.rint(wide / scale.reshape(-1, *(1,) * (wide.ndim - 1)))
    return np.clip(codes, -MAX_CODE, MAX_CODE).astype(int8), scale
