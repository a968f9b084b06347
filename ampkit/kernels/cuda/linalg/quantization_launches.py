"""Launches of quantization.cu: codes and scales of matrices and of their transposes, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.array_layout import supports_array
from ampkit.backends.cuda.launch.flat import BLOCK, grid_for
from ampkit.backends.cuda.nvrtc import C_NAMES, blocks_for, drawn, launch, typed
from ampkit.base.dtypes import Array, DType, float32, int8, uint8
from ampkit.core.policy.recipe import E2M1, E4M3, E5M2, INT8, Quantization

TILE, STRIP, IN_TILE = 128, 16, 1024  # as in quantization.cu
STRUCTS = {E4M3: "Float8E4M3FN", E5M2: "Float8E5M2", E2M1: "Float4E2M1FN", INT8: "Int8"}
_SCALINGS = {"float32": 0, "power_of_2": 1, "float8_e8m0fnu": 2, "float8_e4m3fn": 3}
_IN_8_BITS, _TWO_LEVELS = ("float8_e8m0fnu", "float8_e4m3fn"), "float8_e4m3fn"
_STOCHASTIC, _HADAMARD, _GIVEN, _OF_MATRIX = 1, 2, 4, 8
_WHOLE = 31  # the exponent of the extent of a block that is the whole axis
_SOURCE = "linalg/quantization"

Draw = tuple[int, int]  # the (seed, call) of random bits


class Found(NamedTuple):
    """A quantized matrix: codes [R, C], of 4 bits [R, (C + 1) // 2], contiguous; scales of its blocks; the factor."""

    codes: Array
    scales: Array
    factor: Array | None


def has_kernel(array: Array, how: Quantization) -> bool:
    """Whether the kernel takes a matrix of this dtype and size, and blocks of these extents.

    Extents are powers of two up to 128, along the axis that is summed over at least 16, or whole axes.
    """
    rows, columns = how.block
    if (rows, columns) not in ((None, None), (1, None)):
        if rows not in (1, 2, 4, 8, 16, 32, 64, 128) or columns not in (16, 32, 64, 128):
            return False
    elif how.scale in _IN_8_BITS:
        return False
    return array.ndim == 2 and supports_array(array)


def quantize(
    array: Array,
    first: Quantization | None,
    second: Quantization | None = None,
    scale: Array | None = None,
    draws: tuple[Draw | None, Draw | None] = (None, None),
) -> tuple[Found | None, Found | None, Array | None]:
    """`array` [R, C] by `first`, and its transpose [C, R] by `second`, in one reading; None for what is not asked for.

    Both have one format, scaling and epsilon. scale: float32 [1, 1], what values are multiplied by; the largest
    magnitude [1, 1] is then returned, too. draws: of the random bits of both. Blocks of whole axes, and the factor of a
    matrix, take a reading more, for their maxima.
    """
    if not _is_row_major(array):
        if _is_row_major(array.T):
            turned, found, largest = quantize(array.T, second, first, scale, draws[::-1])
            return found, turned, largest
        array = array.copy()
    backend: Any = backends.backend_of(array)
    pitch = array.strides[0] // array.itemsize if array.shape[0] > 1 else array.shape[1]
    about = array, *map(np.uint32, array.shape), np.int64(pitch)
    grid = blocks_for(array.shape[0], TILE) * blocks_for(array.shape[1], TILE)
    shared = 4 * IN_TILE + TILE * (TILE * array.itemsize + 4)
    ways = _Way(backend, first, array.shape, scale), _Way(backend, second, array.shape[::-1], scale)
    asked = [way for way in ways if way.how is not None]
    how: Any = asked[0].how
    if scale is not None:
        asked[0].maxima = backend.zeros((1, 1), _BITS)
    elif asked[0].needs_maxima or asked[-1].needs_maxima:
        for way in asked:
            way.add_maxima()
        same = len(asked) == 2 and first == second and how.block == (None, None) and not how.hadamard
        passed = [*ways[0].of_maxima(), *(_NOTHING if same else ways[1].of_maxima())]
        launch(_SOURCE, typed("block_maxima", array.dtype), grid, BLOCK, *about, *passed, shared=shared)
        if same:
            ways[1].maxima = ways[0].maxima
    entry = f"quantize_tiles<{STRUCTS[how.format]}, {C_NAMES[array.dtype]}>"
    seeds = [drawn(backend, *(draw or (0, 0))) for draw in draws]
    recorded = next((each[2] for each, draw in zip(seeds, draws, strict=True) if draw is not None), None)
    rest = np.uint32(_SCALINGS[how.scale]), np.float32(how.epsilon), scale, recorded
    passed = [*ways[0].arguments(*seeds[0][:2]), *ways[1].arguments(*seeds[1][:2])]
    launch(_SOURCE, entry, grid, BLOCK, *about, *passed, *rest, shared=shared)
    largest = None if scale is None or asked[0].maxima is None else asked[0].maxima.view(float32)
    return ways[0].found, ways[1].found, largest


_BITS = np.dtype(np.uint32)
_NOTHING = (None, *(np.uint32(0),) * 3)  # of the arguments of `block_maxima`


def _is_row_major(array: Array) -> bool:
    rows, columns = array.shape
    down, along = array.strides
    return (columns == 1 or along == array.itemsize) and (rows == 1 or down >= columns * array.itemsize)


class _Way:
    """A matrix of `shape`, or its transpose, as it is quantized, and the arrays for it; how: None asks for nothing."""

    def __init__(self, backend: Any, how: Quantization | None, shape: tuple[int, int], scale: Array | None):
        self.backend, self.how = backend, how
        self.maxima: Array | None = None
        self.found: Found | None = None
        if how is None:
            return
        rows, columns = shape[0], shape[1] + (-shape[1] % STRIP if how.hadamard else 0)
        self.extents = p, q = [_WHOLE if each is None else each.bit_length() - 1 for each in how.block]
        self.blocks = (rows - 1 >> p) + 1, (columns - 1 >> q) + 1
        self.needs_maxima = scale is None and (_WHOLE in (p, q) or how.scale == _TWO_LEVELS)
        self.flags = _STOCHASTIC * how.stochastic | _HADAMARD * how.hadamard | _GIVEN * (scale is not None)
        codes = backend.empty((rows, -(-columns // 2) if how.format == E2M1 else columns), uint8)
        scales = backend.empty(self.blocks, uint8 if how.scale in _IN_8_BITS else float32)
        factor = backend.empty((1, 1), float32) if how.scale == _TWO_LEVELS else None
        self.found = Found(codes.view(int8) if how.format == INT8 else codes, scales, factor)

    def add_maxima(self) -> None:
        """Memory for the maxima of blocks, or of the matrix."""
        if self.how is not None and self.needs_maxima:
            self.maxima = self.backend.zeros((1, 1) if self.how.scale == _TWO_LEVELS else self.blocks, _BITS)

    def of_maxima(self) -> tuple[Any, ...]:
        """Its arguments of `block_maxima`."""
        if self.how is None or self.maxima is None:
            return _NOTHING
        flags = self.flags | (_OF_MATRIX if self.how.scale == _TWO_LEVELS else 0)
        return self.maxima, *map(np.uint32, (*self.extents, flags))

    def arguments(self, seed: Any, call: Any) -> tuple[Any, ...]:
        """Its arguments of `quantize_tiles`."""
        if self.found is None:
            return (None,) * 4 + (np.uint32(0),) * 3 + (seed, call)
        codes, scales, factor = self.found
        numbers = map(np.uint32, (*self.extents, self.flags))
        return codes.view(uint8), scales, self.maxima, factor, *numbers, seed, call


def dequantize(
    codes: Array, scales: Array | None, factor: Array | None, how: Quantization, block: tuple[int, int],
    shape: tuple[int, int], dtype: DType,
) -> Array:  # fmt: skip
    """The values [R, C] in `dtype`, float32 or bfloat16, of codes, in their order of memory.

    Times the scales of blocks and the factor where these are given.
    """
    if not codes.flags.c_contiguous and codes.flags.f_contiguous:
        turned = None if scales is None else scales.T
        return dequantize(codes.T, turned, factor, how, block[::-1], shape[::-1], dtype).T
    if not codes.flags.c_contiguous:
        codes = codes.copy()
    out = backends.backend_of(codes).empty(shape, dtype)
    extents = map(np.uint32, (block[0], block[1]))
    steps = (np.int64(0),) * 2 if scales is None else (np.int64(n // scales.itemsize) for n in scales.strides)
    launch(
        _SOURCE, f"dequantize_matrix<{STRUCTS[how.format]}, {C_NAMES[dtype]}>", grid_for(out.size, 8), BLOCK,
        codes.view(uint8), scales, factor, out, np.int64(shape[0]), np.uint32(shape[1]), *extents, *steps,
        np.uint32(_SCALINGS[how.scale]),
    )  # fmt: skip
    return out


class RowFactors(NamedTuple):
    """float32 factors [n], of which each is shared by `height` rows, or columns, of a product."""

    values: Array
    height: int


def scale_sums(
    sums: Array,
    dtype: DType,
    rows: RowFactors | None,
    columns: RowFactors | None,
    factors: Sequence[Array],
    bias: Array | None,
    buffer: Array | None = None,
) -> Array:
    """sums [M, N], float32 or int32, times factors of rows, of columns and of all, plus float32 bias [N], in `dtype`.

    factors: float32 [1, 1], at most two. buffer: see `output`.
    """
    out = output(buffer, sums.shape, dtype, sums)
    each = [(None, 1) if found is None else found for found in (rows, columns)]
    of_rows, of_columns = [(values, np.uint32(height)) for values, height in each]
    of_all = [*factors, None, None][:2]
    sizes = np.int64(sums.shape[0]), np.uint32(sums.shape[1])
    entry = typed("scale_sums", sums.dtype, dtype)
    launch(_SOURCE, entry, grid_for(sums.size, 1), BLOCK, sums, out, *sizes, *of_rows, *of_columns, *of_all, bias)
    return out


def output(buffer: Array | None, shape: tuple[int, ...], dtype: DType, like: Array) -> Array:
    """`buffer`, where it is a contiguous array of this shape and dtype, or else a new one on the device of `like`."""
    if buffer is not None and buffer.shape == shape and buffer.dtype == dtype and buffer.flags.c_contiguous:
        return buffer
    return backends.backend_of(like).empty(shape, dtype)
