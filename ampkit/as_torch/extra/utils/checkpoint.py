"""`torch.utils.checkpoint`: activation checkpointing, which is `ampkit.recompute`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ....core.autograd.recompute import recompute


def checkpoint(
    function: Callable[..., Any], *args: Any, use_reentrant: bool | None = None, preserve_rng_state: bool = True,
    context_fn: Any = None, determinism_check: str = "default", debug: bool = False, early_stop: bool = True,
    **kwargs: Any,
) -> Any:  # fmt: skip
    """`ampkit.recompute(function, *args, **kwargs)`: random state is always restored."""
    return recompute(function, *args, **kwargs)


def checkpoint_sequential(
    functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, **kwargs: Any
) -> Any:
    """Call `functions` in turn, a Sequential or a list of modules, each of `segments` parts recomputed in backward."""
    parts = list(functions.children() if hasattr(functions, "children") else functions)
    size = max(1, len(parts) // segments)
    cuts = [*range(0, size * (segments - 1), size), size * (segments - 1)]
    for i, start in enumerate(cuts):
        end = cuts[i + 1] if i + 1 < len(cuts) else len(parts)
        input = recompute(_chain(parts[start:end]), input)
    return input


def _chain(parts: Iterable[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def run(x: Any) -> Any:
        for part in parts:
            x = part(x)
        return x

    return run
