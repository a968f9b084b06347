"""Tensors taken apart and put together: turns, differences, windows, blocks, products of everything with everything."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations as _combinations
from itertools import combinations_with_replacement as _with_replacement
from operator import index
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.arguments import is_whole
from ampkit.core.tensor import Tensor

from ..indexing.subscript import index_select, narrow
from ..pointwise.arithmetic import mul, sub
from ..pointwise.comparison import ne
from .axes import axes, axis_of
from .concatenation import _PIECES, cat, split, stack
from .diagonals import diag
from .rearrange import flip, pad
from .stacks import atleast_2d, meshgrid
from .view import flatten, movedim, reshape, transpose

__all__ = [
    "block_diag", "cartesian_prod", "combinations", "conj", "conj_physical", "diagflat", "diff", "dsplit", "fliplr",
    "flipud", "hsplit", "kron", "ravel", "real", "resolve_conj", "rot90", "tensor_split", "vsplit",
]  # fmt: skip


def kron(input: Tensor, other: Tensor) -> Tensor:
    """Kronecker's product: each element of input times all of other, missing leading axes added; [a], [b] -> [a b]."""
    rank = max(input.ndim, other.ndim)
    ours, theirs = ((1,) * (rank - t.ndim) + tuple(t.shape) for t in (input, other))
    left = reshape(input, [n for size in ours for n in (size, 1)])
    right = reshape(other, [n for size in theirs for n in (1, size)])
    return reshape(mul(left, right), [a * b for a, b in zip(ours, theirs, strict=True)])


def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """input turned k times by 90 degrees, from the first of two `dims` towards the second. A copy.

    Raises ShapeError unless dims are two different axes.
    """
    over = axes("rot90", tuple(dims), input.ndim) if len(dims) else ()
    if len(over) != 2:
        raise ShapeError("rot90", "two different dims", f"{dims} of shape {tuple(input.shape)}")
    if k % 2 == 0:
        return flip(input, over if k % 4 else ())
    return transpose(flip(input, over[1] if k % 4 == 1 else over[0]), *over)


def fliplr(input: Tensor) -> Tensor:
    """input with the order of its second axis reversed."""
    return flip(input, axis_of("fliplr", input, 1))


def flipud(input: Tensor) -> Tensor:
    """input with the order of its first axis reversed."""
    return flip(input, axis_of("flipud", input, 0))


def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """A matrix of zeros with the elements of input, in row-major order, on the diagonal numbered `offset`."""
    return diag(flatten(input), offset)


def diff(
    input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """The differences of neighbours along `dim`, n times over; of bool whether they differ.

    prepend, append: joined to input first, unless n is 0. Raises ArgumentError for a negative n.
    """
    if n < 0:
        raise ArgumentError("diff", "n from 0", f"{n}")
    at = axis_of("diff", input, dim)
    more = [t for t in (prepend, input, append) if t is not None] if n else [input]
    found = cat(more, at) if len(more) > 1 else input
    for _ in range(min(n, found.shape[at])):
        length = found.shape[at] - 1
        pair = narrow(found, at, 1, length), narrow(found, at, 0, length)
        found = ne(*pair) if found.dtype == np.bool_ else sub(*pair)
    return found


def tensor_split(input: Tensor, indices_or_sections: int | Sequence[int] | Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces along `dim`: a number of nearly equal ones, the first the longer, or cut at places. Shares memory."""
    at = axis_of("tensor_split", input, dim)
    length, cuts = input.shape[at], indices_or_sections
    if isinstance(cuts, Tensor):
        if cuts.ndim > 1 or cuts.is_floating_point():
            got = f"{cuts.dtype.name} of shape {tuple(cuts.shape)}"
            raise DTypeError("tensor_split", "a number or a vector of integers", got)
        cuts = cuts.tolist()
    if is_whole(cuts):
        cuts = index(cuts)
        if not 1 <= cuts < _PIECES:
            raise ArgumentError("tensor_split", f"sections from 1, below {_PIECES}", f"{cuts}")
        return split(input, [length // cuts + (i < length % cuts) for i in range(cuts)], at)
    ends = [min(max(c + length if c < 0 else c, 0), length) for c in (*cuts, length)]
    starts = [0, *ends[:-1]]
    return tuple([narrow(input, at, min(a, b), max(b - a, 0)) for a, b in zip(starts, ends, strict=True)])


def hsplit(input: Tensor, indices_or_sections: int | Sequence[int] | Tensor) -> tuple[Tensor, ...]:
    """`tensor_split` along the second axis, of vectors along their only one; a number has to divide it."""
    return _even_split("hsplit", input, indices_or_sections, 0 if input.ndim == 1 else 1)


def vsplit(input: Tensor, indices_or_sections: int | Sequence[int] | Tensor) -> tuple[Tensor, ...]:
    """`tensor_split` along the first of at least two axes; a number has to divide it."""
    return _even_split("vsplit", input, indices_or_sections, 0, 2)


def dsplit(input: Tensor, indices_or_sections: int | Sequence[int] | Tensor) -> tuple[Tensor, ...]:
    """`tensor_split` along the third axis; a number has to divide it."""
    return _even_split("dsplit", input, indices_or_sections, 2, 3)


def _even_split(where: str, input: Tensor, sections: Any, dim: int, least: int = 1) -> tuple[Tensor, ...]:
    if input.ndim < max(least, dim + 1):
        raise ShapeError(where, f"at least {max(least, dim + 1)} axes", f"shape {tuple(input.shape)}")
    if is_whole(sections) and (sections < 1 or input.shape[dim] % sections):
        raise ShapeError(where, f"a number of sections that divides {input.shape[dim]}", f"{sections}")
    return tensor_split(input, sections, dim)


def unfold_along(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of `size` along an axis, one every `step`: [.., n, ..] -> [.., windows, .., size]. A copy.

    A number is an axis of one element: [] -> [size]. Raises ShapeError for windows longer than the axis, ArgumentError
    for a step below 1.
    """
    if not input.ndim:
        return reshape(unfold_along(reshape(input, 1), dimension, size, step), -1)[:size]
    at = axis_of("unfold", input, dimension)
    if step < 1 or size < 0:
        raise ArgumentError("unfold", "a size from 0 and a step from 1", f"size={size}, step={step}")
    if size > input.shape[at]:
        raise ShapeError("unfold", f"windows of at most {input.shape[at]}", f"{size}")
    starts = np.arange(0, input.shape[at] - size + 1, step)
    places = backends.backend_of(input.array).constant((starts[:, None] + np.arange(size)).reshape(-1))
    taken = index_select(input, at, Tensor(places))
    rows = reshape(taken, (*input.shape[:at], len(starts), size, *input.shape[at + 1 :]))
    return movedim(rows, at + 1, -1)


def block_diag(*tensors: Any) -> Tensor:
    """A matrix of zeros with matrices along its diagonal; vectors are rows, numbers [1, 1]. Raises ShapeError else."""
    if not all(isinstance(t, Tensor) and t.ndim < 3 for t in tensors) or not tensors:
        raise ShapeError("block_diag", "matrices, vectors or numbers, as Tensors", f"{len(tensors)} others or none")
    blocks = [atleast_2d(t) for t in tensors]
    width, rows, before = int(np.sum([b.shape[1] for b in blocks])), [], 0
    for block in blocks:
        rows.append(pad(block, (before, width - before - block.shape[1])))
        before += block.shape[1]
    return cat(rows, 0)


def cartesian_prod(*tensors: Any) -> Tensor:
    """Every choice of one element from each of the vectors, as rows: [n], [m] -> [n m, 2]; of one vector, itself."""
    given = _vectors("cartesian_prod", tensors)
    return given[0] if len(given) == 1 else stack([flatten(grid) for grid in meshgrid(*given)], 1)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """Every choice of r elements of a vector, in its order, as rows: [n] -> [choices, r]."""
    _vectors("combinations", (input,))
    if r < 0:
        raise ArgumentError("combinations", "r from 0", f"{r}")
    chosen = list((_with_replacement if with_replacement else _combinations)(range(len(input)), r))
    places = backends.backend_of(input.array).constant(np.array(chosen, np.int64).reshape(-1))
    return reshape(index_select(input, 0, Tensor(places)), (len(chosen), r) if r else (0,))


def _vectors(where: str, tensors: Any) -> Any:
    for t in tensors:
        if not isinstance(t, Tensor):
            raise DTypeError(where, "Tensors", type(t).__name__, "wrap it: ampkit.tensor(...)")
    if not tensors or any(t.ndim != 1 for t in tensors):
        raise ShapeError(where, "vectors", ", ".join(str(tuple(t.shape)) for t in tensors) or "none")
    return tensors


def ravel(input: Tensor) -> Tensor:
    """All elements in row-major order, on one axis; shares memory where it can."""
    return flatten(input)


def conj(input: Tensor) -> Tensor:
    """The tensor itself: there are no complex numbers."""
    return input


conj_physical = resolve_conj = real = conj
