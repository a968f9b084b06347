"""Older questions about autocast, one per device."""

from __future__ import annotations

from ...base.public_dtypes import dtype
from ...core.policy import get_autocast_dtype, is_autocast_enabled


def get_autocast_gpu_dtype() -> dtype:
    """`get_autocast_dtype("cuda")`."""
    return get_autocast_dtype("cuda")


def get_autocast_cpu_dtype() -> dtype:
    """`get_autocast_dtype("cpu")`."""
    return get_autocast_dtype("cpu")


def is_autocast_cpu_enabled() -> bool:
    """`is_autocast_enabled("cpu")`."""
    return is_autocast_enabled("cpu")


def is_autocast_cache_enabled() -> bool:
    """True: copies of weights are cached."""
    return True


def clear_autocast_cache() -> None:
    """Does nothing: a copy is used only for the version of the weights that it was made of."""
