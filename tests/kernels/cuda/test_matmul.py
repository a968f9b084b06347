"""The GPU's products, run by an emulated cublasLt in the memory that they are given the addresses of."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cuda_on_cpu import emulated_cupy
from cuda_on_cpu.emulated_cublaslt import EmulatedCublasLt

import ampkit
from ampkit import backends, nn, ops, optim
from ampkit.backends.cuda.device import CUDA
from ampkit.backends.cuda.libs import gemm
from ampkit.backends.cuda.libs.blas import Compute, Epilogue
from ampkit.backends.cuda.libs.matrices import plan_calls
from ampkit.base.dtypes import bfloat16, float16, float32, float64
from ampkit.core.tensor import Tensor

DTYPES = (float32, float16, bfloat16, float64)
NEAR = {float64: 1e-12, float32: 2e-6, float16: 1e-3, bfloat16: 8e-3}


@pytest.fixture
def gpu():
    """The emulated products of an emulated GPU."""
    backend = CUDA(emulated_cupy, cublaslt=EmulatedCublasLt())
    undo = backends.install(backend)
    yield backend.cublaslt
    undo()


@pytest.fixture
def copies(monkeypatch):
    """The operands that were copied."""
    found, copied = [], gemm._copied
    monkeypatch.setattr(gemm, "_copied", lambda array, *rest: (found.append(array), copied(array, *rest))[1])
    return found


def values(shape, dtype, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def on_device(array):
    """A copy in the device's memory, in its place there."""
    made = emulated_cupy.empty(array.shape, array.dtype)
    made[...] = emulated_cupy.asarray(array)
    return made


def assert_near(found, truth, dtype, terms=1):
    assert found.shape == truth.shape
    scale = np.abs(truth[np.isfinite(truth)]).max(initial=1.0)
    tolerance = NEAR[dtype] * scale * math.sqrt(max(terms, 1))
    np.testing.assert_allclose(found.astype(np.float64), truth, rtol=NEAR[dtype], atol=tolerance)


# how operands lie

LAYOUTS = {
    "packed": lambda x: on_device(x),
    "transposed": lambda x: on_device(x.swapaxes(-1, -2)).swapaxes(-1, -2),
    "some columns": lambda x: _inside(x, (0, 3))[..., 1:-2],
    "some rows": lambda x: _inside(x, (2, 0))[..., 1:-1, :],
    "transposed, some columns": lambda x: _inside(x.swapaxes(-1, -2), (0, 3))[..., 1:-2].swapaxes(-1, -2),
    "odd address": lambda x: on_device(np.concatenate([x.ravel()[:1], x.ravel()]))[1:].reshape(x.shape),
}
ODD = {
    "every second row and column": lambda x: _inside(np.repeat(np.repeat(x, 2, -1), 2, -2), (0, 0))[..., ::2, ::2],
    "backwards": lambda x: on_device(x[..., ::-1, :])[..., ::-1, :],
}


def _inside(x, more):
    buffer = np.full((*x.shape[:-2], *(n + k for n, k in zip(x.shape[-2:], more, strict=True))), np.nan, x.dtype)
    at = tuple(slice(1, 1 + n) if k else slice(None) for n, k in zip(x.shape[-2:], more, strict=True))
    buffer[(..., *at)] = x
    return on_device(buffer)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("lead", [(), (3,)], ids=str)
def test_operands_are_multiplied_where_they_lie(gpu, copies, lead, left, right, dtype):
    a, b = values((*lead, 5, 7), dtype), values((*lead, 7, 3), dtype, 1)
    found = gemm.product(LAYOUTS[left](a), LAYOUTS[right](b), dtype)
    assert_near(found.get(), a.astype(float64) @ b.astype(float64), dtype, 7)
    assert not copies and len(gpu.ran) == 1


@pytest.mark.parametrize("odd", ODD)
def test_operands_that_blas_cannot_read_are_copied(gpu, copies, odd):
    a, b = values((5, 7), float32), values((7, 3), float32, 1)
    found = gemm.product(ODD[odd](a), on_device(b), float32)
    assert_near(found.get(), a @ b, float32, 7)
    assert len(copies) == 1
    found = gemm.product(on_device(a), ODD[odd](b), float32)
    assert_near(found.get(), a @ b, float32, 7)
    assert len(copies) == 2


SIZES = [(1, 1, 1), (1, 1, 9), (1, 8, 5), (8, 1, 5), (8, 9, 1), (1, 9, 1), (17, 1, 1), (31, 33, 35)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_matrices_of_one_row_or_column_need_no_copy_however_they_lie(gpu, copies, size, dtype):
    m, n, k = size
    a, b = values((m, k), dtype), values((k, n), dtype, 1)
    for left in LAYOUTS.values():
        for right in LAYOUTS.values():
            found = gemm.product(left(a), right(b), dtype)
            assert_near(found.get(), a.astype(float64) @ b.astype(float64), dtype, k)
    assert not copies


def test_the_packed_axis_is_the_long_one(gpu):
    column, row = on_device(values((9, 1), float32)), on_device(values((1, 9), float32))
    gemm.product(column, row, float32)
    a, b = gpu.ran[0].b, gpu.ran[0].a
    assert (a.leading, b.leading, gpu.ran[0].transposed) == (9, 9, (False, True))


def test_an_address_between_two_vectors_asks_for_an_algorithm_of_less_alignment(gpu):
    x = on_device(values((65,), float16))
    for first, nbytes in ((0, 256), (1, 2), (2, 4), (4, 8), (8, 16)):
        gemm.product(x[first : first + 32].reshape(4, 8), on_device(values((8, 3), float16)), float16)
        assert gpu.ran[-1].alignment[1] == nbytes
        assert gpu.ran[-1].alignment[0] == gpu.ran[-1].alignment[3] == 256


# stacks


@pytest.mark.parametrize(
    ("a", "b", "batch", "calls"),
    [
        ((2, 3, 5, 7), (2, 3, 7, 4), 6, 1),
        ((6, 5, 7), (7, 4), 1, 1),  # a single tall matrix
        ((2, 3, 5, 7), (7, 4), 1, 1),
        ((6, 1, 7), (7, 4), 1, 1),
        ((5, 7), (6, 7, 4), 6, 1),
        ((1, 5, 7), (6, 7, 4), 6, 1),
        ((6, 5, 7), (1, 7, 4), 1, 1),
        ((2, 3, 5, 7), (3, 7, 4), 3, 2),
        ((2, 1, 5, 7), (1, 3, 7, 4), 3, 2),
        ((4, 2, 3, 5, 7), (4, 1, 1, 7, 4), 4, 1),  # as many tall ones as there are right operands
        ((2, 3, 5, 7), (2, 1, 7, 4), 2, 1),
        ((2, 3, 1, 7), (2, 1, 7, 4), 2, 1),
    ],
)
def test_leading_axes_broadcast_without_a_copy(gpu, copies, a, b, batch, calls):
    left, right = values(a, bfloat16), values(b, bfloat16, 1)
    found = gemm.product(on_device(left), on_device(right), bfloat16)
    assert_near(found.get(), left.astype(float64) @ right.astype(float64), bfloat16, 7)
    assert not copies
    assert ([p.d.batch for p in gpu.ran], len(gpu.ran)) == ([batch] * calls, calls)


def test_one_matrix_times_a_stack_in_steps_of_zero_is_no_copy(gpu, copies):
    a, b = on_device(values((5, 7), float32)), on_device(values((6, 7, 4), float32))
    found = gemm.product(np.broadcast_to(a, (6, 5, 7)), b, float32)
    assert_near(found.get(), a.get() @ b.get(), float32, 7)
    assert gpu.ran[0].b.stride == 0 and not copies


@pytest.mark.parametrize("batch", [3, 20])
def test_the_heads_of_a_batch_are_a_few_products_or_a_copy(gpu, copies, batch):
    q, k = (values((batch, 6, 4, 8), float16, s) for s in (0, 1))  # [batch, time, heads, size], as a layer leaves them
    a, b = (on_device(x).swapaxes(1, 2) for x in (q, k))
    found = gemm.product(a, b.swapaxes(-1, -2), float16)
    truth = q.astype(float64).swapaxes(1, 2) @ k.astype(float64).swapaxes(1, 2).swapaxes(-1, -2)
    assert_near(found.get(), truth, float16, 8)
    assert len(gpu.ran) == min(batch, 4) and not copies


@pytest.mark.parametrize("shape", [(20, 30, 2, 3), (20, 1, 2, 3)], ids=str)
def test_what_would_take_many_products_is_copied(gpu, copies, shape):
    a = on_device(values((30, 20, 2, 3), float32)).swapaxes(0, 1)
    b = on_device(values((*shape[:2], 3, 5), float32))
    found = gemm.product(a, b, float32)
    assert_near(found.get(), a.get() @ b.get(), float32, 3)
    assert len(gpu.ran) == 1 and copies


def test_a_stack_that_goes_backwards_is_copied(gpu, copies):
    a, b = on_device(values((3, 5, 7), float32)), on_device(values((3, 7, 4), float32))
    found = gemm.product(a[::-1], b, float32)
    assert_near(found.get(), a.get()[::-1] @ b.get(), float32, 7)
    assert len(copies) == 1


def test_rows_that_do_not_follow_each_other_make_a_stack(gpu, copies):
    x, w = on_device(values((4, 6, 8), float32)), on_device(values((8, 5), float32))
    found = gemm.product(x[:, :-1], w, float32)
    assert_near(found.get(), x.get()[:, :-1] @ w.get(), float32, 8)
    last = gemm.product(x[:, -1:], w, float32)
    assert_near(last.get(), x.get()[:, -1:] @ w.get(), float32, 8)
    assert [p.d.batch for p in gpu.ran] == [4, 1] and not copies


def test_what_is_too_large_for_blas_is_refused():
    signs = [(shape, (2 * shape[1], 2), float16, 256) for shape in ((2**31, 8), (8, 8), (2**31, 8), (2**31, 8))]
    assert plan_calls(*signs, 0, Epilogue.NONE, Compute.FLOAT32).product is None


def test_windows_that_overlap_are_a_stack(gpu, copies):
    x, w = on_device(values((12,), float32)), on_device(values((7, 4), float32))
    windows = emulated_cupy.ndarray(np.lib.stride_tricks.as_strided(x._numpy, (6, 1, 7), (4, 4, 4)))
    found = gemm.product(windows, w, float32)
    assert_near(found.get(), windows.get() @ w.get(), float32, 7)
    assert gpu.ran[0].b.stride == 1 and not copies


# nothing to multiply


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_without_terms_a_product_is_zero_or_what_is_added(gpu, dtype):
    a, b, bias = (on_device(values(s, dtype)) for s in ((5, 0), (0, 3), (3,)))
    assert (gemm.product(a, b, dtype).get() == 0).all()
    found = gemm.product(a, b, dtype, bias=bias).get()
    np.testing.assert_array_equal(found, np.broadcast_to(bias.get(), (5, 3)))
    found = gemm.product(a, b, dtype, addend=bias, beta=0.5).get()
    assert_near(found, np.broadcast_to(bias.get().astype(float64) * 0.5, (5, 3)), dtype)
    assert not gpu.ran


@pytest.mark.parametrize("shapes", [((0, 4), (4, 3)), ((5, 4), (4, 0)), ((0, 5, 4), (0, 4, 3)), ((0, 5, 4), (4, 3))])
def test_without_rows_or_columns_a_product_is_empty(gpu, shapes):
    a, b = (on_device(values(s, float16)) for s in shapes)
    assert gemm.product(a, b, float16).shape == (a.get() @ b.get()).shape
    assert not gpu.ran


# kernels

CASES = {
    "linear": (lambda x, w, b: ops.linear(x, w, b), [(5, 7), (3, 7), (3,)]),
    "linear of a stack": (lambda x, w, b: ops.linear(x, w, b), [(2, 5, 7), (3, 7), (3,)]),
    "linear without bias": (lambda x, w: ops.linear(x, w), [(5, 7), (3, 7)]),
    "linear of a vector": (lambda x, w, b: ops.linear(x, w, b), [(7,), (3, 7), (3,)]),
    "linear to one": (lambda x, w, b: ops.linear(x, w, b), [(5, 7), (1, 7), (1,)]),
    "linear of transposed": (lambda x, w, b: ops.linear(x.mT, w.T, b), [(2, 7, 5), (7, 3), (3,)]),
    "matmul": (ops.matmul, [(5, 7), (7, 3)]),
    "matmul of stacks": (ops.matmul, [(2, 5, 7), (2, 7, 3)]),
    "matmul, one right": (ops.matmul, [(2, 5, 7), (7, 3)]),
    "matmul, one left": (ops.matmul, [(5, 7), (2, 7, 3)]),
    "matmul that broadcasts": (ops.matmul, [(4, 1, 5, 7), (1, 3, 7, 2)]),
    "matmul of heads": (
        lambda a, b: ops.matmul(a.transpose(1, 2), b.permute(0, 2, 3, 1)),
        [(2, 5, 3, 7), (2, 4, 3, 7)],
    ),
    "vector by matrix": (ops.matmul, [(7,), (7, 3)]),
    "vector by stack": (ops.matmul, [(7,), (2, 7, 3)]),
    "matrix by vector": (ops.matmul, [(5, 7), (7,)]),
    "stack by vector": (ops.matmul, [(2, 5, 7), (7,)]),
    "vector by vector": (ops.matmul, [(7,), (7,)]),
    "mm": (ops.mm, [(5, 7), (7, 3)]),
    "mm of transposed": (lambda a, b: ops.mm(a.T, b.T), [(7, 5), (3, 7)]),
    "bmm": (ops.bmm, [(4, 5, 7), (4, 7, 3)]),
    "mv": (ops.mv, [(5, 7), (7,)]),
    "dot": (ops.dot, [(7,), (7,)]),
    "vdot": (ops.vdot, [(7,), (7,)]),
    "outer": (ops.outer, [(5,), (3,)]),
    "addmm": (ops.addmm, [(5, 3), (5, 7), (7, 3)]),
    "addmm of a row": (ops.addmm, [(3,), (5, 7), (7, 3)]),
    "addmm of a column": (ops.addmm, [(5, 1), (5, 7), (7, 3)]),
    "addmm scaled": (lambda c, a, b: ops.addmm(c, a, b, beta=0.5, alpha=-1.5), [(5, 3), (5, 7), (7, 3)]),
    "addmm of a scaled row": (lambda c, a, b: ops.addmm(c, a, b, beta=2, alpha=3), [(3,), (5, 7), (7, 3)]),
    "addmm of a transposed one": (lambda c, a, b: ops.addmm(c.T, a, b), [(3, 5), (5, 7), (7, 3)]),
    "addmm of nothing": (lambda c, a, b: ops.addmm(c, a, b, beta=0), [(5, 3), (5, 7), (7, 3)]),
    "einsum of stacks": (lambda a, b: ops.einsum("bhid,bhjd->bhij", a, b), [(2, 3, 5, 7), (2, 3, 4, 7)]),
    "einsum that moves axes": (lambda a, b: ops.einsum("bid,jhd->hbij", a, b), [(2, 5, 7), (4, 3, 7)]),
    "einsum over two": (lambda a, b: ops.einsum("ijk,kji->", a, b), [(2, 3, 4), (4, 3, 2)]),
    "einsum over none": (lambda a, b: ops.einsum("i,j->ji", a, b), [(3,), (5,)]),
    "einsum with dots": (lambda a, b: ops.einsum("...ij,...jk->...ik", a, b), [(2, 3, 4), (2, 4, 5)]),
    "baddbmm": (ops.baddbmm, [(4, 5, 3), (4, 5, 7), (4, 7, 3)]),
    "baddbmm scaled": (lambda c, a, b: ops.baddbmm(c, a, b, beta=2, alpha=3), [(5, 3), (4, 5, 7), (4, 7, 3)]),
}
FORWARD_BY_REFERENCE = {"outer"}


def ran(call, shapes, dtype, place, kind=Tensor):
    """The result and the gradients of `call`, in float64, and the result as a tensor."""
    inputs = [kind(place(values(s, float32, i).astype(dtype)), requires_grad=True) for i, s in enumerate(shapes)]
    out = call(*inputs)
    seed = values(tuple(out.shape), float32, 9).astype(out.dtype)
    out.backward(Tensor(place(seed)))
    found = [out.array, *(x.grad.array for x in inputs)]
    return [np.asarray(f.get() if hasattr(f, "get") else f) for f in found], out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_kernels_give_what_the_references_give(gpu, case, dtype):
    call, shapes = CASES[case]
    found, out = ran(call, shapes, dtype, on_device)
    forwards = len(gpu.ran)
    with ampkit.reference_only():
        truth, _ = ran(lambda *x: call(*(t.double() for t in x)), shapes, dtype, lambda a: a)
    assert forwards >= 2 and [f.dtype for f in found] == [dtype] * len(found)
    if case not in FORWARD_BY_REFERENCE:
        assert out.node.kernel.name.endswith("_cuda")
    for f, t in zip(found, truth, strict=True):
        assert_near(f, t, dtype, 8)


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize("case", ["linear", "linear of a stack", "mm", "matmul, one right", "addmm", "bmm"])
def test_gradients_of_parameters_come_out_in_float32(gpu, case, dtype):
    call, shapes = CASES[case]
    inputs = [nn.Parameter(on_device(values(s, float32, i))) for i, s in enumerate(shapes)]
    with ampkit.autocast("cuda", dtype=dtype):
        out = call(*inputs)
    gpu.ran.clear()
    (out.float() * 1e-6).sum().backward()  # which float16 would flush in part
    assert {p.d.dtype for p in gpu.ran} == {float32} and {p.a.dtype for p in gpu.ran} == {dtype}
    assert all(p.grad.dtype == float32 for p in inputs)


def test_the_gradient_of_one_right_operand_is_one_product_over_the_whole_stack(gpu):
    a, b = (Tensor(on_device(values(s, float32)), requires_grad=True) for s in ((4, 5, 7), (7, 3)))
    ops.matmul(a, b).backward(Tensor(on_device(values((4, 5, 3), float32))))
    assert [(p.d.batch, p.a[1:3]) for p in gpu.ran] == [(1, (3, 7)), (1, (3, 7)), (1, (3, 20))]


@pytest.mark.parametrize("shapes", [((2, 7), (3, 7, 4)), ((3, 2, 7), (1, 7, 4))], ids=str)
def test_what_is_summed_over_a_stack_is_rounded_once(gpu, shapes):
    a, b = (Tensor(on_device(values(s, bfloat16)), requires_grad=True) for s in shapes)
    out = ops.matmul(a, b)
    assert out.node.kernel.name == "matmul_cuda"
    gpu.ran.clear()
    out.sum().backward()
    full = [shape[:-2] == out.shape[:-2] for shape in shapes]
    assert [p.d.dtype for p in gpu.ran] == [bfloat16 if whole else float32 for whole in full]
    assert a.grad.dtype == b.grad.dtype == bfloat16


@pytest.mark.parametrize("dtype", [None, bfloat16], ids=str)
def test_the_first_gradients_of_a_layer_are_written_where_the_optimizer_wants_them(gpu, monkeypatch, dtype):
    layer = nn.Linear(6, 4)
    alone = nn.Linear(6, 4)
    alone.load_state_dict(layer.state_dict())
    layer.to("cuda"), alone.to("cuda")
    _held = optim.SGD(layer.parameters(), lr=0.1)  # held: parameters leave the arena with it
    taken, accumulate = [], nn.Parameter.accumulate

    def watched(parameter, gradient, *rest):
        taken.append(parameter._arena_segment is not None and gradient is parameter._arena_segment.gradient)
        accumulate(parameter, gradient, *rest)

    monkeypatch.setattr(nn.Parameter, "accumulate", watched)
    x = Tensor(on_device(values((5, 6), float32)))
    for module, expected in (
        (layer, [True, True]),
        (layer, [False, False]),
        (alone, [False, False]),
        (alone, [False] * 2),
    ):
        taken.clear()
        with ampkit.autocast("cuda", dtype=dtype or bfloat16, enabled=dtype is not None):
            loss = (module(x) ** 2).mean()
        loss.backward()
        assert taken == expected
    for one, other in zip(layer.parameters(), alone.parameters(), strict=True):
        np.testing.assert_array_equal(one.grad.array.get(), other.grad.array.get())


def test_one_product_leaves_the_gradients_of_weight_and_bias(gpu):
    call, shapes = CASES["linear of a stack"]
    ran(call, shapes, bfloat16, on_device)
    assert [p.epilogue for p in gpu.ran] == [Epilogue.BIAS, Epilogue.NONE, Epilogue.BGRADB]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("epilogue", [Epilogue.BIAS, Epilogue.BGRADB], ids=str)
def test_where_an_epilogue_is_refused_its_work_is_done_apart_and_rounded_once(gpu, epilogue, dtype):
    gpu.refuse = lambda product: product.epilogue is epilogue
    test_kernels_give_what_the_references_give(gpu, "linear", dtype)
    assert gpu.refused and epilogue not in {p.epilogue for p in gpu.ran}


@pytest.mark.parametrize("case", CASES)
def test_where_every_product_is_refused_the_references_run(gpu, case):
    gpu.refuse = lambda product: True
    call, shapes = CASES[case]
    found, _ = ran(call, shapes, float32, on_device)
    with ampkit.reference_only():
        truth, _ = ran(call, shapes, float32, on_device)
    for f, t in zip(found, truth, strict=True):
        assert_near(f, t, float32)


def test_without_cublaslt_the_references_run(gpu):
    gpu.unavailable_reason = lambda: "not found"
    out = ops.mm(
        Tensor(on_device(values((2, 3), float32)), requires_grad=True), Tensor(on_device(values((3, 2), float32)))
    )
    assert out.node.kernel is ops.mm.forward.reference and not gpu.ran


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ii,ij->j", [(3, 3), (3, 4)]),
        ("ij,jk->k", [(2, 3), (3, 4)]),
        ("ij,jk->ik", [(2, 1), (3, 4)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("ij->ji", [(2, 3)]),
    ],
)
def test_what_is_no_product_of_two_is_left_to_einsum(gpu, equation, shapes):
    inputs = [Tensor(on_device(values(s, float32, i)), requires_grad=True) for i, s in enumerate(shapes)]
    out = ops.einsum(equation, *inputs)
    truth = np.einsum(equation, *(x.array.get() for x in inputs))
    assert_near(out.array.get(), truth, float32, 12)
    assert out.node.kernel.name != "einsum_cuda"


def test_integers_are_multiplied_by_the_reference(gpu):
    a = Tensor(on_device(np.arange(6).reshape(2, 3)))
    assert (a @ a.T).array.get().tolist() == [[5, 14], [14, 50]]
    assert not gpu.ran


def test_nan_and_infinity_come_through(gpu):
    x, w = values((4, 5), float16), values((3, 5), float16)
    x[0, 0], x[1, 1], w[2, 2] = np.nan, np.inf, 6e4
    x[3, 2] = 6e4
    out = ops.linear(Tensor(on_device(x)), Tensor(on_device(w))).array.get()
    with np.errstate(all="ignore"):
        truth = (x.astype(float64) @ w.astype(float64).T).astype(float16)
    np.testing.assert_array_equal(np.isnan(out), np.isnan(truth))
    np.testing.assert_array_equal(np.isinf(out), np.isinf(truth))
    nan = Tensor(on_device(np.full((4, 3), np.nan, float32)))
    a, b = (Tensor(on_device(values(s, float32))) for s in ((4, 5), (5, 3)))
    assert np.isfinite(ops.addmm(nan, a, b, beta=0).array.get()).all()
    assert np.isnan(ops.addmm(nan, a, b, beta=1).array.get()).all()
    wrong = Tensor(on_device(np.full((4, 5), np.nan, float32)))
    assert np.isnan(ops.addmm(a[:, :3], wrong, b, alpha=0).array.get()).all()


def test_sixteen_bit_products_are_summed_in_float32_and_rounded_once(gpu):
    terms = np.full((1, 4096), 1, float16), np.full((4096, 1), 0.9995, float16)
    assert gemm.product(*map(on_device, terms), float16).get().item() == np.float16(4096 * float(np.float16(0.9995)))
    x, bias = np.full((1, 1), 2048, float16), np.full(1, 1.5, float16)
    found = gemm.product(on_device(x), on_device(np.full((1, 1), 1, float16)), float16, bias=on_device(bias))
    assert found.get().item() == 2050


def test_second_derivatives_run_on_the_device(gpu):
    def gradients(place):
        x, w = (Tensor(place(values(s, float32)), requires_grad=True) for s in ((5, 7), (3, 7)))
        (gradient,) = ampkit.grad((ops.linear(x, w) ** 3).sum(), (w,), create_graph=True)
        return [g.array for g in ampkit.grad((gradient**2).sum(), (x, w))]

    for found, truth in zip(gradients(on_device), gradients(lambda a: a), strict=True):
        np.testing.assert_allclose(found.get(), truth, rtol=1e-4, atol=1e-3)
    assert len(gpu.ran) > 4


@pytest.mark.parametrize("dtype", [None, float16, bfloat16], ids=str)
def test_a_network_trains_as_on_a_cpu(gpu, dtype):
    def losses(device):
        ampkit.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to(device)
        optimizer, scaler = optim.SGD(model.parameters(), lr=0.1), ampkit.GradScaler(device, enabled=dtype == float16)
        x, y = (ampkit.tensor(values(s, float32)).to(device) for s in ((8, 6), (8, 3)))
        found = []
        for _ in range(4):
            with ampkit.autocast(device, dtype=dtype or bfloat16, enabled=dtype is not None):
                loss = ((model(x) - y) ** 2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            found.append(loss.item())
        return found

    there = losses("cuda")
    assert gpu.ran and there[-1] < there[0]
    np.testing.assert_allclose(there, losses("cpu"), rtol=1e-5 if dtype is None else 1e-2)


# the precision of float32


def test_tf32_is_used_where_it_is_allowed_and_for_nothing_else(gpu):
    assert ampkit.get_float32_matmul_precision() == "highest"
    a, b = on_device(values((5, 7), float32)), on_device(values((7, 3), float32))
    exact = gemm.product(a, b, float32).get()
    try:
        for word in ("high", "medium"):
            ampkit.set_float32_matmul_precision(word)
            assert ampkit.get_float32_matmul_precision() == word
            off = np.abs(gemm.product(a, b, float32).get() - exact).max()
            assert 1e-5 < off < 1e-2 and gpu.ran[-1].compute is Compute.TF32
            gemm.product(a.astype(float16), b.astype(float16), float16)
            assert gpu.ran[-1].compute is Compute.FLOAT32
            rows = values((50, 4), float32)
            assert_near(gemm.column_sums(on_device(rows), float32).get(), rows.astype(float64).sum(0), float32, 50)
    finally:
        ampkit.set_float32_matmul_precision("highest")
    with pytest.raises(ampkit.ArgumentError, match="needs one of highest, high, medium, got 'low'"):
        ampkit.set_float32_matmul_precision("low")


def test_the_bias_gradient_is_not_summed_in_tf32(gpu):
    ampkit.set_float32_matmul_precision("high")
    try:
        ran(*CASES["linear"], float32, on_device)
    finally:
        ampkit.set_float32_matmul_precision("highest")
    assert not [p for p in gpu.ran if p.compute is Compute.TF32 and p.epilogue is Epilogue.BGRADB]
    assert len(gpu.ran) == 3  # the result, and the gradients of the input and the weight


def test_on_a_cpu_the_precision_changes_nothing():
    a, b = Tensor(values((33, 40), float32)), Tensor(values((40, 50), float32))
    exact = (a @ b).numpy()
    ampkit.set_float32_matmul_precision("medium")
    try:
        np.testing.assert_array_equal((a @ b).numpy(), exact)
    finally:
        ampkit.set_float32_matmul_precision("highest")
