"""Switches of `torch.backends.cuda` that change no result: ampkit chooses the kernel of attention by its operands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ....backends.cuda import is_built, matmul

__all__ = [
    "cudnn_sdp_enabled", "enable_cudnn_sdp", "enable_flash_sdp", "enable_math_sdp", "enable_mem_efficient_sdp",
    "flash_sdp_enabled", "is_built", "math_sdp_enabled", "matmul", "mem_efficient_sdp_enabled", "sdp_kernel",
]  # fmt: skip


def enable_flash_sdp(enabled: bool) -> None:
    """Does nothing: the kernel of attention is chosen by dispatch."""


enable_cudnn_sdp = enable_math_sdp = enable_mem_efficient_sdp = enable_flash_sdp


def flash_sdp_enabled() -> bool:
    """True: every kernel may be chosen."""
    return True


cudnn_sdp_enabled = math_sdp_enabled = mem_efficient_sdp_enabled = flash_sdp_enabled


@contextmanager
def sdp_kernel(*choices: Any, **enabled: Any) -> Iterator[None]:
    """A context that changes nothing: the kernel of attention is chosen by dispatch."""
    yield
