"""Old names of `torch.autograd.function`."""

from ....autograd.function import Function


class InplaceFunction(Function):
    """A Function: each may change its inputs in place, once it has said so by `ctx.mark_dirty`."""
