"""`torch.nn.attention`: which kernel attention may use, which ampkit's dispatch decides."""

from enum import Enum

from ..backends.cuda import sdp_kernel

__all__ = ["SDPBackend", "sdpa_kernel"]


class SDPBackend(Enum):
    """PyTorch's kernels of attention."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


sdpa_kernel = sdp_kernel
