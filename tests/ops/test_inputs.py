"""Inputs of the wrong kind, and what they lead to: one line that names them."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import ops
from ampkit.core.errors import DTypeError
from ampkit.core.tensor import tensor

STRAYS = [5, 2.5, True, "x", None, [1.0, 2.0], np.ones(3), [tensor([1.0])], 1j, object()]
UNCASED = {
    "allclose": 2, "equal": 2, "contiguous": 1, "detach": 1, "bernoulli": 1, "multinomial": 1, "one_hot": 1,
    "empty_like": 1, "zeros_like": 1, "ones_like": 1, "rand_like": 1, "randn_like": 1, "where": 1,
}  # fmt: skip


@pytest.mark.parametrize("stray", STRAYS, ids=repr)
@pytest.mark.parametrize(("name", "count"), UNCASED.items())
def test_functions_that_are_no_ops_refuse_what_is_no_tensor(name, count, stray):
    for position in range(count):
        given = [tensor([1.0])] * count
        given[position] = stray
        with pytest.raises(DTypeError, match=rf"^{name}: needs a Tensor for `\w+`, got \w+(\nhelp: wrap it.*)?$"):
            getattr(ops, name)(*given, *((2,) if name == "multinomial" else ()))


def test_an_input_given_by_keyword_is_checked_too():
    with pytest.raises(DTypeError, match="^masked_select: needs a Tensor for `mask`, got list\nhelp: wrap it"):
        ops.masked_select(tensor([1.0]), mask=[True])
    with pytest.raises(DTypeError, match="^batch_norm: needs a Tensor for `running_mean`, got int"):
        ops.batch_norm(tensor([[1.0], [2.0]]), 0, None)
    with pytest.raises(DTypeError, match="^embedding: needs a Tensor for `input`, got the number 2"):
        ops.embedding(2, tensor([[1.0]]))
