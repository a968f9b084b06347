"""Each op under `vmap`, alone and differentiated, gives what a loop over the samples gives, in the same dtypes."""

from __future__ import annotations

import importlib
import pkgutil

import cases
import numpy as np
import pytest

import ampkit
from ampkit import autocast, func, ops
from ampkit.core.autograd.tape import grad
from ampkit.core.tensor import Tensor
from ampkit.testing import Case
from ampkit.testing.cases import placed

CASES = [c for m in pkgutil.iter_modules(cases.__path__) for c in importlib.import_module(f"cases.{m.name}").CASES]
SAMPLES = 3
READS_VALUES = {"linalg_lu"}  # it checks the pivots on the host


def samples(case: Case, dtype=np.float32) -> list[Tensor]:
    """The case's inputs, each with a leading axis of samples whose values differ where the op allows it."""
    made = []
    for array in case.arrays():
        rows = [array]
        for i in range(1, SAMPLES):
            rows.append(array if array.dtype.kind != "f" else array * (1 - 0.0625 * i))
        stacked = np.stack(rows)
        made.append(placed(stacked.astype(dtype) if stacked.dtype.kind == "f" else stacked))
    return made


def looped(function, tensors, axes):
    """`function` for each sample; -> per output, the results of the samples."""
    rows = []
    for i in range(SAMPLES):
        rows.append(function(*[t if axis is None else t[i] for t, axis in zip(tensors, axes, strict=True)]))
    return [ops.stack(list(column)) for column in zip(*rows, strict=True)]


def close(found: Tensor, wanted: Tensor, exact: bool, what: str) -> None:
    assert found.dtype == wanted.dtype, f"{what}: {found.dtype} is not {wanted.dtype}"
    a, b = (t.detach().float().numpy() if t.is_floating_point() else t.numpy() for t in (found, wanted))
    assert a.shape == b.shape, what
    if exact:
        np.testing.assert_array_equal(a, b, what)
    else:
        scale = 2e-5 if found.dtype in (ampkit.float32, ampkit.float64) else 2e-2
        largest = float(np.abs(b[np.isfinite(b)]).max(initial=1.0))
        np.testing.assert_allclose(a, b, rtol=scale, atol=scale * largest, err_msg=what)


def derived(case: Case, tensors, axes):
    """A function of a sample's inputs that gives the gradients of all float ones, shared or not."""
    floats = [i for i, t in enumerate(tensors) if t.is_floating_point()]

    def function(*given):
        leaves = list(given)
        for i in floats:
            leaves[i] = given[i].detach().requires_grad_()
        outs = [out for out in case(*leaves) if out.is_floating_point() and out.requires_grad]
        seeds = [ops.cos(ops.ones_like(out)) for out in outs]
        found = grad(outs, [leaves[i] for i in floats], seeds, allow_unused=True)
        return tuple([ops.zeros_like(given[i]) if g is None else g for i, g in zip(floats, found, strict=True)])

    return function, floats


def mapped(function, axes):
    return func.vmap(function, tuple(axes), randomness="same")


def ways(count: int):
    """Which inputs are mapped: all, and where there are several, each alone."""
    yield [0] * count
    if count > 1:
        for i in range(count):
            yield [0 if k == i else None for k in range(count)]


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_an_op_maps_like_a_loop(case):
    tensors = samples(case)
    if not tensors or case.name in READS_VALUES:
        return
    for axes in ways(len(tensors)):
        given = [t if axis == 0 else t[0] for t, axis in zip(tensors, axes, strict=True)]
        wanted = looped(lambda *a: case(*a), given, axes)
        found = mapped(lambda *a: tuple(case(*a)), axes)(*given)
        for one, other in zip(found, wanted, strict=True):
            close(one, other, False, f"{case}, axes {axes}")
        function, floats = derived(case, given, axes)
        if not any(out.is_floating_point() for out in wanted) or not floats:
            continue
        try:
            gradients = looped(function, given, axes)
        except ampkit.base.errors.AmpkitError:  # no backward
            continue
        for one, other in zip(mapped(function, axes)(*given), gradients, strict=True):
            close(one, other, False, f"gradient of {case}, axes {axes}")


@pytest.mark.parametrize("dtype", [ampkit.bfloat16, ampkit.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_an_op_has_the_dtype_and_rounding_of_a_sample_in_a_region(case, dtype):
    tensors = samples(case)
    if not tensors or case.name in READS_VALUES:
        return
    axes = [0] * len(tensors)
    with autocast(dtype=dtype):
        try:
            wanted = looped(lambda *a: case(*a), tensors, axes)
        except ampkit.base.errors.DTypeError:  # banned in a region
            return
        found = mapped(lambda *a: tuple(case(*a)), axes)(*tensors)
        for one, other in zip(found, wanted, strict=True):
            close(one, other, False, repr(case))


SMOOTH = [case for case in CASES if case.smooth]


@pytest.mark.parametrize("case", SMOOTH, ids=repr)
def test_second_derivatives_map_like_a_loop(case):
    tensors = [t.double() if t.is_floating_point() else t for t in samples(case, np.float64)]
    floats = [i for i, t in enumerate(tensors) if t.is_floating_point()]
    if not floats or case.name in READS_VALUES:
        return

    def function(*given):
        leaves = list(given)
        for i in floats:
            leaves[i] = given[i].detach().requires_grad_()
        asked = [leaves[i] for i in floats]
        outs = [out for out in case(*leaves) if out.is_floating_point() and out.requires_grad]
        first = grad(outs, asked, [ops.cos(out).detach() for out in outs], create_graph=True, allow_unused=True)
        norms = [g.square().sum() for g in first if g is not None and g.requires_grad]
        found = grad(norms, asked, allow_unused=True) if norms else [None] * len(asked)
        return tuple([ops.zeros_like(x) if g is None else g for x, g in zip(asked, found, strict=True)])

    axes = [0] * len(tensors)
    try:
        wanted = looped(function, tensors, axes)
    except ampkit.base.errors.AmpkitError:
        return
    for one, other in zip(mapped(function, axes)(*tensors), wanted, strict=True):
        close(one, other, False, f"second derivative of {case}")
