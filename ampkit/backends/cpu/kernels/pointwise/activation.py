"""Kernels of the activations: oneDNN's for those that large models are made of, and blocks for all of several steps."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cpu.blockwise import in_blocks
from ampkit.backends.cpu.onednn import binary, eltwise
from ampkit.backends.cpu.onednn.primitive import MIN_ELEMENTS, HostArray
from ampkit.base.dtypes import DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.pointwise import activation


def _smooth(op: Any, name: Any, alpha: float = 0.0) -> None:
    """Kernels of `op`, which saves its input; `name`, given the op's parameters, is what oneDNN calls it."""

    def forward(input: HostArray, *params: Any, dtype: DType) -> Any:
        return eltwise.forward(name(*params), alpha, input), Saved(input=input)

    def backward(dy: HostArray, saved: Saved, needs: Any, **params: Any) -> Any:
        return eltwise.backward(name(*params.values()), alpha, dy, saved.input)

    def back_fits(dy: HostArray, saved: Saved, needs: Any, **params: Any) -> bool:
        return needs[0] == saved.input.dtype and eltwise.fits(dy, saved.input)

    op.on("cpu", when=lambda input, *params: eltwise.fits(input), min_elements=MIN_ELEMENTS)(forward)
    op.on_backward("cpu", when=back_fits, min_elements=MIN_ELEMENTS)(backward)


_smooth(activation.gelu, lambda approximate: "gelu_erf" if approximate == "none" else "gelu_tanh")
_smooth(activation.silu, lambda: "swish", alpha=1.0)
_smooth(activation.mish, lambda: "mish")


@activation.sigmoid.on("cpu", when=lambda input: eltwise.worth(input), min_elements=MIN_ELEMENTS)
def sigmoid_cpu(input: HostArray, *, dtype: DType) -> Any:
    out = eltwise.forward("logistic", 0.0, input)
    return out, Saved(out=out)


def _sigmoid_back_fits(dy: HostArray, saved: Saved, needs: Any) -> bool:
    return needs[0] == dy.dtype and eltwise.worth(dy, saved.out)


@activation.sigmoid.on_backward("cpu", when=_sigmoid_back_fits, min_elements=MIN_ELEMENTS)
def sigmoid_backward_cpu(dy: HostArray, saved: Saved, needs: Any) -> HostArray:
    return eltwise.backward("logistic_by_output", 0.0, dy, saved.out)


def _leaks(array: HostArray, negative_slope: Any) -> bool:
    # Where it does not leak, oneDNN turns NaN into 0.
    return negative_slope != 0 and eltwise.fits(array)


@activation.leaky_relu.on("cpu", when=_leaks, min_elements=MIN_ELEMENTS)
def leaky_relu_cpu(input: HostArray, negative_slope: float, *, dtype: DType) -> Any:
    return eltwise.forward("relu", negative_slope, input), Saved(input=input)


def _leaky_back_fits(dy: HostArray, saved: Saved, needs: Any, negative_slope: float) -> bool:
    return needs[0] == dy.dtype and _leaks(dy, negative_slope) and eltwise.fits(dy, saved.input)


@activation.leaky_relu.on_backward("cpu", when=_leaky_back_fits, min_elements=MIN_ELEMENTS)
def leaky_relu_backward_cpu(dy: HostArray, saved: Saved, needs: Any, negative_slope: float) -> HostArray:
    return eltwise.backward("relu", negative_slope, dy, saved.input)


@activation.relu.on("cpu", when=lambda input: eltwise.fits(input), min_elements=MIN_ELEMENTS)
def relu_cpu(input: HostArray, *, dtype: DType) -> Any:
    out = binary.positive(input)
    return out, Saved(out=out)


def _relu_back_fits(dy: HostArray, saved: Saved, needs: Any) -> bool:
    return needs[0] == dy.dtype and binary.fits(dy, saved.out)


@activation.relu.on_backward("cpu", when=_relu_back_fits, min_elements=MIN_ELEMENTS)
def relu_backward_cpu(dy: HostArray, saved: Saved, needs: Any) -> Any:
    dx = binary.where_nonzero(dy, saved.out)
    return NotImplemented if dx is None else dx


for op in (
    activation.elu,
    activation.gelu,
    activation.leaky_relu,
    activation.logsigmoid,
    activation.mish,
    activation.sigmoid,
    activation.silu,
    activation.softplus,
):
    in_blocks(op)
