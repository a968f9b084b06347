"""Memory-bound kernels move hardly more than what their formulas need, and the counting of it counts."""

from __future__ import annotations

import numpy as np
import pytest
from bench import traffic as cases
from cuda_on_cpu import emulator, nvrtc_compiler, occupancy, traffic

from ampkit.backends.cuda import nvrtc
from ampkit.base.dtypes import bfloat16, float32

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
CHECKED = [(group, dtype) for group, dtype in cases.CASES if dtype == bfloat16 or group is cases.updates]
SOURCE = """
#include "include/block.cuh"
__global__ void moves(const float* x, const float* weight, float* y, int again) {
    __shared__ float held[256];
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    held[threadIdx.x] = x[at];
    __syncthreads();
    float v = held[threadIdx.x ^ 1] * weight[threadIdx.x];
    if (again) v += *(const volatile float*)(x + at);
    y[at] = v;
}
__global__ void packs(const __half* x, float* y) {
    float v[8];
    load_floats<8>(x + threadIdx.x * 8, v);
    store_floats<8>(y + threadIdx.x * 8, v);
}
"""
SIZE = 1 << 14


@pytest.fixture(scope="module")
def module():
    with emulator.compiled_with(traffic.FLAGS):
        return emulator.RawModule(traffic.COUNTERS + SOURCE, nvrtc.OPTIONS, ["moves", "packs"])


@pytest.mark.parametrize("again", [0, 1])
def test_large_arrays_count_at_each_access_and_small_ones_once(again, module):
    x, weight, y = np.ones(SIZE, float32), np.ones(256, float32), np.zeros(SIZE, float32)
    counted, args = traffic.Counted({}), (x, weight, y, np.int32(again))
    counted.run("", module.get_function("moves"), (SIZE // 256,), (256,), args)
    (launch,) = counted.launches
    assert launch.moved == x.nbytes * (2 + again) + weight.nbytes
    assert (launch.blocks, launch.threads) == (SIZE // 256, 256)
    np.testing.assert_array_equal(y, 1 + again)


def test_accesses_of_16_bytes_count_whole(module):
    x, y, counted = np.ones(1024, np.float16), np.zeros(1024, float32), traffic.Counted({})
    counted.run("", module.get_function("packs"), (1,), (64,), (x, y))
    assert counted.launches[0].moved == 64 * 8 * (2 + 4)


@pytest.fixture(scope="module")
def measured():
    return cases.measured(CHECKED)


def test_kernels_move_hardly_more_than_they_need(measured):
    assert {(m.name, m.dtype): round(m.ratio, 2) for m in measured if m.ratio > cases.most_of(m.name)} == {}
    assert all(m.ratio >= 0.99 for m in measured), "needs less than it says"


def test_no_bound_is_higher_than_it_has_to_be(measured):
    for start, (most, _) in cases.MORE.items():
        assert max(m.ratio for m in measured if m.name.startswith(start)) > most - 0.4


def test_occupancy_is_what_registers_shared_memory_and_threads_allow():
    assert occupancy.resident(32, 0, 256) == 8  # 64 warps
    assert occupancy.resident(64, 0, 512) == 2  # 65536 registers
    assert occupancy.resident(16, 47 << 10, 128) == 4  # 227 KiB, and 1 KiB more for each block
    assert occupancy.resident(16, 0, 32) == 32  # blocks


@pytest.mark.skipif(nvrtc_compiler.missing() is not None, reason=nvrtc_compiler.missing() or "")
def test_a_launch_is_joined_with_the_registers_of_its_entry():
    launch = traffic.Launch("nn/softmax", "softmax_forward<float, float, 8, 0>", 1, 512, 16384, 0)
    found = occupancy.of(launch)
    assert found.static == 256 and found.registers >= 16 and found.share == 1.0
