"""Kernels: the entries of the `.cu` files beside this file, compiled the first time they are launched.

    launch("softmax", typed("softmax_forward", x.dtype, out.dtype), rows, 256, x, out, np.int64(rows), np.int64(n))

A file ends with a comment that names its entries and the types they exist in; the tests compile and run just those.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from ... import backends
from ...core import dtypes
from ...core.dtypes import DType

FOLDER = Path(__file__).parent
OPTIONS = ("-std=c++17", f"-I{FOLDER}")
C_NAMES: dict[DType, str] = {
    dtypes.float64: "double",
    dtypes.float32: "float",
    dtypes.float16: "__half",
    dtypes.bfloat16: "__nv_bfloat16",
    dtypes.int64: "long long",
    dtypes.int32: "int",
    dtypes.int16: "short",
    dtypes.int8: "signed char",
    dtypes.uint8: "unsigned char",
    dtypes.bool_: "bool",
}
STORED = frozenset({dtypes.float32, dtypes.float16, dtypes.bfloat16})  # what the kernels store; all compute in float32
MOST = 2**31 - 1  # elements, or blocks of a grid, that one launch takes


class Kernels:
    """The compiled entries of one device. xp: CuPy, or what stands for it."""

    def __init__(self, xp: Any):
        self.xp = xp
        self._entries: dict[tuple[str, str], Callable[..., None]] = {}

    def entry(self, stem: str, name: str) -> Callable[..., None]:
        """The entry `name`, template arguments included, of `<stem>.cu`."""
        found = self._entries.get((stem, name))
        if found is None:
            source = f'#include "{stem}.cu"\n'
            module = self.xp.RawModule(code=source, options=OPTIONS, name_expressions=(name,))
            found = self._entries[stem, name] = module.get_function(name)
        return found


@cache
def typed(name: str, *types: DType | str) -> str:
    """`name<...>` with dtypes in C++'s words; text stays as it is."""
    return f"{name}<{', '.join(t if isinstance(t, str) else C_NAMES[t] for t in types)}>"


def launch(stem: str, name: str, grid: Any, block: int, *args: Any, shared: int = 0) -> None:
    """Run an entry of `<stem>.cu` on the device and the stream of the first argument, an array.

    grid: blocks, a number or a tuple. block: threads. args: arrays (their first element's address), None (null) and
    NumPy scalars, whose dtype must be the parameter's. shared: bytes of dynamic shared memory.
    """
    function = backends.of(args[0]).kernels.entry(stem, name)  # type: ignore[attr-defined]
    function(grid if isinstance(grid, tuple) else (grid,), (block,), args, shared_mem=shared)


def blocks_for(count: int, block: int) -> int:
    """How many blocks of `block` threads cover `count` elements; at least one."""
    return max(1, -(-count // block))
