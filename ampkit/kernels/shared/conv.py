"""The convolutions: what they save, and their gradients, each of which is a convolution; a backend gives these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ampkit.base.conv_geometry import ConvGeometry
from ampkit.base.dtypes import Array, DType, float32
from ampkit.base.memory_format import with_channels_inner
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn import conv
from ampkit.ops.nn.conv_geometry import from_2d, to_2d

from .registration import on

Function = Callable[..., Any]
_NONE = None, None


def register_convolutions(
    backend: str, apply: Function, weight_gradient: Function, column_sums: Function, channels_last: Function,
    fits: Function, fits_backward: Function, wants_cache: bool = False,
) -> None:  # fmt: skip
    """Register the convolutions, from sequences to volumes, and their transposes.

    All get images and output gradients of rank 4 or 5. apply(images, weight, bias, geometry, groups, dtype, version,
    transposed) -> the convolution or its transpose; version: of the weight, if `wants_cache`. weight_gradient(images,
    outputs, geometry, groups, dtype, buffer). column_sums(outputs [N, ..., C], dtype or None) -> the gradient of the
    bias. channels_last(outputs, geometry, groups) -> what the others get; its geometry is the op's, of 1 to 3 axes.
    """

    def register(op: Any, geometry_of: Callable[..., ConvGeometry], transposed: bool) -> None:
        def forward(input: Array, weight: Array, bias: Any, *options: Any, dtype: DType, versions: Any = _NONE) -> Any:
            named = dict(zip(op.signature.param_names, options, strict=True))
            groups = named.pop("groups")
            w = geometry_of(op.name, input, weight, **named)
            axes = len(w.input_size)
            out = apply(to_2d(input, axes), weight, bias, w.as_2d, groups, dtype, versions[1], transposed)
            return from_2d(out, input.ndim, axes), Saved(input=input, weight=weight, geometry=w)

        def backward(
            dy: Array, saved: Saved, needs: Any, *, groups: int, versions: Any = _NONE, grad_buffers: Any = _NONE,
            **options: Any,
        ) -> Any:  # fmt: skip
            axes, w, dx, dw = len(saved.geometry.input_size), saved.geometry.as_2d, None, None
            grad = channels_last(to_2d(dy, axes), saved.geometry, groups)
            if needs[0]:  # the transpose of the forward
                dx = apply(grad, saved.weight, None, w, groups, needs[0], versions[1], not transposed)
                dx = from_2d(dx, dy.ndim, axes)
            if needs[1]:
                input, buffer = to_2d(saved.input, axes), grad_buffers[1] if needs[1] == float32 and axes > 1 else None
                images, outputs = (grad, input) if transposed else (input, grad)
                dw = from_2d(weight_gradient(images, outputs, w, groups, needs[1], buffer), axes + 2, axes)
            return dx, dw, column_sums(with_channels_inner(grad), needs[2])

        on(op, backend, forward, fits, wants_cache=wants_cache)
        on(op.backward_primitive, backend, backward, fits_backward, wants_cache=wants_cache)

    for op in (conv.conv1d, conv.conv2d, conv.conv3d):
        register(op, conv.geometry_of, transposed=False)
    for op in (conv.conv_transpose1d, conv.conv_transpose2d, conv.conv_transpose3d):
        register(op, conv.transposed_geometry, transposed=True)
