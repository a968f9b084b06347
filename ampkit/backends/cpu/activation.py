"""Bodies of the activations: oneDNN's for those that large models are made of, and blocks for all of several steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.dtypes import DType, float32
from ...core.saved import Saved
from ...ops import activation
from . import eltwise
from .blocks import in_blocks
from .formats import flattened, reordered_like
from .onednn import HostArray, empty


def _smooth(op: Any, name: Any, alpha: float = 0.0) -> None:
    """Bodies of `op`, which saves its input; `name`, given the op's parameters, is what oneDNN calls it."""

    def forward(input: HostArray, *params: Any, dtype: DType) -> Any:
        return eltwise.forward(name(*params), alpha, input), Saved(input=input)

    def backward(dy: HostArray, saved: Saved, needs: Any, **params: Any) -> Any:
        return eltwise.backward(name(*params.values()), alpha, dy, saved.input)

    def back_fits(dy: HostArray, saved: Saved, needs: Any, **params: Any) -> bool:
        return needs[0] == saved.input.dtype and eltwise.fits(dy, saved.input)

    op.on("cpu", when=lambda input, *params: eltwise.fits(input))(forward)
    op.backward_primitive.on("cpu", when=back_fits)(backward)


_smooth(activation.gelu, lambda approximate: "gelu_erf" if approximate == "none" else "gelu_tanh")
_smooth(activation.silu, lambda: "swish", alpha=1.0)
_smooth(activation.mish, lambda: "mish")


def _relu_fits(input: HostArray) -> bool:
    return input.dtype == float32 and eltwise.fits(input)


@activation.relu.on("cpu", when=_relu_fits)
def relu_cpu(input: HostArray, *, dtype: DType) -> Any:
    flat: Any = flattened(input)
    out = reordered_like(input, np.maximum(flat, np.float32(0), out=empty((input.size,), float32)))  # keeps NaN
    return out, Saved(out=out)


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
