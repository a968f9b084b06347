"""One contract for all calls: a kernel that declines leaves the work to the reference."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit.core.primitive import Primitive, reference_only


def declining():
    """A primitive whose kernel doubles in place of adding one, and declines an empty array."""
    primitive, calls = Primitive("step", "nothing", lambda x, by=1: x + by), []

    @primitive.on("cpu")
    def kernel(x, by=1):
        calls.append(by)
        return x * 2 if x.size else NotImplemented

    return primitive, calls


@pytest.mark.cpu
def test_a_kernel_that_declines_leaves_a_plain_call_to_the_reference():
    primitive, calls = declining()
    assert primitive(np.array([3.0])).tolist() == [6]
    assert primitive(np.array([]), by=2).tolist() == []
    assert calls == [1, 2]
    with reference_only():
        assert primitive(np.array([3.0])).tolist() == [4]


@pytest.mark.cpu
def test_what_ran_is_told_beside_what_it_returned():
    primitive, _ = declining()
    kernel = primitive.select("cpu", np.ones(1))
    assert primitive.attempt(kernel, lambda kernel: 5, lambda: 6) == (5, kernel)
    assert primitive.attempt(kernel, lambda kernel: NotImplemented, lambda: 6) == (6, primitive.reference)
    assert primitive.attempt(primitive.reference, lambda kernel: 5, lambda: 6) == (6, primitive.reference)


@pytest.mark.cpu
def test_primitives_of_the_library_answer_where_their_kernels_decline(monkeypatch):
    from ampkit.core.autograd.accumulate import sum_of_two

    for kernel in sum_of_two.of("cpu"):
        monkeypatch.setattr(kernel, "run", lambda *args: NotImplemented)
    x = ampkit.tensor(np.ones(1 << 16, np.float32), requires_grad=True)
    (x * 2 + x * 3).sum().backward()
    assert (x.grad.numpy() == 5).all()
