"""`torch._tensor_str`: how tensors are printed, for a time."""

from ....base.tensor_text import printoptions, set_printoptions

__all__ = ["printoptions", "set_printoptions"]
