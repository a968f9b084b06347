"""`torch.nn.parallel`: DataParallel on one device, DistributedDataParallel by processes."""

from __future__ import annotations

from typing import Any

from ....nn import Module
from ....nn.parallel import DistributedDataParallel

__all__ = ["DataParallel", "DistributedDataParallel"]


class DataParallel(Module):
    """The module itself, on its device: one process drives one device.

    module: stands under that name, as in PyTorch, so that the keys of `state_dict` are the same.
    """

    _wraps_model = True

    def __init__(self, module: Module, device_ids: Any = None, output_device: Any = None, dim: int = 0):
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self.module(*inputs, **kwargs)
