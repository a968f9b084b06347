"""Tables that kernels read by their address live until the kernels return, whatever a cache forgets meanwhile."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

from ampkit import ops
from ampkit.backends.cpu.native.library import library, unavailable_reason
from ampkit.core.autograd.tape import grad
from ampkit.core.tensor import Tensor
from ampkit.kernels.cpu.nn import grid_sample, pool

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(library() is None, reason=unavailable_reason())]

IMAGES = np.linspace(-1, 1, 4 * 8 * 16 * 16, dtype=np.float32).reshape(4, 8, 16, 16)
GRID = np.linspace(-1, 1, 4 * 40 * 30 * 2, dtype=np.float32).reshape(4, 40, 30, 2)


@pytest.mark.parametrize(
    ("module", "table", "kernels", "op", "others"),
    [
        (pool, "_table", ("_forward", "_backward"), ops.max_pool2d, [3]),
        (grid_sample, "_options", ("_forward", "_input_gradient", "_grid_gradient"), ops.grid_sample, [GRID]),
    ],
    ids=["pool", "grid_sample"],
)
def test_a_cache_may_forget_a_table_while_a_kernel_reads_it(module, table, kernels, op, others, monkeypatch):
    cached, tables, called = getattr(module, table), [], []

    def noted(*args):
        found = cached(*args)
        tables.append(weakref.ref(found))
        return found

    def follow(name, kernel):
        def call(*args):
            cached.cache_clear()
            assert tables[-1]() is not None, f"{name} reads what is freed"
            called.append(name)
            return kernel(*args)

        monkeypatch.setattr(module, name, call)

    monkeypatch.setattr(module, table, noted)
    for name in kernels:
        follow(name, getattr(module, name))
    leaves = [Tensor(each, requires_grad=True) if isinstance(each, np.ndarray) else each for each in (IMAGES, *others)]
    grad(op(*leaves).sum(), [leaf for leaf in leaves if isinstance(leaf, Tensor)])
    assert called == list(kernels)
