"""Bodies of dropout: one product with the mask, in the format of the input, by all threads."""

from __future__ import annotations

from typing import Any

from ...core.dtypes import DType
from ...core.random import keep_mask
from ...core.saved import Saved
from ...ops.dropout import dropout_, growth
from . import binary
from .onednn import WORTH, HostArray


def _fits(array: HostArray) -> bool:
    return binary.fits(array, array)


def _masked(values: HostArray, keep: HostArray, p: float) -> HostArray:
    return binary.by_mask(values, keep, growth(p))


@dropout_.on("cpu", when=lambda input, p, seed, call, shape: shape is None and _fits(input), least=WORTH)
def dropout_cpu(input: HostArray, p: float, seed: int, call: int, shape: None, *, dtype: DType) -> Any:
    keep = keep_mask(seed, call, p, input.shape)
    return _masked(input, keep, p), Saved(keep=keep)


def _back_fits(dy: HostArray, saved: Saved, needs: Any, **params: Any) -> bool:
    return dy.shape == saved.keep.shape and needs[0] == dy.dtype and _fits(dy)


@dropout_.backward_primitive.on("cpu", when=_back_fits, least=WORTH)  # type: ignore[union-attr,untyped-decorator]
def dropout_backward_cpu(
    dy: HostArray, saved: Saved, needs: Any, p: float, seed: int, call: int, shape: Any
) -> HostArray:
    return _masked(dy, saved.keep, p)
