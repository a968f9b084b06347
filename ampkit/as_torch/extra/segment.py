"""`torch.segment_reduce`: a value of each run of neighbors along an axis."""

from __future__ import annotations

from ... import ops
from ...base.errors import ArgumentError, ShapeError
from ...core.tensor import Tensor

__all__ = ["segment_reduce"]

_OPS = {"sum": "sum", "mean": "sum", "max": "amax", "min": "amin", "prod": "prod"}
_EMPTY = {"sum": 0.0, "max": float("-inf"), "min": float("inf"), "prod": 1.0}


def segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Tensor:
    """The "sum", "mean", "max", "min" or "prod" of segments of `data` [batch..., n, rest...] along `axis`.

    lengths: [batch..., segments], which add up to n; or offsets: [batch..., segments + 1], from 0 to n. -> [batch...,
    segments, rest...]. initial: of each segment another value, and the result of an empty one, which else is 0, nan,
    -inf, inf or 1. Differentiable with respect to `data`. Raises ArgumentError for another reduction or for neither
    lengths nor offsets, ShapeError for lengths that do not add up.
    """
    if reduce not in _OPS:
        raise ArgumentError("segment_reduce", f"reduce among {', '.join(_OPS)}", repr(reduce))
    if offsets is not None:
        lengths = offsets.diff(dim=-1)
    if lengths is None:
        raise ArgumentError("segment_reduce", "lengths or offsets", "indices" if indices is not None else "neither")
    axis %= data.dim()
    if lengths.dim() != axis + 1 or lengths.shape[:axis] != data.shape[:axis]:
        raise ShapeError(
            "segment_reduce", f"lengths of shape [{data.shape[:axis]}, segments]", f"{tuple(lengths.shape)}"
        )
    length, count = data.shape[axis], lengths.shape[axis]
    ends = lengths.cumsum(-1)
    if not unsafe and (bool((lengths < 0).any()) or (count and bool((ends[..., -1] != length).any()))):
        raise ShapeError("segment_reduce", f"lengths of at least 0 that add up to {length}", f"{lengths.tolist()}")
    # The segment of each element: how many segments end at it or before.
    places = (ops.arange(length, device=data.device)[:, None] >= ends[..., None, :]).sum(-1)
    index = places.reshape(*places.shape, *[1] * (data.dim() - axis - 1)).expand(data.shape)
    start = _EMPTY["sum" if reduce == "mean" else reduce] if initial is None else float(initial)
    shape = (*data.shape[:axis], count, *data.shape[axis + 1 :])
    whole = ops.full(shape, start, dtype=data.dtype, device=data.device)
    found = whole.scatter_reduce(axis, index, data, _OPS[reduce], include_self=initial is not None)
    if reduce != "mean":
        return found
    counts = lengths.reshape(*lengths.shape, *[1] * (data.dim() - axis - 1))
    return found / (counts if initial is None else counts.clamp(min=1)).to(data.dtype)
