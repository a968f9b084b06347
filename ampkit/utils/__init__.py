"""PyTorch's import path: `from ampkit.utils.data import DataLoader`; `tensorboard`, `swap_tensors`,
`flop_counter`."""

from __future__ import annotations

from ..base.errors import DTypeError, StateError
from ..core.parameter import Parameter, become_parameter
from ..core.tensor import Tensor
from . import data, tensorboard

__all__ = ["data", "swap_tensors", "tensorboard"]


def swap_tensors(t1: Tensor, t2: Tensor) -> None:
    """Let two leaves change places: memory, shape, dtype, gradient, class, and the attributes that scripts gave them.

    What holds one of them, as a module or an optimizer does, sees the other's values from then on.
    Raises DTypeError for anything but Tensors, StateError for the result of a recorded operation.
    """
    for tensor in (t1, t2):
        if not isinstance(tensor, Tensor):
            raise DTypeError("swap_tensors", "Tensors", f"a {type(tensor).__name__}")
        if not tensor.is_leaf:
            raise StateError("swap_tensors", "leaves", "the result of a recorded operation", "use .detach()")
    memories, trained, kinds = (t1.detach(), t2.detach()), (t1.requires_grad, t2.requires_grad), (type(t1), type(t2))
    gradients, attributes = (t1.grad, t2.grad), (dict(vars(t1)), dict(vars(t2)))
    for tensor in (t1, t2):
        tensor.grad = None  # the gradients keep their values
        tensor.requires_grad = False
    for tensor, other in ((t1, 1), (t2, 0)):
        if kinds[other] is not type(tensor):
            _become(tensor, kinds[other])
        tensor.data = memories[other]
        tensor.requires_grad = trained[other]
        tensor.grad = gradients[other]
        vars(tensor).clear()
        vars(tensor).update(attributes[other])


def _become(tensor: Tensor, kind: type[Tensor]) -> None:
    if issubclass(kind, Parameter) and not isinstance(tensor, Parameter):
        become_parameter(tensor)
    tensor.__class__ = kind
