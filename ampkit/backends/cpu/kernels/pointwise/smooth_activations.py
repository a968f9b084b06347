"""CPU kernels of the smooth activations: oneDNN's for the common ones, the reference block by block for the others."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ampkit.backends.cpu.blockwise import BLOCK, in_blocks, pieces, plain, store, widened
from ampkit.backends.cpu.onednn import eltwise
from ampkit.backends.cpu.onednn.primitive import MIN_ELEMENTS, HostArray
from ampkit.base.dtypes import DType, accumulator
from ampkit.core.autograd.saved import Saved
from ampkit.ops.pointwise import smooth_activations


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


_smooth(smooth_activations.gelu, lambda approximate: "gelu_erf" if approximate == "none" else "gelu_tanh")
_smooth(smooth_activations.silu, lambda: "swish", alpha=1.0)
_smooth(smooth_activations.mish, lambda: "mish")


@smooth_activations.sigmoid.on("cpu", when=lambda input: eltwise.is_profitable(input), min_elements=MIN_ELEMENTS)
def sigmoid_cpu(input: HostArray, *, dtype: DType) -> Any:
    out = eltwise.forward("logistic", 0.0, input)
    return out, Saved(out=out)


def _sigmoid_back_fits(dy: HostArray, saved: Saved, needs: Any) -> bool:
    return needs[0] == dy.dtype and eltwise.is_profitable(dy, saved.out)


@smooth_activations.sigmoid.on_backward("cpu", when=_sigmoid_back_fits, min_elements=MIN_ELEMENTS)
def sigmoid_backward_cpu(dy: HostArray, saved: Saved, needs: Any) -> HostArray:
    return eltwise.backward("logistic_by_output", 0.0, dy, saved.out)


for op in (
    smooth_activations.celu,
    smooth_activations.elu,
    smooth_activations.gelu,
    smooth_activations.logsigmoid,
    smooth_activations.mish,
    smooth_activations.sigmoid,
    smooth_activations.silu,
    smooth_activations.selu,
    smooth_activations.softplus,
    smooth_activations.softsign,
    smooth_activations.tanhshrink,
):
    in_blocks(op)


# glu


def _parted(array: HostArray, dim: int, parts: int) -> HostArray:
    # As [before, parts, behind], of which `parts` are along `dim`.
    return array.reshape(prod(array.shape[: dim % array.ndim]), parts, -1)


@smooth_activations.glu.on(
    "cpu", when=lambda input, dim: input.size >= 4 * BLOCK and plain(input), min_elements=4 * BLOCK
)
def glu_cpu(input: HostArray, dim: int, *, dtype: DType) -> Any:
    shape = list(input.shape)
    shape[dim] //= 2
    out, wide, whole = np.empty(shape, dtype), accumulator(dtype), _parted(input, dim, 2)
    made = _parted(out, dim, 1)
    for rows, columns in pieces(len(whole), whole.shape[2]):
        found, _ = smooth_activations.glu.forward.reference.run(widened(whole[rows, :, columns], wide), 1)
        store(found, made[rows, :, columns])
    return out, Saved(input=input)


def _glu_back_fits(dy: HostArray, saved: Saved, needs: Any, dim: int) -> bool:
    return dy.size >= 2 * BLOCK and plain(dy) and plain(saved.input)


@smooth_activations.glu.on_backward("cpu", when=_glu_back_fits, min_elements=2 * BLOCK)
def glu_backward_cpu(dy: HostArray, saved: Saved, needs: Any, dim: int) -> HostArray:
    reference, wide = smooth_activations.glu.backward_primitive.reference.run, accumulator(needs[0])  # type: ignore[union-attr]  # glu has a backward
    out = np.empty(saved.input.shape, needs[0])
    whole, made, grad = _parted(saved.input, dim, 2), _parted(out, dim, 2), _parted(dy, dim, 1)
    for rows, columns in pieces(len(whole), whole.shape[2]):
        given = Saved(input=widened(whole[rows, :, columns], wide))
        store(reference(widened(grad[rows, :, columns], wide), given, needs, 1), made[rows, :, columns])
    return out
