"""Registers one function as the kernel of a primitive, under the primitive's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def on(primitive: Any, backend: str, run: Callable[..., Any], when: Any = None, **options: Any) -> Any:
    """Register `run` for an op or a primitive, with the predicate `when`; options: those of `Primitive.on`.

    -> the Kernel, whose `backward` registers a backward of its own.
    """
    kernel = primitive.on(backend, when, **options)(run)
    kernel.name = f"{primitive.name}_{backend}"
    return kernel
