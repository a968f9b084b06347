"""The bindings of cublasLt: what it describes, read back from NVIDIA's library, and the calls that it makes."""

from __future__ import annotations

import ctypes
import gc
import re
import shutil
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cuda_on_cpu import emulated_cublaslt, emulated_cupy
from cuda_on_cpu import memory as device_memory

import ampkit
from ampkit import backends, models, nn
from ampkit.backends.cuda import install
from ampkit.backends.cuda.device import CUDA
from ampkit.backends.cuda.libs import cublaslt, gemm
from ampkit.backends.cuda.libs.blas import Compute, Epilogue, Matrix, Memory, Product, ScaleMode
from ampkit.backends.cuda.libs.cublaslt import CublasLt, CublasLtError
from ampkit.base.dtypes import bfloat16, float8_e4m3fn, float8_e5m2, float16, float32, float64, int8, int32
from ampkit.base.errors import UnsupportedError

SOURCE = Path(emulated_cublaslt.__file__).with_name("cublaslt.cpp")
A, B, D = (Matrix(bfloat16, *shape, 2, 500) for shape in ((40, 30, 48), (30, 20, 32), (40, 20, 41)))
ALIGNED = Memory(256, 128, 16, 2)


@pytest.fixture
def nvidia():
    """NVIDIA's library, as the bindings load it."""
    lib, trouble = cublaslt.library(13)
    if lib is None:
        pytest.skip(trouble)
    return lib


def read(lib, made, attribute, form=ctypes.c_int32):
    held, written = form(), ctypes.c_size_t()
    function = getattr(lib, f"cublasLt{made.kind}GetAttribute")
    size = ctypes.c_size_t(ctypes.sizeof(held))
    assert function(made.handle, attribute, ctypes.byref(held), size, ctypes.byref(written)) == 0
    assert written.value == size.value
    return held.value


@pytest.mark.parametrize("dtype", [float16, bfloat16, float32, float64], ids=str)
def test_a_layout_reads_back_as_it_was_described(nvidia, dtype):
    number = {float32: 0, float64: 1, float16: 2, bfloat16: 14}[dtype]
    for matrix in (
        Matrix(dtype, 40, 30, 48),
        Matrix(dtype, 40, 30, 48, 7, 0),
        Matrix(dtype, 1, 2**31 - 1, 1, 2, 2**40),
    ):
        made = cublaslt.layout(nvidia, matrix)
        forms = (ctypes.c_uint32, ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64, ctypes.c_int32)
        found = [read(nvidia, made, at, form) for at, form in enumerate((*forms, ctypes.c_int64))]
        assert found == [number, 0, *matrix[1:]]


@pytest.mark.parametrize("turn", [(False, False), (False, True), (True, False)], ids=str)
@pytest.mark.parametrize("epilogue", list(Epilogue), ids=str)
def test_an_operation_reads_back_as_it_was_described(nvidia, epilogue, turn):
    product = Product(A, B, D, D, turn, Compute.FLOAT32, ALIGNED, epilogue, 4096)
    plan = cublaslt.ProductPlan(nvidia, product)
    plan.set_addresses(Memory(0, 0, 0, 0, 0xABC00, 0xDEF00))
    made = plan.operation
    assert [read(nvidia, made, at) for at in (0, 1)] == [68, 0]
    assert tuple(map(bool, (read(nvidia, made, 3), read(nvidia, made, 4)))) == turn
    assert read(nvidia, made, 7) == epilogue
    bias, aux = (read(nvidia, made, at, ctypes.c_void_p) for at in (8, 11))
    assert bias == (0xABC00 if epilogue.has_bias else None) and aux == (0xDEF00 if epilogue.has_aux else None)
    assert read(nvidia, made, 26) == (14 if epilogue.has_bias else -1)
    assert read(nvidia, made, 12, ctypes.c_int64) == (4096 if epilogue.has_aux else 0)


@pytest.mark.parametrize(
    ("dtype", "compute", "numbers"),
    [(float32, Compute.FLOAT32, [68, 0]), (float32, Compute.TF32, [77, 0]), (float64, Compute.FLOAT64, [70, 1])],
    ids=str,
)
def test_what_is_computed_in_reads_back(nvidia, dtype, compute, numbers):
    matrix = Matrix(dtype, 8, 8, 8)
    made = cublaslt.operation(nvidia, Product(*[matrix] * 4, (False, False), compute, ALIGNED))
    assert [read(nvidia, made, at) for at in (0, 1)] == numbers


@pytest.mark.parametrize(("dtype", "reductions"), [(float16, 2), (bfloat16, 2), (float32, 7), (float64, 7)], ids=str)
def test_sixteen_bit_results_are_never_summed_in_sixteen_bits(nvidia, dtype, reductions):
    matrix = Matrix(dtype, 8, 8, 8)
    made = cublaslt.preference(nvidia, Product(*[matrix] * 4, (False, False), Compute.FLOAT32, ALIGNED))
    assert read(nvidia, made, 3) == reductions
    assert read(nvidia, made, 1, ctypes.c_size_t) == 32 << 20
    assert [read(nvidia, made, at) for at in (5, 6, 7, 8)] == list(ALIGNED[:4])


@pytest.mark.parametrize(
    "modes", [(ScaleMode.SCALAR,) * 2, (ScaleMode.OUTER,) * 2, (ScaleMode.STRIP, ScaleMode.SQUARE)]
)
def test_scales_of_operands_below_16_bits_read_back_as_they_were_described(nvidia, modes):
    a, b, d = Matrix(float8_e4m3fn, 64, 32, 64), Matrix(float8_e5m2, 64, 48, 64), Matrix(bfloat16, 32, 48, 32)
    product = Product(a, b, d, d, (True, False), Compute.FLOAT32, ALIGNED, scales=modes)
    plan = cublaslt.ProductPlan(nvidia, product)
    plan.set_addresses(Memory(0, 0, 0, 0, a_scales=0xABC00, b_scales=0xDEF00))
    assert [read(nvidia, plan.operation, at, ctypes.c_void_p) for at in (17, 18)] == [0xABC00, 0xDEF00]
    assert read(nvidia, plan.operation, 25, ctypes.c_int8) == 0
    assert tuple(read(nvidia, plan.operation, at) for at in (31, 32)) == modes
    assert [read(nvidia, made, 0, ctypes.c_uint32) for made in plan.layouts] == [28, 29, 14, 14]


def test_integers_are_summed_in_integers(nvidia):
    a, d = Matrix(int8, 64, 32, 64), Matrix(int32, 32, 32, 32)
    plan = cublaslt.ProductPlan(nvidia, Product(a, a, d, d, (True, False), Compute.INT32, ALIGNED))
    assert [read(nvidia, plan.operation, at) for at in (0, 1)] == [72, 10]
    assert [read(nvidia, made, 0, ctypes.c_uint32) for made in plan.layouts] == [3, 3, 10, 10]
    assert [ctypes.cast(at, ctypes.POINTER(ctypes.c_int32))[0] for at in (plan.one, plan.zero)] == [1, 0]


def gpt(x):
    return models.gpt(vocab_size=257, block_size=9, n_layer=1, n_head=2, n_embd=24), x(3, 9, below=257)


def bert(x):
    sizes = {"vocab_size": 100, "hidden_size": 16, "intermediate_size": 40, "num_hidden_layers": 1}
    return models.bert(**sizes, num_attention_heads=2), x(3, 9, below=100)


def vit(x):
    return models.vit(image_size=8, num_layers=1, hidden_dim=16, num_heads=2, mlp_dim=40), x(3, 3, 8, 8)


def mlp(x):
    return models.mlp(hidden=[33, 16]), x(5, 64)


def lstm(x):
    return nn.LSTM(7, 12, num_layers=2, bidirectional=True), x(5, 3, 7)


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("build", [gpt, bert, vit, mlp, lstm])
def test_the_products_of_a_step_read_back_as_they_were_described(nvidia, build, dtype, device):
    for product in set(products_of_a_step(build, dtype, device)):
        plan = cublaslt.ProductPlan(nvidia, product)
        plan.set_addresses(product.alignment)
        scale = 1 if product.compute is Compute.FLOAT64 else 0
        want = [product.compute, scale, *product.transposed, product.epilogue]
        assert [read(nvidia, plan.operation, at) for at in (0, 1, 3, 4, 7)] == want
        if product.epilogue.has_aux:
            assert read(nvidia, plan.operation, 12, ctypes.c_int64) == product.aux_leading
        for matrix, made in zip(product[:4], plan.layouts, strict=True):
            kinds = {1: ctypes.c_int32, 2: ctypes.c_uint64, 3: ctypes.c_uint64, 4: ctypes.c_int64, 5: ctypes.c_int32}
            found = [read(nvidia, made, at, form) for at, form in (kinds | {6: ctypes.c_int64}).items()]
            assert found == [0, *matrix[1:]] and read(nvidia, made, 0, ctypes.c_uint32) == cublaslt.TYPES[matrix.dtype]
        wish = cublaslt.preference(nvidia, product)
        assert [read(nvidia, wish, at) for at in (5, 6, 7, 8)] == list(product.alignment[:4])


def products_of_a_step(build, dtype, device):
    """What the forward and the backward pass of a model ask cublasLt for, which an emulation of it noted down."""
    rng = np.random.default_rng(0)

    def x(*shape, below=None):
        drawn = rng.normal(size=shape).astype("f") if below is None else rng.integers(0, below, shape)
        return ampkit.tensor(drawn, device="cuda")

    model, given = build(x)
    with ampkit.autocast("cuda", dtype=bfloat16, enabled=dtype == bfloat16):
        out = model.to("cuda")(given)
    out = out[0] if isinstance(out, tuple) else out
    out.float().square().mean().backward()
    assert len(set(device.cublaslt.ran)) > 4
    return device.cublaslt.ran


def test_the_numbers_are_those_of_nvidias_header(nvidia):
    header = Path(nvidia._name).parents[1] / "include" / "cublasLt.h"
    if not header.exists():
        pytest.skip(f"{header} does not exist")
    text = header.read_text() + header.with_name("cublas_api.h").read_text()
    known = {name: int(number, 0) for name, number in re.findall(r"\b(CUBLAS\w+) = (0x[0-9a-f]+|\d+)\b", text)}
    pairs = {
        "MATMUL_DESC": "TRANSA TRANSB EPILOGUE BIAS_POINTER EPILOGUE_AUX_POINTER EPILOGUE_AUX_LD BIAS_DATA_TYPE "
        "A_SCALE_POINTER B_SCALE_POINTER FAST_ACCUM A_SCALE_MODE B_SCALE_MODE",
        "MATRIX_LAYOUT": "BATCH_COUNT STRIDED_BATCH_OFFSET",
        "MATMUL_PREF": "MAX_WORKSPACE_BYTES REDUCTION_SCHEME_MASK"
        + "".join(f" MIN_ALIGNMENT_{x}_BYTES" for x in "ABCD"),
        "REDUCTION_SCHEME": "COMPUTE_TYPE MASK",
    }
    ours = [
        *(cublaslt.TRANS_A, cublaslt.TRANS_B, cublaslt.EPILOGUE, cublaslt.BIAS_POINTER, cublaslt.AUX_POINTER),
        *(cublaslt.AUX_LEADING, cublaslt.BIAS_TYPE, cublaslt.A_SCALES, cublaslt.B_SCALES, cublaslt.FAST_SUMS),
        *(cublaslt.A_SCALE_MODE, cublaslt.B_SCALE_MODE, cublaslt.BATCH_COUNT, cublaslt.BATCH_STRIDE),
        *(cublaslt.MAX_WORKSPACE, cublaslt.REDUCTIONS, *cublaslt.ALIGNMENTS),
        *(cublaslt.IN_FLOAT32, cublaslt.ANY_REDUCTION),
    ]
    assert ours == [known[f"CUBLASLT_{kind}_{name}"] for kind, names in pairs.items() for name in names.split()]
    modes = {"SCALAR": "SCALAR_32F", "NV": "VEC16_UE4M3", "MX": "VEC32_UE8M0", "OUTER": "OUTER_VEC_32F"}
    modes |= {"STRIP": "VEC128_32F", "SQUARE": "BLK128x128_32F"}
    assert all(known[f"CUBLASLT_MATMUL_MATRIX_SCALE_{modes[mode.name]}"] == mode for mode in ScaleMode)
    names = {Compute.FLOAT32: "32F", Compute.FLOAT64: "64F", Compute.INT32: "32I", Compute.TF32: "32F_FAST_TF32"}
    assert all(known[f"CUBLAS_COMPUTE_{name}"] == number for number, name in names.items())
    plain = {"NONE": "DEFAULT"}
    simple = [e for e in Epilogue if f"CUBLASLT_EPILOGUE_{plain.get(e.name, e.name)}" in known]
    assert len(simple) >= 4
    assert all(
        known[f"CUBLASLT_EPILOGUE_{plain.get(e.name, e.name)}"] == e for e in simple if not e.name.startswith("D")
    )


def test_a_call_that_fails_says_which_and_why(nvidia):
    made = cublaslt.layout(nvidia, A)
    with pytest.raises(CublasLtError, match="^cublasLtMatrixLayoutSetAttribute: invalid value$") as error:
        made.set(cublaslt.BATCH_COUNT, 1, ctypes.c_int8)
    assert error.value.status == 7


# finding it


@pytest.fixture
def places(monkeypatch):
    cublaslt.library.cache_clear()
    yield lambda *paths: monkeypatch.setattr(cublaslt, "_library_paths", lambda major: iter(paths))
    cublaslt.library.cache_clear()


def test_what_is_missing_is_said_in_one_line(places, tmp_path):
    places(str(tmp_path / "libcublasLt.so.13"))
    assert CublasLt(emulated_cupy).unavailable_reason() == f"libcublasLt.so.13 was not found: {install.cure_for(13)}"
    cublaslt.library.cache_clear()
    (tmp_path / "libcublasLt.so.13").write_text("no library")
    trouble = CublasLt(emulated_cupy).unavailable_reason()
    assert trouble.startswith("cublasLt could not be loaded: ") and "\n" not in trouble


@pytest.mark.parametrize("major", [12, 13])
def test_the_library_is_of_cupys_cuda_and_the_wheels_comes_before_the_systems(major, monkeypatch, tmp_path):
    for folder in ("cu13", "cublas"):
        (tmp_path / folder / "lib").mkdir(parents=True)
        (tmp_path / folder / "lib" / f"libcublasLt.so.{13 if folder == 'cu13' else 12}").touch()
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(cublaslt.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(cublaslt.importlib, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    found = list(cublaslt._library_paths(major))
    folder = {12: "cublas", 13: "cu13"}[major]
    assert found == [str(tmp_path / folder / "lib" / f"libcublasLt.so.{major}"), f"libcublasLt.so.{major}"]


def test_a_pathfinders_library_of_another_cuda_is_not_taken(monkeypatch):
    found = SimpleNamespace(load_nvidia_dynamic_lib=lambda name: SimpleNamespace(abs_path="/a/libcublasLt.so.13"))
    monkeypatch.setattr(cublaslt.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(cublaslt.importlib, "import_module", lambda name: found)
    assert list(cublaslt._library_paths(12)) == ["libcublasLt.so.12"]
    assert list(cublaslt._library_paths(13)) == ["/a/libcublasLt.so.13", "libcublasLt.so.13"]


# its calls, by a library of the same functions that multiplies on the host


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    path = tmp_path_factory.mktemp("cublaslt") / "libcublasLt.so"
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", "-o", str(path), str(SOURCE)], check=True)
    return str(path)


@pytest.fixture
def bindings(built, places):
    """The bindings of the library on the host, the products of an emulated GPU whose current stream is number 0x77."""
    places(built)
    allocated = []

    def alloc(size):
        allocated.append(size)
        return device_memory.alloc(size)

    current = SimpleNamespace(getDevice=lambda: 0, runtimeGetVersion=lambda: 13000)
    cuda = SimpleNamespace(runtime=current, get_current_stream=lambda: SimpleNamespace(ptr=0x77), Device=None)
    cuda.alloc = alloc
    made = CublasLt(SimpleNamespace(cuda=cuda))
    made.allocated, made.lib = allocated, cublaslt.library(13)[0]
    undo = backends.install(CUDA(emulated_cupy, cublaslt=made))
    yield made
    undo()


def on_device(*shape, seed=0):
    made = emulated_cupy.empty(shape, float32)
    made[...] = emulated_cupy.asarray(np.random.default_rng([seed, *shape]).standard_normal(shape).astype(float32))
    return made


@pytest.mark.parametrize("transposed", [(0, 0), (0, 1), (1, 0), (1, 1)], ids=str)
@pytest.mark.parametrize("lead", [(), (4,)], ids=str)
def test_products_come_out_of_the_library(bindings, lead, transposed):
    shapes = [(*lead, *((k, m) if turn else (m, k))) for (m, k), turn in zip(((5, 7), (7, 3)), transposed, strict=True)]
    a, b = (on_device(*s).swapaxes(-1, -2) if t else on_device(*s) for s, t in zip(shapes, transposed, strict=True))
    bias, addend = on_device(3), on_device(*lead, 5, 3, seed=1)
    truth = a.get() @ b.get()
    for more, expected in (
        ({}, truth),
        ({"bias": bias}, truth + bias.get()),
        ({"addend": addend, "alpha": 2.0, "beta": -0.5}, 2 * truth - 0.5 * addend.get()),
    ):
        found = gemm.product(a, b, float32, **more).get()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_product_is_planned_once_and_its_workspace_is_allocated_for_the_call_alone(bindings):
    before, products = bindings.lib.count_searches(), bindings.lib.count_products()
    for seed in range(3):
        gemm.product(on_device(5, 6, seed=seed), on_device(6, 3, seed=seed), float32)
    assert bindings.lib.count_searches() - before == 1 and bindings.lib.count_products() - products == 3
    gemm.product(on_device(5, 7), on_device(7, 3), float32)
    assert bindings.lib.count_searches() - before == 2
    assert bindings.allocated and max(bindings.allocated) <= cublaslt.WORKSPACE
    assert len(bindings.allocated) == bindings.lib.count_products() - products


def test_a_refusal_is_remembered_and_no_error(bindings):
    before = bindings.lib.count_searches()
    for _ in range(2):
        with pytest.raises(UnsupportedError):
            gemm.product(on_device(5, 7), on_device(7, 13), float32)
    assert bindings.lib.count_searches() - before == 1
    assert list(bindings.refused.values()) == [15] and next(iter(bindings.refused)).d.rows == 13


def test_plans_give_back_what_they_hold(bindings):
    gc.collect()  # plans of other bindings, which reference cycles keep until now
    living = bindings.lib.count_living()
    gemm.product(on_device(5, 7), on_device(7, 3), float32)
    assert bindings.lib.count_living() - living == 5  # an operation and four layouts
    bindings._plan.cache_clear()
    assert bindings.lib.count_living() == living


def test_a_failing_product_raises(bindings):
    bindings.xp.cuda.get_current_stream = lambda: SimpleNamespace(ptr=0)
    with pytest.raises(CublasLtError, match="^cublasLtMatmul: invalid value$"):
        gemm.product(on_device(5, 7), on_device(7, 3), float32)


def test_a_product_of_another_device_is_run_there(bindings):
    entered = []

    class Device:
        def __init__(self, number):
            self.number = number

        def __enter__(self):
            entered.append(self.number)
            bindings.xp.cuda.runtime.getDevice = lambda: self.number

        def __exit__(self, *error):
            bindings.xp.cuda.runtime.getDevice = lambda: 0

    bindings.xp.cuda.Device = Device
    a, b, out = on_device(5, 7), on_device(7, 3), on_device(5, 3)
    calls = gemm._plan_calls(a, b, out, out, None, Epilogue.NONE)
    memory = Memory(b.data.ptr, a.data.ptr, out.data.ptr, out.data.ptr)
    assert bindings.run(1, calls.product, memory)
    assert entered == [1] and list(bindings._handles) == [1]
    np.testing.assert_allclose(out.get(), a.get() @ b.get(), rtol=1e-5, atol=1e-5)


def test_threads_that_share_a_plan_do_not_mix_up_their_biases(bindings):
    a, b = on_device(2, 3), on_device(3, 4)
    wrong = []

    def work(number):
        bias = emulated_cupy.empty((4,), float32)
        bias[...] = float(number)
        expected = a.get() @ b.get() + number
        for _ in range(200):
            if np.abs(gemm.product(a, b, float32, bias=bias).get() - expected).max() > 1e-3:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
