"""Chains of ops on the GPU, by an emulated cublasLt: GELU as a product is stored, and its gradient."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import emulated_cupy
from cuda_on_cpu.emulated_cublaslt import EmulatedCublasLt

import ampkit
from ampkit import backends, ops, optim
from ampkit.backends.cuda.device import CUDA
from ampkit.backends.cuda.libs.blas import Epilogue
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.core.parameter import Parameter
from ampkit.core.tensor import Tensor
from ampkit.testing import GRADIENT_TOLERANCE, assert_close

FUSED = {Epilogue.GELU_AUX, Epilogue.GELU_AUX_BIAS, Epilogue.DGELU}
SHAPES = {"x": (3, 5, 16), "weight": (24, 16), "bias": (24,), "weight2": (8, 24), "bias2": (8,)}
HALVES = pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)


@pytest.fixture
def gpu():
    """The emulated products of an emulated GPU."""
    backend = CUDA(emulated_cupy, cublaslt=EmulatedCublasLt())
    undo = backends.install(backend)
    yield backend.cublaslt
    undo()


def values(dtype, without=()):
    rng = np.random.default_rng(0)
    drawn = {name: rng.standard_normal(shape).astype(dtype) for name, shape in SHAPES.items()}
    return [None if name in without else array for name, array in drawn.items()]


def run(place, arrays, dy, approximate="tanh", asked=None):
    """The answer and the gradients."""
    tensors = [None if a is None else Tensor(place(a), True) for a in arrays]
    out = ops.linear_gelu_linear(*tensors, approximate)
    points = [t for i, t in enumerate(tensors) if t is not None and (asked is None or i in asked)]
    return [out, *grad(out, points, Tensor(place(dy)))]


def fused(products):
    return [p.epilogue for p in products.ran if p.epilogue in FUSED]


@HALVES
@pytest.mark.parametrize("without", [(), ("bias",), ("bias", "bias2")], ids=str)
def test_gelu_and_its_gradient_are_part_of_the_products(gpu, dtype, without):
    arrays, dy = values(dtype, without), np.random.default_rng(1).standard_normal((3, 5, 8)).astype(dtype)
    found = run(emulated_cupy.asarray, arrays, dy)
    assert fused(gpu) == [Epilogue.GELU_AUX if "bias" in without else Epilogue.GELU_AUX_BIAS, Epilogue.DGELU]
    assert len(gpu.ran) == 6 and not gpu.refused
    wide = [None if a is None else a.astype(float) for a in arrays]
    with reference_only():
        truth = run(np.asarray, wide, dy.astype(float))
    for got, want in zip(found, truth, strict=True):
        assert_close(got.detach(), want.detach(), GRADIENT_TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("dtype", "approximate", "refuse"),
    [(float32, "tanh", False), (bfloat16, "none", False), (bfloat16, "tanh", True)],
    ids=["float32", "erf", "refused"],
)
def test_what_the_library_does_not_have_runs_link_by_link(gpu, dtype, approximate, refuse):
    gpu.refuse = lambda product: refuse and product.epilogue in FUSED
    arrays, dy = values(dtype), np.random.default_rng(1).standard_normal((3, 5, 8)).astype(dtype)
    found = run(emulated_cupy.asarray, arrays, dy, approximate)
    assert not fused(gpu) and bool(gpu.refused) == refuse
    with reference_only():
        truth = run(np.asarray, [a.astype(float) for a in arrays], dy.astype(float), approximate)
    for got, want in zip(found, truth, strict=True):
        assert_close(got.detach(), want.detach(), GRADIENT_TOLERANCE[dtype])


@HALVES
@pytest.mark.parametrize("asked", [(0,), (1, 2), (3, 4), (4,)], ids=str)
def test_only_what_is_asked_for_is_computed(gpu, dtype, asked):
    arrays, dy = values(dtype), np.random.default_rng(1).standard_normal((3, 5, 8)).astype(dtype)
    tensors = [Tensor(emulated_cupy.asarray(a), i in asked) for i, a in enumerate(arrays)]
    found = grad(
        ops.linear_gelu_linear(*tensors, "tanh"), [tensors[i] for i in asked], Tensor(emulated_cupy.asarray(dy))
    )
    assert (Epilogue.DGELU in fused(gpu)) == bool({0, 1, 2} & {*asked})
    whole = run(emulated_cupy.asarray, arrays, dy)
    for i, got in zip(asked, found, strict=True):
        np.testing.assert_array_equal(got.numpy(force=True), whole[1 + i].numpy(force=True))


def test_a_width_that_the_library_does_not_take_beside_a_product_runs_link_by_link(gpu):
    x, weight, weight2 = (
        Tensor(emulated_cupy.asarray(np.ones(s, np.float32).astype(bfloat16))) for s in ((4, 8), (12, 8), (8, 12))
    )
    out = ops.linear_gelu_linear(x, weight, None, weight2, None, "tanh")
    assert not fused(gpu) and out.shape == (4, 8)


@HALVES
def test_gradients_of_parameters_are_float32_and_left_where_the_optimizer_wants_them(gpu, dtype, monkeypatch):
    given = [Parameter(Tensor(emulated_cupy.asarray(a.astype(np.float32)))) for a in values(np.float32)[1:]]
    optimizer = optim.SGD(given, lr=0.1)
    x = Tensor(emulated_cupy.asarray(values(np.float32)[0]))
    with ampkit.autocast(dtype=dtype):
        out = ops.linear_gelu_linear(x, *given, "tanh")
    taken = []
    monkeypatch.setattr(Parameter, "accumulate", lambda self, gradient, *rest: taken.append((self, gradient)))
    out.sum().backward()
    assert len(taken) == 4 and optimizer.param_groups and out.dtype == dtype
    assert all(gradient is p.grad_buffer for p, gradient in taken)
