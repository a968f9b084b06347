"""What GPT and BERT share: the check of their input, and their preset sizes."""

from __future__ import annotations

from typing import Any

from ..base import dtypes
from ..base.errors import ArgumentError, DTypeError, ShapeError
from ..core.arguments import shown
from ..core.tensor import Tensor


def need_tokens(where: str, name: str, tokens: Tensor, longest: int) -> None:
    """Raise ShapeError unless `tokens` is [N, T] with 1 <= T <= longest, DTypeError unless it holds integers."""
    if not isinstance(tokens, Tensor):
        raise DTypeError(where, f"{name} as a Tensor", shown(tokens))
    if tokens.ndim != 2 or not tokens.numel() or tokens.shape[1] > longest:
        raise ShapeError(where, f"{name} [N, T] with N >= 1 and 1 <= T <= {longest}", f"shape {tuple(tokens.shape)}")
    if tokens.is_floating_point() or tokens.array.dtype == dtypes.bool_:
        raise DTypeError(where, f"{name} of integers", tokens.dtype.name)


def preset_sizes(where: str, presets: dict[str, dict[str, int]], preset: str, changes: dict[str, Any]) -> Any:
    """The arguments of a preset, with `changes`. Raises ArgumentError for an unknown one."""
    if not isinstance(preset, str) or preset not in presets:
        raise ArgumentError(where, f"a preset: {', '.join(presets)}", repr(preset))
    return {**presets[preset], **changes}
