"""Each op under `vmap`, alone and differentiated, gives what a loop over the samples gives, in the same dtypes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from func.each_op import EVERY, READS_VALUES, has_first_alone

import ampkit
from ampkit import autocast, func, ops
from ampkit.base.errors import DTypeError
from ampkit.core.autograd.tape import grad
from ampkit.core.op import ops as registry
from ampkit.core.tensor import Tensor
from ampkit.testing import Case
from ampkit.testing.cases import placed

SAMPLES = 3
CASES = [case for case in EVERY if case.arrays() and case.name not in READS_VALUES]


def samples(case: Case, dtype=np.float32) -> list[Tensor]:
    """The case's inputs, each with a leading axis of samples, whose floats differ."""
    made = []
    for array in case.arrays():
        if array.dtype.kind == "f":
            made.append(placed(np.stack([array * (1 - 0.0625 * i) for i in range(SAMPLES)]).astype(dtype)))
        else:
            made.append(placed(np.stack([array] * SAMPLES)))
    return made


def looped(function, tensors, axes) -> list[Tensor]:
    """Per output, the results of `function` for each sample, stacked."""
    rows = []
    for i in range(SAMPLES):
        rows.append(function(*[t if axis is None else t[i] for t, axis in zip(tensors, axes, strict=True)]))
    return [ops.stack(list(column)) for column in zip(*rows, strict=True)]


def mapped(function, tensors, axes):
    return func.vmap(function, tuple(axes), randomness="same")(*tensors)


def agree(found: Tensor, wanted: Tensor, what: str, exact: bool = False) -> None:
    assert found.dtype == wanted.dtype, f"{what}: {found.dtype} is not {wanted.dtype}"
    a, b = (t.detach().double().numpy() for t in (found, wanted))
    tolerance = 2e-5 if found.element_size() > 2 else 2e-2
    largest = float(np.abs(b[np.isfinite(b)]).max(initial=1.0))
    if exact:
        np.testing.assert_array_equal(a, b, what)
    else:
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * largest, err_msg=what)


def gradients(case: Case, tensors):
    """A function of a sample's inputs that gives the gradients of all float ones, mapped or shared."""
    floats = [i for i, t in enumerate(tensors) if t.is_floating_point()]

    def function(*given):
        leaves = [t.detach().requires_grad_() if i in floats else t for i, t in enumerate(given)]
        outs = [out for out in case(*leaves) if out.requires_grad]
        seeds = [ops.cos(ops.ones_like(out)) for out in outs]
        if not outs:  # of comparisons and their like
            return ()
        found = grad(outs, [leaves[i] for i in floats], seeds, allow_unused=True)
        return tuple([ops.zeros_like(given[i]) if g is None else g for i, g in zip(floats, found, strict=True)])

    return function


def ways(count: int) -> Iterator[list[int | None]]:
    """Which inputs are mapped: all, and of several each alone."""
    yield [0] * count
    for i in range(count if count > 1 else 0):
        yield [0 if k == i else None for k in range(count)]


def moves_only(case: Case) -> bool:
    """Whether each element of the result is computed from elements of the inputs, with no sum."""
    op = registry.get(case.name)
    sums = case.name == "rotary_embedding"  # of two products, which a kernel may round at once
    return op is not None and not sums and op.forward.module.startswith(("pointwise.", "shape."))


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_an_op_and_its_gradients(case):
    tensors = samples(case)
    for axes in ways(len(tensors)):
        given = [t if axis == 0 else t[0] for t, axis in zip(tensors, axes, strict=True)]
        wanted = looped(lambda *a: case(*a), given, axes)
        for one, other in zip(mapped(lambda *a: tuple(case(*a)), given, axes), wanted, strict=True):
            agree(one, other, f"{case}, axes {axes}", exact=moves_only(case))
        function = gradients(case, given)
        wanted = looped(function, given, axes)
        for one, other in zip(mapped(function, given, axes) if wanted else (), wanted, strict=True):
            agree(one, other, f"gradient of {case}, axes {axes}")


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_dtype_and_rounding_in_a_region_are_those_of_a_sample(case):
    tensors = samples(case)
    axes = [0] * len(tensors)
    for dtype in (ampkit.bfloat16, ampkit.float16):
        with autocast(dtype=dtype):
            try:
                wanted = looped(lambda *a: case(*a), tensors, axes)
            except DTypeError:  # banned in a region
                continue
            for one, other in zip(mapped(lambda *a: tuple(case(*a)), tensors, axes), wanted, strict=True):
                agree(one, other, f"{case} in {dtype}")


@pytest.mark.parametrize("case", [case for case in CASES if case.smooth], ids=repr)
def test_second_derivatives(case):
    tensors = samples(case, np.float64)
    floats = [i for i, t in enumerate(tensors) if t.is_floating_point()]

    def function(*given):
        leaves = [t.detach().requires_grad_() if i in floats else t for i, t in enumerate(given)]
        asked = [leaves[i] for i in floats]
        outs = [out for out in case(*leaves) if out.requires_grad]
        if not outs:
            return ()
        first = grad(outs, asked, [ops.cos(out).detach() for out in outs], create_graph=True, allow_unused=True)
        norms = [g.square().sum() for g in first if g is not None and g.requires_grad]
        found = grad(norms, asked, allow_unused=True) if norms else [None] * len(asked)
        return tuple([ops.zeros_like(x) if g is None else g for x, g in zip(asked, found, strict=True)])

    axes = [0] * len(tensors)
    if has_first_alone(case):
        return
    wanted = looped(function, tensors, axes)
    for one, other in zip(mapped(function, tensors, axes) if wanted else (), wanted, strict=True):
        agree(one, other, f"second derivative of {case}")
