"""`functorch.experimental`: `vmap` in so many chunks, and the names of `torch.func` that began there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .... import func
from ....base.errors import ArgumentError
from ....core.arguments import shown
from ....func.batching import samples_of
from .func import replace_all_batch_norm_modules_

__all__ = ["chunk_vmap", "functionalize", "jacfwd", "jvp", "replace_all_batch_norm_modules_"]

functionalize, jacfwd, jvp = func.functionalize, func.jacfwd, func.jvp


def chunk_vmap(
    func: Callable[..., Any], in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error", chunks: int = 2
) -> Callable[..., Any]:
    """`vmap` whose samples run in `chunks` parts, one after the other. Raises ArgumentError for fewer than one."""
    if type(chunks) is not int or chunks < 1:
        raise ArgumentError("chunk_vmap", "chunks as an integer from 1", shown(chunks))

    def mapped(*args: Any, **kwargs: Any) -> Any:
        size = -(-samples_of(in_dims, args, kwargs) // chunks)
        return _vmap(func, in_dims, out_dims, randomness, chunk_size=size)(*args, **kwargs)

    return mapped


_vmap = func.vmap
