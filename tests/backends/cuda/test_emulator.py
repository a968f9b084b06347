"""The emulation of CUDA: that it computes what a GPU would, and shows what a GPU would hide."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import emulator
from cuda_on_cpu.emulator import FORWARD, REVERSE, LaunchError
from cuda_on_cpu.entries import entries

from ampkit.backends.cuda import nvrtc
from ampkit.base.dtypes import bfloat16, float16, float32, int32, int64

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")

SOURCE = """
#include "include/block.cuh"

__global__ void racy(const float* x, float* y, bool wait) {
    __shared__ float s[256];
    s[threadIdx.x] = x[threadIdx.x];
    if (wait) __syncthreads();
    y[threadIdx.x] = s[(threadIdx.x + 1) % blockDim.x];
}
__global__ void racy_in_warp(float* y, bool wait) {
    DYN_SHARED(float, s);
    s[threadIdx.x] = threadIdx.x;
    if (wait) __syncwarp();
    y[threadIdx.x] = s[threadIdx.x ^ 1];
}
__global__ void diverges(float* y, int how) {
    if (how == 0 && threadIdx.x < 32) __syncthreads();
    if (how == 1 && threadIdx.x == 40) return;
    if (how == 1) __syncthreads();
    if (how == 2 && threadIdx.x % 2) __syncwarp();
    if (how == 3) y[0] = threadIdx.x % 2 ? __shfl_xor_sync(ALL_LANES, y[0], 1) : __shfl_down_sync(ALL_LANES, y[0], 1u);
    if (how == 4) y[threadIdx.x] = __shfl_sync(threadIdx.x % 2 ? 0xaaaaaaaau : 0x55555555u, y[0], 0);
    if (how == 5) __syncwarp(0x0000ffffu);
    if (how == 6) Pack<float>::load(y + 1);
    if (how == 7) __trap();
}
__global__ void unset(float* y, int n) {
    __shared__ float fixed[3];
    DYN_SHARED(float, given);
    y[0] = fixed[2], y[1] = given[0], y[2] = given[n - 1];
    fixed[2] = 1.0f;
}
__global__ void warps(const int* x, int* y, int* votes) {
    int v = x[threadIdx.x], lane = threadIdx.x & 31;
    y += threadIdx.x * 6;
    y[0] = __shfl_xor_sync(ALL_LANES, v, 5);
    y[1] = __shfl_down_sync(ALL_LANES, v, 3);
    y[2] = __shfl_up_sync(ALL_LANES, v, 3);
    y[3] = __shfl_sync(ALL_LANES, v, 9);
    y[4] = __shfl_sync(ALL_LANES, v, 3, 8);
    y[5] = lane < 16 ? __shfl_xor_sync(0x0000ffffu, v, 1) : __shfl_xor_sync(0xffff0000u, v, 2);
    unsigned ballot = __ballot_sync(ALL_LANES, v > 0);
    int any = __any_sync(ALL_LANES, v == 7), all = __all_sync(ALL_LANES, v > -1000);
    votes += threadIdx.x / 32 * 3;
    if (lane == 0) votes[0] = ballot, votes[1] = any, votes[2] = all;
}
__global__ void blocks(int* y) {
    int some = __syncthreads_or(threadIdx.x == 33), every = __syncthreads_and(threadIdx.x < 64);
    int count = __syncthreads_count(threadIdx.x % 3 == 0);
    y[threadIdx.x] = some + 2 * every + 4 * count;
}
__global__ void counters(int* small, unsigned long long* large, unsigned* first) {
    atomicAdd(small, 1);
    atomicMax(small + 1, (int)threadIdx.x);
    atomicAdd(large, 1ull << 33);
    atomicCAS(first, 0u, threadIdx.x + 1);
}
__global__ void reductions(const float* x, float* sums, int64* places, int n) {
    x += blockIdx.x * (int64)n;
    float total = 0.0f, squares = 0.0f, most = -INFINITY_F;
    ValueIndex best = ArgMax::identity<ValueIndex>(), least = best;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        total += x[i], squares += x[i] * x[i], most = Max::combine(most, x[i]);
        best = ArgMax::combine(best, {x[i], i}), least = ArgMin::combine(least, {x[i], i});
    }
    total = block_sum(total), squares = block_sum(squares), most = block_max(most);
    best = block_argmax(best), least = block_argmin(least);
    if (threadIdx.x == blockDim.x - 1) {
        sums += blockIdx.x * 3;
        sums[0] = total, sums[1] = squares, sums[2] = most;
        places[blockIdx.x * 2] = best.index, places[blockIdx.x * 2 + 1] = least.index;
    }
}
template <typename T> __global__ void widen(const T* x, float* y, int64 n) {
    int64 i = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    if (i < n) y[i] = to_float(x[i]);
}
template <typename T> __global__ void narrow(const float* x, T* y, int64 n) {
    int64 i = blockIdx.x * (int64)blockDim.x + threadIdx.x;
    if (i < n) y[i] = from_float<T>(x[i]);
}
template <typename T, int N> __global__ void packed(const T* x, float* y) {
    float v[N];
    load_floats<N>(x + threadIdx.x * N, v);
    for (int i = 0; i < N; i++) v[i] = 2.0f * v[i];
    store_floats<N>(y + threadIdx.x * N, v);
}
__global__ void where(int* y) {
    int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    y[block * blockDim.x * blockDim.y * blockDim.z + thread] += block * 1000 + thread;
}
__global__ void flushes(float* y) { y[0] = y[0] * 0.5f; }
struct Two { float* to; int64 n; };
__global__ void by_value(float* y, Two two) { y[0] = two.n; two.to[1] = 2.0f; }
__global__ void larger(const float* x, float* y) { y[0] = max(x[0], x[1]); }
"""
NAMES = ["racy", "racy_in_warp", "diverges", "unset", "warps", "blocks", "counters", "reductions", "where", "flushes"]
NAMES += ["by_value", "larger", "widen<__half>", "widen<__nv_bfloat16>", "narrow<__half>", "narrow<__nv_bfloat16>"]
NAMES += ["packed<float, 8>", "packed<__half, 8>", "packed<__half, 4>", "packed<__nv_bfloat16, 2>"]


@pytest.fixture(scope="module")
def module():
    return emulator.RawModule(SOURCE, nvrtc.OPTIONS, NAMES)


@pytest.fixture
def run(module):
    """Launches an entry on one block of `block` threads, or on a grid."""
    return lambda name, *args, grid=(1,), block=(64,), **more: module.get_function(name)(grid, block, args, **more)


@pytest.mark.parametrize("wait", [False, True])
def test_a_missing_barrier_shows_as_dependence_on_the_order_of_threads(wait, run):
    x, found = np.arange(256, dtype=float32), []
    for order in (FORWARD, REVERSE, 5):
        found.append(np.zeros(256, float32))
        with emulator.thread_order(order):
            run("racy", x, found[-1], np.bool_(wait), block=(256,))
    same = all(np.array_equal(y, found[0]) for y in found)
    assert same == wait
    assert not wait or np.array_equal(found[0], np.roll(x, -1))


@pytest.mark.parametrize("wait", [False, True])
def test_lanes_of_a_warp_do_not_move_in_step(wait, run):
    y = np.zeros(64, float32)
    run("racy_in_warp", y, np.bool_(wait), shared_mem=256)
    assert np.array_equal(y, np.arange(64) ^ 1) == wait


DIVERGENCE = [
    "32 wait at __syncthreads, 0 for others of their warp, 32 have returned",
    "63 wait at __syncthreads, 0 for others of their warp, 1 have returned",
    "0 wait at __syncthreads, 32 for others of their warp, 32 have returned",
    "_sync meets __shfl_",
    "__shfl_sync from a lane that takes no part",
    "__syncwarp by a lane that its mask leaves out",
    "an access of 16 bytes off its boundary, in thread",
    "__trap",
]


@pytest.mark.parametrize("how", range(len(DIVERGENCE)))
def test_what_hangs_or_is_undefined_on_a_gpu_is_an_error(how, run):
    y = np.zeros(64 + 4, float32)
    y = y[-y.ctypes.data // 4 % 4 :]
    for _ in range(2):  # and the next launch is none the worse for it
        with pytest.raises(LaunchError, match=DIVERGENCE[how]):
            run("diverges", y, np.int32(how))
        run("diverges", y, np.int32(9))


def test_shared_memory_starts_as_nan(run):
    for _ in range(2):
        y = np.zeros(3, float32)
        run("unset", y, np.int32(25), shared_mem=100, block=(1,))
        assert np.isnan(y).all()


@pytest.mark.parametrize("order", [FORWARD, REVERSE, 3])
def test_shuffles_and_votes_are_cudas(order, run):
    x = np.random.default_rng(0).integers(-9, 9, 64).astype(int32)
    x[40] = 7
    y, votes = np.zeros((64, 6), int32), np.zeros((2, 3), int32)
    with emulator.thread_order(order):
        run("warps", x, y, votes)
    i = np.arange(64)
    lane, first = i % 32, i // 32 * 32
    places = [i ^ 5, np.where(lane + 3 < 32, i + 3, i), np.where(lane >= 3, i - 3, i), first + 9, i // 8 * 8 + 3]
    places.append(np.where(lane < 16, i ^ 1, i ^ 2))
    np.testing.assert_array_equal(y, np.stack([x[p] for p in places], 1))
    bits = [(x[w : w + 32] > 0) @ (1 << np.arange(32)) for w in (0, 32)]
    np.testing.assert_array_equal(votes[:, 0].view(np.uint32), bits)
    np.testing.assert_array_equal(votes[:, 1:], [[int(7 in x[:32]), 1], [1, 1]])


def test_a_barrier_counts(run):
    y = np.zeros(96, int32)
    run("blocks", y, block=(96,))
    assert (y == 1 + 4 * 32).all()


def test_atomics_miss_nobody(run):
    small, large, first = np.zeros(2, int32), np.zeros(1, np.uint64), np.zeros(1, np.uint32)
    run("counters", small, large, first, grid=(3,))
    assert small.tolist() == [192, 63] and large[0] == 192 << 33 and 1 <= first[0] <= 64


def test_every_thread_of_every_block_runs_once(run):
    y = np.zeros(2 * 3 * 4 * 30, int32)
    run("where", y, grid=(4, 3, 2), block=(5, 3, 2))
    np.testing.assert_array_equal(y, (np.arange(24)[:, None] * 1000 + np.arange(30)).ravel())


@pytest.mark.parametrize("threads", [32, 96, 1024])
def test_reductions_find_sum_largest_and_first_places(threads, run):
    x = np.random.default_rng(1).integers(-50, 50, (4, 777)).astype(float32)
    x[1, 300] = x[2, 5] = np.nan
    x[2, 700] = np.nan
    x[3] = -np.inf
    sums, places = np.zeros((4, 3), float32), np.zeros((4, 2), int64)
    run("reductions", x, sums, places, np.int32(777), grid=(4,), block=(threads,))
    np.testing.assert_array_equal(sums, np.stack([x.sum(1), (x * x).sum(1), x.max(1)], 1))
    np.testing.assert_array_equal(places, np.stack([x.argmax(1), x.argmin(1)], 1))


SPECIAL = [
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    65504,
    65519.996,
    65520,
    -1e38,
    3.4028235e38,
    3.3895314e38,
    3.396e38,
    2**-24,
    2**-25,
]
SPECIAL += [2**-25 * 1.0001, 6.1e-5, 1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, 1.2e-38]


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=lambda d: d.name)
def test_sixteen_bits_are_widened_and_rounded_as_on_the_host(dtype, run):
    name = nvrtc.C_NAMES[dtype]
    every = np.arange(65536, dtype=np.uint16).view(dtype)
    wide = np.zeros(65536, float32)
    run(f"widen<{name}>", every, wide, int64.type(65536), grid=(256,), block=(256,))
    np.testing.assert_array_equal(wide, every.astype(float32))
    np.testing.assert_array_equal(np.signbit(wide[wide == 0]), [False, True])
    with np.errstate(invalid="ignore"):  # signalling NaNs
        ties = wide[:-1] / 2 + wide[1:] / 2
    given = np.concatenate([wide, ties, np.nextafter(ties, float32.type(0)), np.array(SPECIAL, float32)])
    narrow = np.zeros(given.size, dtype)
    run(f"narrow<{name}>", given, narrow, int64.type(given.size), grid=(-(-given.size // 256),), block=(256,))
    with np.errstate(over="ignore", invalid="ignore"):
        want = given.astype(dtype)
    nan = np.isnan(given)
    np.testing.assert_array_equal(np.isnan(narrow.astype(float32)), nan)
    np.testing.assert_array_equal(narrow.view(np.uint16)[~nan], want.view(np.uint16)[~nan])


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("packed")])
def test_packs_of_every_width_bring_each_value_to_its_place(name, run):
    dtype = next(d for d, word in nvrtc.C_NAMES.items() if f"<{word}," in name)
    n = 64 * int(name.partition(", ")[2][:-1])
    x, y = np.arange(n).astype(dtype), np.zeros(n, float32)
    run(name, x, y)
    np.testing.assert_array_equal(y, 2 * x.astype(float32))


def test_all_libraries_launch_on_one_machine():
    """The stacks of its threads would take megabytes of each."""
    sources = [f"__global__ void fills(float* y) {{ y[threadIdx.x] = {value}; }}" for value in (1, 2)]
    fills = [emulator.RawModule(source, nvrtc.OPTIONS, ["fills"]).get_function("fills") for source in sources]
    for value, function in enumerate(fills, 1):
        y = np.zeros(512, float32)
        function((1,), (512,), (y,))
        assert set(y) == {value}
    assert fills[0].lib is not fills[1].lib
    assert fills[0].lib.cuda_on_cpu_machine(None) == fills[1].lib.cuda_on_cpu_machine(None)


def test_subnormal_float32_is_zero_in_kernels_and_not_after_them(run):
    y = np.array([1.2e-38], float32)
    run("flushes", y, block=(1,))
    assert y[0] == 0 and np.float32(1.2e-38) * np.float32(0.5) > 0


@pytest.mark.skipif("fma" not in emulator.cpu_flags(), reason="a CPU without FMA")
@pytest.mark.parametrize("contracted", [False, True])
def test_contraction_rounds_a_product_and_a_sum_once(contracted):
    code = """__global__ void square_less(const float* x, float* y) {
        y[0] = x[0] * x[0] - x[1], y[1] = __fmul_rn(x[0], x[0]) - x[1], y[2] = __fadd_rn(x[0] * x[0], -x[1]);
    }"""
    with emulator.compiled_with(emulator.CONTRACTED if contracted else ["-ffp-contract=off"]):
        function = emulator.RawModule(code, nvrtc.OPTIONS, ["square_less"]).get_function("square_less")
    root = np.float32(1.1)
    x, y = np.array([root, root * root]), np.ones(3, float32)
    function((1,), (1,), (x, y))
    lost = float(root) ** 2 - float(root * root)
    assert lost != 0
    assert y.tolist() == [lost if contracted else 0, 0, 0]


def test_the_larger_of_two_drops_nan_as_cudas_does(run):
    y = np.zeros(1, float32)
    run("larger", np.array([np.nan, 1], float32), y, block=(1,))
    assert y[0] == 1


def test_a_record_is_passed_by_value(run):
    y = np.zeros(2, float32)
    two = np.zeros(1, [("to", np.uint64), ("n", int64)])
    two["to"], two["n"] = y.ctypes.data, 5
    run("by_value", y, two, block=(1,))
    assert y.tolist() == [5, 2]


F, X = np.zeros(4, float32), np.zeros(4, float16)
WRONG = [
    ("racy", (F, F), "3 parameters, 2 arguments"),
    ("racy", (F, F, np.bool_(True), F), "3 parameters, 4 arguments"),
    ("racy", (F, F, True), "argument 2 is a bool; the parameter is a value, which takes a NumPy scalar"),
    ("racy", (F, F, np.int32(1)), "argument 2 is of int32; the parameter is i1"),
    ("racy", (F, X, np.bool_(True)), "argument 1 is of float16; the parameter points to f4"),
    ("racy", (F, np.int64(0), np.bool_(True)), "argument 1 is .* and the parameter a pointer"),
    ("racy", (F, None, np.bool_(True)), "argument 1 is None and the parameter a pointer"),
    ("reductions", (F, F, np.zeros(4, int64), np.int64(4)), "argument 3 is of int64; the parameter is i4"),
    ("reductions", (F, F, np.zeros(4, int64), np.float32(4)), "argument 3 is of float32; the parameter is i4"),
    ("by_value", (F, np.zeros(1, [("to", np.uint64)])), "argument 1 is of .*; the parameter is s16"),
]


@pytest.mark.parametrize(("name", "args", "message"), WRONG)
def test_arguments_that_are_not_the_parameters_are_refused(name, args, message, run):
    with pytest.raises(LaunchError, match=message):
        run(name, *args)


SIZES = [((0,), (32,)), ((1,), (1025,)), ((1,), (32, 33)), ((1, 65536), (1,)), ((1,), (1, 1, 65))]


@pytest.mark.parametrize(("grid", "block"), SIZES)
def test_a_grid_that_cuda_does_not_take_is_refused(grid, block, run):
    with pytest.raises(LaunchError, match="CUDA takes no grid"):
        run("flushes", F, grid=grid, block=block)


def test_more_shared_memory_than_a_block_has_must_be_asked_for(module):
    function = module.get_function("flushes")
    with pytest.raises(LaunchError, match="48 KiB"):
        function((1,), (1,), (F,), shared_mem=(48 << 10) + 1)
    function.max_dynamic_shared_size_bytes = 64 << 10
    function((1,), (1,), (F,), shared_mem=64 << 10)


def test_atomics_on_floating_point_are_refused():
    code = "__global__ void f(float* x) { atomicAdd(x, 1.0f); }"
    with pytest.raises(RuntimeError, match="atomics are for int"):
        emulator.RawModule(code, nvrtc.OPTIONS, ["f"])


def test_an_entry_that_the_file_does_not_name_is_refused():
    module = emulator.RawModule('#include "nn/softmax.cu"\n', nvrtc.OPTIONS)
    with pytest.raises(LookupError, match="no entry 'softmax_forward<float, __half, 1, 1>'; .* name softmax_forward<"):
        module.get_function("softmax_forward<float, __half, 1, 1>")


ENTRIES = {
    "// entries: step": ["step"],
    "// entries: f<T> for T in TYPES": ["f<float>", "f<__half>", "f<__nv_bfloat16>"],
    "// entries: f<T, Op> for T in (float), Op in (Exp,\n//     Log)": ["f<float, Exp>", "f<float, Log>"],
    "// set A = (Exp)\n// set B = A + (Log, Pow<2, 3>)\n// entries: f<Op> for Op in B": [
        "f<Exp>",
        "f<Log>",
        "f<Pow<2, 3>>",
    ],
    "// entries: f<S, 4, T, N> for (S, T) in ((float, int)), N in (1, 2)": [
        "f<float, 4, int, 1>",
        "f<float, 4, int, 2>",
    ],
    "// entries: f<Op<T>> for T in (float)\n// entries: g": ["f<Op<float>>", "g"],
}


@pytest.mark.parametrize("text", ENTRIES)
def test_entries_are_read_from_the_comments_of_a_file(text, tmp_path):
    (tmp_path / "some.cu").write_text(f"code();\n{text}\n")
    assert entries("some", tmp_path) == ENTRIES[text]
    assert len(entries("nn/softmax")) == 100


def test_kernels_are_compiled_anew_when_a_header_of_any_folder_changes(tmp_path, monkeypatch):
    digests = []
    monkeypatch.setattr(emulator, "_loaded", lambda code, folders, names, digest: digests.append(digest))
    monkeypatch.setattr(emulator, "_entries", lambda *_: ())
    kernels, beside = tmp_path / "kernels", tmp_path / "beside"
    beside.mkdir()
    for text in ("// 1", "// 2"):
        (beside / "table.h").write_text(text)
        emulator.library('#include "table.h"\n', (str(kernels), str(beside)), (), "source", kernels)
    assert digests[0] != digests[1]
