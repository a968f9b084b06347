"""`torch.utils.checkpoint`: activation checkpointing, which is `ampkit.recompute`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from enum import Enum
from typing import Any

from ....core.autograd.recompute import recompute
from ....core.tensor import Tensor
from ...refused import refused
from ..random import get_rng_state, set_rng_state

__all__ = [
    "CheckpointPolicy", "SelectiveCheckpointContext", "checkpoint", "checkpoint_sequential",
    "create_selective_checkpoint_contexts", "get_device_states", "noop_context_fn", "set_device_states",
]  # fmt: skip

_ALL = "checkpoint recomputes all of a function: give it the part that is to be recomputed"
SelectiveCheckpointContext = refused("torch.utils.checkpoint.SelectiveCheckpointContext", _ALL)
create_selective_checkpoint_contexts = refused("torch.utils.checkpoint.create_selective_checkpoint_contexts", _ALL)


class CheckpointPolicy(Enum):
    """What a policy says of an op; there are no policies."""

    MUST_SAVE = 0
    PREFER_SAVE = 1
    MUST_RECOMPUTE = 2
    PREFER_RECOMPUTE = 3
    MUST_CPU_OFFLOAD = 4
    PREFER_CPU_OFFLOAD = 5


def noop_context_fn() -> tuple[Any, Any]:
    """Two contexts that change nothing."""
    return nullcontext(), nullcontext()


def get_device_states(*args: Any) -> tuple[list[int], list[Any]]:
    """The GPUs of the tensors among `args`, and the random state for each."""
    devices = {each.device for each in args if isinstance(each, Tensor) and each.device.type == "cuda"}
    numbers = sorted({device.index or 0 for device in devices})
    return numbers, [get_rng_state() for _ in numbers]


def set_device_states(devices: Iterable[int], states: Iterable[Any], **ignored: Any) -> None:
    """Set the random state, which is one for all devices."""
    for state in states:
        set_rng_state(state)


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
