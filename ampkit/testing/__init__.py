"""Tests of ops, ampkit's and your own: test cases, finite differences and tolerances by dtype.

from ampkit.testing import Case, check, normal

check(Case("softplus", normal(3, 4), beta=2.0))
"""

from .cases import Case, Draw, booleans, definite, integers, normal, uniform
from .checks import check, check_dtypes, check_gradients, check_precision, check_strides
from .closeness import GRADIENT_TOLERANCE, TOLERANCE, assert_close
from .differences import STEP, check_tangents, gradcheck, gradgradcheck

__all__ = [
    "GRADIENT_TOLERANCE", "STEP", "TOLERANCE", "Case", "Draw", "assert_close", "booleans", "check", "check_dtypes",
    "check_gradients", "check_precision", "check_strides", "check_tangents", "definite", "gradcheck", "gradgradcheck",
    "integers", "normal", "uniform",
]  # fmt: skip
