"""How precisely float32 matrix products are computed: PyTorch's setting, for the machines that have a faster way."""

from __future__ import annotations

from ..base.errors import ArgumentError

_WORDS = ("highest", "high", "medium")
_chosen = _WORDS[0]


def set_float32_matmul_precision(precision: str) -> None:
    """Choose how float32 matrix products are computed, from the next one on.

    "highest", the default: in float32. "high" and "medium": an NVIDIA GPU may round the operands to TF32, which has the
    range of float32 and 10 bits after the point; sums stay in float32. Products of 16-bit tensors do not change, nor
    does anything on a CPU. Raises ArgumentError for any other word.
    """
    global _chosen
    if not isinstance(precision, str) or precision not in _WORDS:
        raise ArgumentError("set_float32_matmul_precision", f"one of {', '.join(_WORDS)}", repr(precision))
    _chosen = precision


def get_float32_matmul_precision() -> str:
    """How float32 matrix products are computed: "highest", "high" or "medium"."""
    return _chosen
