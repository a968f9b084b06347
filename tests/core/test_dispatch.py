"""Dispatch: one rule chooses the kernel, and a kernel that declines leaves the call to the reference."""

from __future__ import annotations

import operator
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event, Lock

import numpy as np
import pytest

import ampkit
from ampkit import backends, ops
from ampkit.base.errors import UnsupportedError
from ampkit.core.dispatch import Kernel, Primitive, reference_only


def decline(*args, **params):
    raise UnsupportedError


def declining():
    """A primitive whose kernel doubles in place of adding one, and declines an empty array."""
    primitive, calls = Primitive("step", "nothing", lambda x, by=1: x + by), []

    @primitive.on("cpu")
    def kernel(x, by=1):
        calls.append(by)
        if x.size > 1:
            raise UnsupportedError
        return x * 2

    return primitive, calls


@pytest.mark.cpu
def test_an_empty_array_is_left_to_the_reference_though_a_kernel_takes_any_size():
    primitive, calls = declining()
    assert primitive(np.array([])).tolist() == []
    assert calls == []


@pytest.mark.cpu
def test_a_kernel_that_declines_leaves_a_plain_call_to_the_reference():
    primitive, calls = declining()
    assert primitive(np.array([3.0])).tolist() == [6]
    assert primitive(np.array([3.0, 4.0]), by=2).tolist() == [5, 6]
    assert calls == [1, 2]
    with reference_only():
        assert primitive(np.array([3.0])).tolist() == [4]


@pytest.mark.cpu
def test_the_first_kernel_whose_predicate_holds_runs():
    primitive = Primitive("step", "nothing", lambda x: "reference")
    for name, limit in (("negative", 0.0), ("small", 10.0)):
        primitive.on("cpu", when=lambda x, limit=limit: x[0] < limit)(lambda x, name=name: name)
    assert [primitive(np.array([v])) for v in (-1.0, 1.0, 99.0)] == ["negative", "small", "reference"]


@pytest.mark.cpu
def test_a_thread_that_comes_while_another_one_loads_the_kernels_waits_for_them(monkeypatch):
    primitive, lock, begun, goes_on = Primitive("step", "nothing", lambda x: "reference"), Lock(), Event(), Event()

    def load(backend, module):
        with lock:  # as that of an import
            begun.set()
            goes_on.wait(5)
            if not primitive.kernels["cpu"]:
                primitive.on("cpu")(lambda x: "kernel")

    monkeypatch.setattr(backends, "load_kernels", load)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(primitive, np.ones(1))
        begun.wait(5)
        second = threads.submit(primitive, np.ones(1))
        wait([second], 0.05)
        goes_on.set()
        assert [first.result(), second.result()] == ["kernel", "kernel"]


@pytest.mark.cpu
def test_an_array_smaller_than_every_kernel_takes_reaches_no_predicate():
    primitive, asked = Primitive("step", "nothing", lambda x: x), []
    primitive.on("cpu", when=lambda x: asked.append(x.size) or True, min_elements=8)(lambda x: x + 1)
    assert primitive(np.zeros(8)).max() == 1
    assert primitive(np.zeros(7)).max() == 0
    assert asked == [8]


@pytest.mark.cpu
@pytest.mark.parametrize("first", ["cpu", "another"])
def test_each_kernel_takes_no_smaller_array_whatever_other_kernels_and_backends_take(first):
    primitive = Primitive("step", "nothing", lambda x: x)
    for size in (8, 4):
        primitive.on("cpu", min_elements=size)(lambda x, size=size: x + size)
    primitive.on("another")(lambda x: x)
    primitive.kernels_of(first)
    assert [primitive(np.zeros(n)).max() for n in (3, 4, 7, 8)] == [0, 4, 4, 8]


@pytest.mark.cpu
def test_a_node_names_the_reference_where_the_chosen_kernel_declined():
    kernels = ops.tanh.forward.kernels_of("cpu")
    kernels.insert(0, Kernel(decline, None))
    try:
        y = ops.tanh(ampkit.tensor(np.ones(1 << 16, np.float32), requires_grad=True))
    finally:
        del kernels[0]
    assert y.node.kernel is ops.tanh.forward.reference
    assert np.allclose(y.detach().numpy(), np.tanh(1.0))


@pytest.mark.cpu
def test_primitives_of_the_library_answer_where_their_kernels_decline(monkeypatch):
    from ampkit.core.autograd.accumulate import sum_of_two

    for kernel in sum_of_two.kernels_of("cpu"):
        monkeypatch.setattr(kernel, "run", decline)
    x = ampkit.tensor(np.ones(1 << 16, np.float32), requires_grad=True)
    (x * 2 + x * 3).sum().backward()
    assert (x.grad.numpy() == 5).all()


@pytest.mark.cpu
def test_a_kernel_runs_only_for_the_dtypes_of_results_that_it_names():
    primitive = Primitive("step", "nothing", lambda x: "reference")
    kernel = primitive.on("cpu", dtypes=operator.eq)(lambda x: "kernel")
    x = np.zeros(3, np.float32)
    chosen = [primitive.choose("cpu", None, (x,), (), np.dtype(dtype)) for dtype in (np.float32, np.float64)]
    assert chosen == [kernel, primitive.reference]
