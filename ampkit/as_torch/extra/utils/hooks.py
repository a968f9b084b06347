"""`torch.utils.hooks`."""

from ....core.autograd.hooks import Handle as RemovableHandle

__all__ = ["RemovableHandle"]
