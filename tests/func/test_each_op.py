"""Each function with derivatives has them in every transform, in the dtypes and with the bits of a call without one."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from func.each_op import (
    CASTS,
    DIFFERENTIABLE,
    EACH,
    READS_VALUES,
    WITHOUT,
    has_first_alone,
    numbers,
    of_floats,
    total,
)

import ampkit
from ampkit import Policy, autocast, func, ops
from ampkit.autograd import grad
from ampkit.base import observe
from ampkit.core.op import ops as registry
from ampkit.testing.closeness import GRADIENT_TOLERANCE, assert_close

BANNED = {"binary_cross_entropy"}  # in a region
# The dtype of the inputs, and the policy in force.
WAYS = [
    (ampkit.float32, None), (ampkit.float32, Policy("bfloat16")), (ampkit.float32, Policy.fast("float16")),
    (ampkit.float32, Policy("float8")), (ampkit.bfloat16, None), (ampkit.float16, Policy("float16")),
    (ampkit.bfloat16, Policy.fast("bfloat16")),
]  # fmt: skip


@pytest.mark.cpu  # on a GPU the links of self_attention run in its place
def test_the_cases_run_each_op_with_a_backward():
    ran = set()
    with observe.watch(lambda name, inputs, output: ran.add(name)):
        for case in EACH:
            case(*case.tensors())
    wanted = {name for name, op in registry.items() if op.builtin and op.backward_primitive is not None}
    assert wanted - ran == CASTS


@pytest.mark.parametrize("case", [case for case in EACH if case.name in WITHOUT], ids=repr)
def test_what_is_listed_as_without_derivatives_has_none(case):
    assert not any(out.requires_grad for out in case(*case.tensors()))


def dtypes(tensors):
    return [tensor.dtype for tensor in tensors]


def same(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one.detach().double().numpy(), other.detach().double().numpy())


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=repr)
def test_dtypes_under_transforms_are_those_without(case):
    for dtype, policy in WAYS:
        if policy is not None and case.name in BANNED:
            continue
        with nullcontext() if policy is None else autocast(policy=policy):
            check_dtypes(case, dtype, f"{dtype} in {policy}")


def check_dtypes(case, dtype, what):
    call, primals, along = of_floats(case, dtype)
    places = tuple(range(len(primals)))
    samples = [ops.stack([x, x]) for x in (*primals, *along)]
    gradient = func.grad(total(call), places)

    def tangents(*pairs):
        return func.jvp(call, pairs[: len(places)], pairs[len(places) :])[1]

    leaves = [x.detach().requires_grad_() for x in primals]
    outs = call(*leaves)
    first = grad(total(call)(*leaves), leaves, allow_unused=True, materialize_grads=True)
    found, pushed = func.jvp(call, primals, along)
    assert dtypes(found) == dtypes(pushed) == dtypes(outs), what
    same(found, outs)
    twice, mapped = not has_first_alone(case), case.name not in READS_VALUES
    if twice:
        found, pushed = func.jvp(gradient, primals, along)
        assert dtypes(found) == dtypes(pushed) == dtypes(first), what
    if mapped:
        found = func.vmap(gradient, randomness="same")(*samples[: len(places)])
        assert dtypes(found) == dtypes(first), what
    if mapped and twice:
        assert dtypes(func.vmap(tangents, randomness="same")(*samples)) == dtypes(outs), what


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=repr)
def test_tangents_are_those_of_float64_within_tolerance(case):
    for dtype in (ampkit.float32, ampkit.bfloat16, ampkit.float16):
        tolerance = GRADIENT_TOLERANCE[dtype.dtype]
        call, primals, along = of_floats(case, dtype)
        wide = [tuple(x.double() for x in each) for each in (primals, along)]
        for found, wanted in zip(func.jvp(call, primals, along), func.jvp(call, *wide), strict=True):
            for one, exact in zip(found, wanted, strict=True):
                assert_close(one, exact, tolerance, f"{dtype}")
        if dtype == ampkit.float32 and not has_first_alone(case):
            gradient = func.grad(total(call), tuple(range(len(primals))))
            found, wanted = func.jvp(gradient, primals, along)[1], func.jvp(gradient, *wide)[1]
            for one, exact in zip(found, wanted, strict=True):
                assert_close(one, exact, (10 * tolerance[0], 10 * tolerance[1]), "of the gradient")


def test_casts_cast_tangents():
    x, v = numbers(3), numbers(3, seed=1)
    out, tangent = func.jvp(lambda x: x.float() * 2, (x,), (v,))
    assert out.dtype == tangent.dtype == ampkit.float32
    np.testing.assert_array_equal(tangent.numpy(), 2 * v.float().numpy())
    assert func.grad(lambda x: x.float().sum())(x).dtype == ampkit.float64
    mapped = func.vmap(func.grad(lambda x: x.float().square().sum()))(ops.stack([x, v]))
    assert mapped.dtype == ampkit.float64
    np.testing.assert_allclose(mapped.numpy(), 2 * ops.stack([x, v]).numpy(), rtol=1e-6)
