"""Cast: how an op treats the dtypes of its inputs; and the category of each op."""

from __future__ import annotations

from enum import Enum
from typing import Any

from ...base.errors import ConfigError
from ...base.near_names import did_you_mean


class Cast(Enum):
    """How an op treats the dtypes of its inputs inside an autocast region."""

    LOW = "low"  # inputs and output in the policy's 16-bit dtype; exact products, float32 sums, one rounding
    FP32 = "float32"  # inputs as they are, computed and returned in float32
    WIDEST = "widest"  # operands are cast to the widest dtype among them
    KEEP = "keep"  # inputs as they are, the output in the first input's dtype
    BANNED = "banned"  # raises inside a region, and names the op to use instead


# The category of each op, by name: set by @op at definition, the only source of the policy table.
categories: dict[str, Cast] = {}
# The help line of the error for a banned op, by the op's name.
cures: dict[str, str] = {}


def need_op(where: str, op: Any) -> None:
    """Raise ConfigError, with the nearest name, unless `op` is the name of an op."""
    if not isinstance(op, str) or op not in categories:
        near = did_you_mean(op, categories) if isinstance(op, str) else None
        raise ConfigError(where, "the name of an op", repr(op), near or "`ampkit ops` lists them")
