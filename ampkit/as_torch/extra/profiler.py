"""`torch.profiler`."""

from ...debug.profiler import profile

__all__ = ["profile"]
