"""A short, deterministic run of the kernels' fuzzer, and what counts as a finding."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from ampkit import ops
from ampkit.backends.cpu.native import library as native
from ampkit.core.dispatch import Kernel
from ampkit.kernels.cpu.pointwise import elementwise
from fuzz import kernel_calls, kernels

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(native.library() is None, reason=native.unavailable_reason()),
]
TRIALS, SEED = 400, 1


@pytest.fixture
def of_any_size():
    with kernels.kernels_of_any_size(), kernels.poisoned_memory(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_kernels_agree_with_references_on_odd_shapes_strides_and_values(of_any_size):
    assert [found for number in range(TRIALS) if (found := kernels.Trial(SEED, number).finding())] == []


def _unwritten(out):
    return elementwise.empty(out.shape, out.dtype)


@pytest.mark.parametrize("wrong", [lambda out: out + 1, lambda out: out * np.nan, lambda out: out[:0], _unwritten])
def test_a_wrong_kernel_is_found(wrong, of_any_size, monkeypatch):
    first = ops.softmax.forward.kernels_of("cpu")[0]
    broken = Kernel(lambda *args, **params: (wrong((out := first.run(*args, **params))[0]), out[1]), first.when)
    monkeypatch.setitem(ops.softmax.forward.kernels, "cpu", [broken])
    assert any(kernels.Trial(0, number, "softmax").finding() for number in range(20))


def test_small_arrays_are_left_to_references_again_afterwards():
    before = ops.exp.forward.kernels_of("cpu")[0].min_elements
    with kernels.kernels_of_any_size():
        assert ops.exp.forward.kernels_of("cpu")[0].min_elements == 1
    assert ops.exp.forward.kernels_of("cpu")[0].min_elements == before > 1


def test_every_kernel_of_the_cpu_has_a_generator():
    names = set(kernel_calls.registered())
    assert {name for name in names if not kernel_calls.generator_of(name)} == set(kernel_calls.NEVER_CALLED)
    assert {*kernel_calls.CALLED_BY, *kernel_calls.PRIMITIVES, *kernel_calls.NEVER_CALLED} <= names  # none is stale


def test_kernels_that_no_case_names_are_reached_by_what_is_listed(of_any_size):
    listed = {*kernel_calls.CALLED_BY, *kernel_calls.PRIMITIVES}
    with kernel_calls.counted() as (answered, _):
        for name in sorted(listed):
            kernel_calls.reach(name, answered, SEED)
        assert {name for name in listed if not answered[name]} == set()


def test_what_has_no_generator_and_what_is_not_called_is_told(monkeypatch, of_any_size, capsys):
    monkeypatch.delitem(kernel_calls.PRIMITIVES, "optim.lamb:lamb_update")
    assert kernel_calls.generator_of("optim.lamb:lamb_update") == ""
    with kernel_calls.counted() as counts:
        kernels.trial(SEED, 0, "softmax").finding()
    assert not kernel_calls.report(*counts)
    assert "never called: optim.lamb:lamb_update" in capsys.readouterr().out
