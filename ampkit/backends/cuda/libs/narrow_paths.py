"""Which units of a GPU multiply two operands below 16 bits, by how they are quantized, and why others do not.

The tables are those of NVIDIA's documentation of cublasLt 13 ("Narrow Precision Data Types Usage", "cublasLtMatmul").
An operand is described by a `Quantization` (core/policy/recipe.py): its format, block and scale.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .blas import ScaleMode

_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
_FIRST, _BLOCKS, _ROWS = (
    110800,
    120800,
    120900,
)  # of cublasLt: scalar scales, those of MX and NV, those of rows and of 128
Modes = tuple[ScaleMode, ScaleMode]


class Path(NamedTuple):
    """How a product runs: `units` in words, with scales of these modes or without any, and why not otherwise.

    modes: None where no unit multiplies codes of this kind by their scales. then_scaled: scales of rows multiply the
    sums of the codes afterwards.
    """

    units: str
    modes: Modes | None = None
    then_scaled: bool = False
    why: str = ""

    @property
    def in_words(self) -> str:
        """One line: "bfloat16 units, exact values of the codes: FP8 needs compute capability 8.9, this GPU has 8.0"."""
        return self.units + (f": {self.why}" if self.why else "")


_EXACT = "bfloat16 units, on the exact values of the codes"


def path_of(first: Any, second: Any, capability: tuple[int, int], version: int) -> Path:
    """How a product of operands quantized by `first` and `second` runs on a GPU; version: cublasLt's, as 120800."""
    formats = {first.format, second.format}
    if "int8" in formats:
        return (
            Path("int8 units, sums in int32")
            if first.block[1] is second.block[1] is None
            else _in_16_bits(first, second)
        )
    if formats <= {*_FLOAT8}:
        return _of_float8(first, second, capability, version)
    if (
        formats == {"float4_e2m1fn"}
        and {first.block, second.block} <= {(1, 16), (16, 16)}
        and _scales(first, second, "float8_e4m3fn")
    ):
        missing = _missing("FP4", 10, capability, _BLOCKS, version)
        return (
            Path(_EXACT, why=missing) if missing else Path("FP4 units, with scales of 16 values", (ScaleMode.NV,) * 2)
        )
    return _in_16_bits(first, second)


def _of_float8(first: Any, second: Any, capability: tuple[int, int], version: int) -> Path:
    blocks = {first.block, second.block}
    float32 = {first.scale, second.scale} <= {"float32", "power_of_2"}
    if first.format == second.format == "float8_e5m2":
        return _in_16_bits(first, second, "FP8 units multiply no two matrices of E5M2")
    if blocks == {(1, 32)} and _scales(first, second, "float8_e8m0fnu"):
        missing = _missing("MXFP8", 10, capability, _BLOCKS, version)
        return (
            Path(_EXACT, why=missing) if missing else Path("FP8 units, with scales of 32 values", (ScaleMode.MX,) * 2)
        )
    if not float32:
        return _in_16_bits(first, second)
    if capability < (8, 9) or version < _FIRST:
        needs = "FP8 units need compute capability 8.9 and cublasLt 11.8"
        return _in_16_bits(first, second, f"{needs}, not {_found(capability, version)}")
    if blocks == {(None, None)}:
        return Path("FP8 units", (ScaleMode.SCALAR,) * 2)
    if blocks <= {(1, None), (None, None)}:
        if capability == (9, 0) and version >= _ROWS:
            return Path("FP8 units, with scales of rows", (ScaleMode.OUTER,) * 2)
        needs = "scales of rows within the product need compute capability 9.0 and cublasLt 12.9"
        why = f"{needs}, not {_found(capability, version)}"
        return Path("FP8 units, scales of rows afterwards", (ScaleMode.SCALAR,) * 2, True, why)
    if blocks <= {(1, 128), (128, 128)}:
        if blocks == {(128, 128)}:
            return _in_16_bits(first, second, "FP8 units multiply no two matrices of blocks of 128 x 128")
        if capability == (9, 0) and version >= _ROWS:
            modes = [ScaleMode.STRIP if each.block == (1, 128) else ScaleMode.SQUARE for each in (first, second)]
            return Path("FP8 units, with scales of blocks of 128", (modes[0], modes[1]))
        needs = "FP8 products of blocks of 128 need compute capability 9.0 and cublasLt 12.9"
        return _in_16_bits(first, second, f"{needs}, not {_found(capability, version)}")
    return _in_16_bits(first, second)


def _in_16_bits(first: Any, second: Any, why: str = "no unit has such blocks and scales") -> Path:
    """bfloat16 holds the values; float32 scales of rows multiply the sums, of other float32 scales it rounds."""
    whole = all(each.scale != "float32" or each.block[1] is None for each in (first, second))
    return Path(_EXACT if whole else "float32 units, on the values of the codes", why=why)


def _scales(first: Any, second: Any, wanted: str) -> bool:
    return bool(first.scale == second.scale == wanted)


def _missing(what: str, major: int, capability: tuple[int, int], least: int, version: int) -> str:
    """Why units that compute capability `major` alone has are not used, or ""."""
    if capability[0] == major and version >= least:
        return ""
    needs = f"{what} units need compute capability {major}.x and cublasLt {least // 10000}.{least // 100 % 100}"
    return f"{needs}, not {_found(capability, version)}"


def _found(capability: tuple[int, int], version: int) -> str:
    return f"{capability[0]}.{capability[1]} and {version // 10000}.{version // 100 % 100}"
