"""PyTorch's address of what reads a graph, its saved tensors and its gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..base.errors import DTypeError
from ..core.arguments import checked_constructor
from ..core.autograd import multi_hook, node
from ..core.autograd.mutation import allow_mutation_on_saved_tensors
from ..core.autograd.node import GradientEdge, Node
from ..core.autograd.saved_hooks import disable_saved_tensors_hooks, saved_tensors_hooks
from ..core.tensor import Tensor
from ..ops.argument_checks import checked

__all__ = [
    "GradientEdge", "Node", "allow_mutation_on_saved_tensors", "disable_saved_tensors_hooks", "get_gradient_edge",
    "increment_version", "register_multi_grad_hook", "save_on_cpu", "saved_tensors_hooks",
]  # fmt: skip


get_gradient_edge = checked(node.get_gradient_edge)
register_multi_grad_hook = checked(multi_hook.register_multi_grad_hook)
checked_constructor(disable_saved_tensors_hooks)


class save_on_cpu(saved_tensors_hooks):
    """Within the block, keep what the tape saves in the host's memory, and copy it back in backward.

    pin_memory and device_type change nothing: copies wait for the device. What is on the CPU already is not copied.
    """

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda"):
        super().__init__(_to_cpu, _from_cpu)


def _to_cpu(tensor: Tensor) -> Any:
    return tensor if tensor.device.type == "cpu" else (tensor.cpu(), tensor.device)


def _from_cpu(kept: Any) -> Tensor:
    return kept if isinstance(kept, Tensor) else kept[0].to(kept[1])


@checked
def increment_version(tensor: Tensor | Iterable[Tensor]) -> None:
    """Note a change in place that ampkit cannot see, of one tensor or several.

    A backward that needs the values from before raises. Raises DTypeError for anything else.
    """
    for one in (tensor,) if isinstance(tensor, Tensor) else tensor:
        if not isinstance(one, Tensor):
            raise DTypeError("increment_version", "a Tensor, or several", f"a {type(one).__name__}")
        one.changed()
