"""Launches that a GPU refuses for want of shared memory or registers: the emulation refuses them too."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import budget, emulator, nvrtc
from cuda_on_cpu.emulator import LaunchError

from ampkit import Tensor, ops
from ampkit.backends.cuda import kernel
from ampkit.core.dtypes import float32, float64
from ampkit.core.tape import grad

MISSING = emulator.missing() or nvrtc.missing()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")
SOURCE = """
__global__ void many(float* x, int n) {
    float v[120];
    for (int i = 0; i < 120; i++) v[i] = x[i * 1024 + threadIdx.x];
    for (int r = 0; r < n; r++)
        for (int i = 0; i < 120; i++) v[i] = v[(i * 7 + 1) % 120] * v[i] + r;
    for (int i = 0; i < 120; i++) x[i * 1024 + threadIdx.x] = v[i];
}
__global__ void __launch_bounds__(256) bounded(float* x) { x[threadIdx.x] = 1.0f; }
"""
X = np.zeros(1 << 17, float32)


def launch(code, name, threads, *args, shared=0):
    emulator.RawModule(code, kernel.OPTIONS, [name]).get_function(name)((1,), (threads,), args, shared_mem=shared)


def softmax_row(cols, shared):
    sizes = np.int64(1), np.int64(cols), np.bool_(True)
    launch('#include "softmax.cu"\n', "softmax_forward<float, float, 8, 0>", 512, X, X, *sizes, shared=shared)


def test_dynamic_shared_memory_must_leave_room_for_the_static():
    message = "256 bytes of static and 49152 of dynamic shared memory; sm_80 has 49152 for a block"
    with pytest.raises(LaunchError, match=message):
        softmax_row(12288, 48 << 10)
    softmax_row(12224, (48 << 10) - 256)


def test_a_kernel_that_opts_in_has_more_shared_memory():
    name = "softmax_forward<float, float, 8, 0>"
    assert budget.refusal('#include "softmax.cu"\n', name, 512, 163 << 10, 163 << 10) is not None
    assert budget.refusal('#include "softmax.cu"\n', name, 512, 162 << 10, 163 << 10) is None


def test_registers_of_all_threads_of_a_block_must_be_there():
    with pytest.raises(LaunchError, match=r"\d+ registers for each of 1024 threads are \d+; sm_80 has 65536"):
        launch(SOURCE, "many", 1024, X, np.int32(1))
    launch(SOURCE, "many", 256, X, np.int32(1))


def test_launch_bounds_are_kept():
    with pytest.raises(LaunchError, match="blocks of 512 threads; its launch bounds allow 256"):
        launch(SOURCE, "bounded", 512, X)
    launch(SOURCE, "bounded", 256, X)


WHOLE = {  # kernels that are launched with up to 1024 threads, at sizes that tests do not reach
    "batchnorm": ["batch_norm_update"],
    "crossentropy": ["cross_entropy_sum"],
    "normalize": [f"norm_weight_sums<{t}>" for t in ("float", "__half", "__nv_bfloat16")],
    "reduce": [f"best_of_rows<{op}, {t}>" for op in ("ArgMax", "ArgMin") for t in ("float", "__half", "__nv_bfloat16")],
    "segments": ["segment_scan"],
}


@pytest.mark.parametrize(("stem", "name"), [(stem, name) for stem, names in WHOLE.items() for name in names])
def test_kernels_of_one_block_have_registers_for_1024_threads(stem, name):
    assert budget.refusal(f'#include "{stem}.cu"\n', name, 1024, 0) is None


def test_registers_are_given_to_whole_warps_in_units_of_256():
    assert budget.registers_of(64, 1024) == 65536
    assert budget.registers_of(65, 1024) == 32 * 2304
    assert budget.registers_of(33, 48) == 2 * 1280
    assert budget.registers_of(255, budget.ANY_THREADS) == budget.REGISTERS


def test_the_price_of_an_entry_has_its_static_memory_and_launch_bounds():
    price = budget.price('#include "normalize.cu"\n', "layer_norm_backward<float, float, 8, 2, true>", "sm_90")
    assert (price.shared, price.threads) == (256, 512) and 32 < price.registers <= 128


LENGTHS = [kernel.SHARED // 8, kernel.SHARED // 8 + 8, kernel.SHARED // 4, kernel.SHARED // 4 + 8, 12224, 12288, 12296]


@pytest.mark.parametrize("cols", LENGTHS)
def test_softmax_of_rows_about_as_long_as_shared_memory(cols, device):
    x, dy = np.random.default_rng(0).normal(size=(2, 1, cols)).astype(float32)
    point = Tensor(device.asarray(x), requires_grad=True)
    out = ops.softmax(point, -1)
    (dx,) = grad(out, point, Tensor(device.asarray(dy)))
    want = np.exp(x.astype(float64))
    want /= want.sum()
    np.testing.assert_allclose(out.numpy(force=True), want, rtol=1e-5)
    np.testing.assert_allclose(dx.numpy(), (dy - (dy * want).sum()) * want, rtol=1e-4, atol=1e-8)
