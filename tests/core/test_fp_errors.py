"""NumPy's floating-point warnings, which are off in a block and on again after it."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit.core.fp_errors import ignore_fp_errors


def overflows():
    with pytest.raises(FloatingPointError):
        np.float32(3e38) * np.float32(10)


def test_a_decorated_function_may_call_itself_and_leaves_the_settings_as_they_were():
    @ignore_fp_errors()
    def deep(depth: int) -> np.float32:
        return deep(depth - 1) if depth else np.float32(3e38) * np.float32(10)

    with np.errstate(all="raise"):
        for _ in range(2):
            assert np.isinf(deep(3))
            overflows()


def test_blocks_may_be_nested_and_left_by_an_error():
    with np.errstate(all="raise"):
        with pytest.raises(KeyError), ignore_fp_errors(), ignore_fp_errors():
            raise KeyError
        overflows()
