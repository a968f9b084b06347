"""MixedPrecisionPolicy: in which dtypes sharded parameters are gathered and their gradients reduced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...base import dtypes
from ...base.errors import DTypeError, switch


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """The dtypes of a module that `fully_shard` shares out; PyTorch's names. None: as they are.

    param_dtype: in which floating-point parameters are gathered and the forward computes; its floating-point arguments
    are cast to it too (cast_forward_inputs). Each rank keeps and updates its rows as they were made, in float32 say.
    Without it autocast decides: float32 parameters that operations read in its 16 bits alone are gathered in those.
    reduce_dtype: in which gradients travel to the rank that adds them up in float32; by default 16-bit param_dtype, or
    float32. output_dtype: to which floating-point results of the forward are cast.
    Raises DTypeError for anything but floating-point dtypes that have gradients.
    """

    param_dtype: Any = None
    reduce_dtype: Any = None
    output_dtype: Any = None
    cast_forward_inputs: bool = True

    def __post_init__(self) -> None:
        for name in ("param_dtype", "reduce_dtype", "output_dtype"):
            given = getattr(self, name)
            if given is not None:
                dtype = dtypes.parse(given)
                if dtype not in dtypes.FLOATS:
                    raise DTypeError("MixedPrecisionPolicy", f"a floating-point {name}", dtype.name)
                object.__setattr__(self, name, dtype)
        switch("MixedPrecisionPolicy", "cast_forward_inputs", self.cast_forward_inputs)


@dataclass(frozen=True)
class OffloadPolicy:
    """Where rows are kept: on the device of the parameters."""


@dataclass(frozen=True)
class CPUOffloadPolicy(OffloadPolicy):
    """PyTorch's policy that keeps rows in the host's memory; fully_shard refuses it."""

    pin_memory: bool = True
