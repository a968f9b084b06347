"""Cast, Policy and autocast: which dtype each op runs in.

Five cast categories say how an op treats the dtypes of its inputs. A policy is an immutable value that maps every op
to a category, for one 16-bit dtype. `autocast` applies a policy to a block of code.
"""

from .autocast_context import autocast, get_autocast_dtype, is_autocast_enabled
from .category import Cast, categories, cures, need_op
from .regions import (
    Region,
    changed_policies,
    enter,
    leave,
    module_running,
    need_kind,
    need_products,
    on_alone,
    region,
    scope,
)
from .table import Policy, low

__all__ = [
    "Cast",
    "Policy",
    "Region",
    "autocast",
    "categories",
    "changed_policies",
    "cures",
    "enter",
    "get_autocast_dtype",
    "is_autocast_enabled",
    "leave",
    "low",
    "module_running",
    "need_kind",
    "need_op",
    "need_products",
    "on_alone",
    "region",
    "scope",
]
