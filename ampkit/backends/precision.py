"""Whether float32 matrix products and convolutions may round their operands to TF32, as PyTorch's settings say."""

from __future__ import annotations

from ..base.errors import ArgumentError

_PRECISIONS = ("highest", "high", "medium")
_matmul = _PRECISIONS[0]
_convolution: bool | None = None  # None: as for matrix products


def set_float32_matmul_precision(precision: str) -> None:
    """Choose how float32 matrix products are computed, from the next one on.

    "highest", the default: in float32. "high" and "medium": an NVIDIA GPU may round the operands to TF32, which has the
    range of float32 and 10 bits after the point; sums stay in float32. Convolutions follow, unless
    `backends.cudnn.allow_tf32` was set. Products of 16-bit tensors do not change, nor does anything on a CPU.
    Raises ArgumentError for any other word.
    """
    global _matmul
    if not isinstance(precision, str) or precision not in _PRECISIONS:
        raise ArgumentError("set_float32_matmul_precision", f"one of {', '.join(_PRECISIONS)}", repr(precision))
    _matmul = precision


def get_float32_matmul_precision() -> str:
    """How float32 matrix products are computed: "highest", "high" or "medium"."""
    return _matmul


def convolutions_use_tf32() -> bool:
    """Whether float32 convolutions on a GPU may round their operands to TF32."""
    return _matmul != "highest" if _convolution is None else _convolution


def convolution_setting() -> bool | None:
    """What `set_convolutions_use_tf32` set last."""
    return _convolution


def set_convolutions_use_tf32(allowed: bool | None) -> None:
    """Let float32 convolutions use TF32 or not, whatever holds for matrix products; None: as for matrix products."""
    global _convolution
    _convolution = allowed
