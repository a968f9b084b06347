"""`torch.nn.grad`: the gradients of convolutions as functions, by the tape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .... import ops
from ....core.autograd.tape import grad
from ....core.tensor import Tensor


def _input_gradient(convolution: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def gradient(
        input_size: Any, weight: Tensor, grad_output: Tensor, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:  # fmt: skip
        options = (None, stride, padding, dilation, groups)
        return _gradient(lambda given: convolution(given, weight, *options), input_size, grad_output, weight)

    gradient.__name__ = f"{convolution.__name__}_input"
    gradient.__doc__ = f"{convolution.__name__}'s gradient for an input of shape input_size, given that of its output."
    return gradient


def _weight_gradient(convolution: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def gradient(
        input: Tensor, weight_size: Any, grad_output: Tensor, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:  # fmt: skip
        options = (None, stride, padding, dilation, groups)
        return _gradient(lambda given: convolution(input, given, *options), weight_size, grad_output, input)

    gradient.__name__ = f"{convolution.__name__}_weight"
    gradient.__doc__ = f"{convolution.__name__}'s gradient for a weight of shape weight_size, given that of its output."
    return gradient


def _gradient(function: Callable[[Tensor], Tensor], size: Any, grad_output: Tensor, other: Tensor) -> Tensor:
    # recorded where what it depends on requires grad, so that it can be differentiated again
    given = ops.zeros(tuple(size), dtype=other.dtype, device=other.device, requires_grad=True)
    recorded = grad_output.requires_grad or other.requires_grad
    (found,) = grad([function(given)], [given], [grad_output], create_graph=recorded)
    assert found is not None
    return found


conv1d_input, conv1d_weight = _input_gradient(ops.conv1d), _weight_gradient(ops.conv1d)
conv2d_input, conv2d_weight = _input_gradient(ops.conv2d), _weight_gradient(ops.conv2d)
conv3d_input, conv3d_weight = _input_gradient(ops.conv3d), _weight_gradient(ops.conv3d)
