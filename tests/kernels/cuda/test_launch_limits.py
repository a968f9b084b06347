"""Launches that a GPU refuses for want of shared memory or registers: the emulation refuses them too."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from cuda_on_cpu import emulated, emulated_cupy, emulator, launch_limits, nvrtc_compiler, streams
from cuda_on_cpu.emulator import LaunchError

from ampkit import Tensor, backends, ops
from ampkit.backends.cuda import nvrtc
from ampkit.base.dtypes import float32, float64
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only

MISSING = emulator.missing() or nvrtc_compiler.missing()
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
    emulator.RawModule(code, nvrtc.OPTIONS, [name]).get_function(name)((1,), (threads,), args, shared_mem=shared)


def softmax_row(cols, shared):
    sizes = np.int64(1), np.int64(cols), np.int64(cols)
    launch('#include "nn/softmax.cu"\n', "softmax_forward<float, float, 8, 0>", 512, X, X, *sizes, shared=shared)


def test_dynamic_shared_memory_must_leave_room_for_the_static():
    message = "256 bytes of static and 49152 of dynamic shared memory; sm_75 has 49152 for a block"
    with pytest.raises(LaunchError, match=message):
        softmax_row(12288, 48 << 10)
    softmax_row(12224, (48 << 10) - 256)


def test_a_kernel_that_opts_in_has_more_shared_memory():
    def refusal(dynamic, opted):
        return launch_limits.refusal(
            '#include "nn/softmax.cu"\n', "softmax_forward<float, float, 8, 0>", 1024, dynamic, opted
        )

    assert refusal(47 << 10, 48 << 10) is None and refusal(49 << 10, 48 << 10) is not None
    assert refusal(63 << 10, 63 << 10) is None
    assert "a limit of 65536; sm_75 has 65536 for a block" in refusal(49 << 10, 64 << 10)
    assert refusal(162 << 10, 162 << 10) is None
    assert "a limit of 166912; sm_80 has 166912 for a block" in refusal(49 << 10, 163 << 10)
    assert refusal(226 << 10, 226 << 10) is None
    assert "a limit of 232448; sm_90 has 232448 for a block" in refusal(49 << 10, 227 << 10)
    assert "sm_90 has 232448" in refusal(228 << 10, 228 << 10)


def test_the_limit_of_a_kernel_is_raised_once_on_each_device_before_it_needs_that(device, monkeypatch):
    raised, limit = [], emulated_cupy.RawKernel.max_dynamic_shared_size_bytes

    def set_limit(self, size):
        raised.append((self._function.name, size))
        limit.fset(self, size)

    monkeypatch.setattr(emulated_cupy.RawKernel, "max_dynamic_shared_size_bytes", limit.setter(set_limit))
    for cols in (11000, 13000, 13000):
        ops.softmax(Tensor(device.asarray(np.zeros((1, cols), float32))), -1)
    assert raised == [("softmax_forward<float, float, 8, 0>", 226 << 10)]

    with streams.devices(2):
        first = emulated()
        undo = backends.install(first)
        for gpu in (first, first.at(1), first):
            x, out = (gpu.asarray(np.zeros((1, 13000), float32)) for _ in range(2))
            nvrtc.launch("nn/softmax", raised[0][0], 1, 512, x, out, *map(np.int64, (1, 13000, 13000)), shared=52000)
        undo()
    assert len(raised) == 3


@pytest.fixture
def give_shared(monkeypatch):
    """Gives the device as much shared memory for a block that opts in as it is called with."""
    about = emulated_cupy.cuda.runtime.getDeviceProperties(0)

    def give(size):
        given = {**about, "sharedMemPerBlockOptin": size}
        monkeypatch.setattr(emulated_cupy.cuda.runtime, "getDeviceProperties", lambda index: given)

    return give


@pytest.mark.parametrize(("optin", "kept"), [(48 << 10, 12032), (99 << 10, 13000)])
def test_rows_are_kept_as_far_as_the_device_has_shared_memory(optin, kept, device, give_shared):
    give_shared(optin)
    x = device.asarray(np.zeros((1, 13000), float32))
    assert nvrtc.cached_columns(x, 13000, 4) == kept
    np.testing.assert_allclose(ops.softmax(Tensor(x), -1).numpy(), 1 / 13000, rtol=1e-6)


LONG = {
    "softmax": lambda x, w: ops.softmax(x, -1),
    "layer_norm": lambda x, w: ops.layer_norm(x, w.shape, w, w),
    "rms_norm": lambda x, w: ops.rms_norm(x, w.shape, w),
    "group_norm": lambda x, w: ops.group_norm(x.reshape(1, 4, -1), 1),
}


@pytest.mark.parametrize(
    ("arch", "cols"), [("sm_80", 10368), ("sm_80", 20736), ("sm_80", 20744), ("sm_75", 8064), ("sm_75", 8072)]
)
@pytest.mark.parametrize("op", LONG)
def test_long_rows_fit_into_what_an_a100_and_a_t4_have(op, arch, cols, device, give_shared):
    give_shared(launch_limits.BLOCK_SHARED_OPT_IN[arch])
    x, w = (np.random.default_rng(i).normal(size=size).astype(float32) for i, size in enumerate([(1, cols), (cols,)]))
    found = []
    for place, dtype in ((device.asarray, float32), (np.asarray, float64)):
        points = [Tensor(place(a.astype(dtype)), requires_grad=True) for a in (x, w)]
        with nullcontext() if dtype == float32 else reference_only():
            out = LONG[op](*points)
            (dx,) = grad(out, points[:1], Tensor(place(x[:, ::-1].reshape(out.shape).astype(dtype))))
        found.append((out.numpy(force=True), dx.numpy(force=True)))
    for got, want in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5 * np.abs(want).max())


def test_registers_of_all_threads_of_a_block_must_be_there():
    with pytest.raises(LaunchError, match=r"\d+ registers for each of 1024 threads are \d+; sm_75 has 65536"):
        launch(SOURCE, "many", 1024, X, np.int32(1))
    launch(SOURCE, "many", 256, X, np.int32(1))


def test_launch_bounds_are_kept():
    with pytest.raises(LaunchError, match="blocks of 512 threads; its launch bounds allow 256"):
        launch(SOURCE, "bounded", 512, X)
    launch(SOURCE, "bounded", 256, X)


WHOLE = {  # kernels that are launched with up to 1024 threads, at sizes that tests do not reach
    "nn/batch_norm": ["batch_norm_update"],
    "loss/cross_entropy": ["cross_entropy_sum"],
    "nn/layer_norm": [f"norm_weight_sums<{t}>" for t in ("float", "__half", "__nv_bfloat16")],
    "reduction/reductions": [
        f"argbest_rows<{op}, {t}>" for op in ("ArgMax", "ArgMin") for t in ("float", "__half", "__nv_bfloat16")
    ],
    "indexing/segment_sum": ["segment_scan"],
}


@pytest.mark.parametrize(("source", "name"), [(source, name) for source, names in WHOLE.items() for name in names])
def test_kernels_of_one_block_have_registers_for_1024_threads(source, name):
    assert launch_limits.refusal(f'#include "{source}.cu"\n', name, 1024, 0) is None


def test_registers_are_given_to_whole_warps_in_units_of_256():
    assert launch_limits.registers_of(64, 1024) == 65536
    assert launch_limits.registers_of(65, 1024) == 32 * 2304
    assert launch_limits.registers_of(33, 48) == 2 * 1280
    assert launch_limits.registers_of(255, launch_limits.ANY_THREADS) == launch_limits.REGISTERS


def test_the_price_of_an_entry_has_its_static_memory_and_launch_bounds():
    price = launch_limits.resource_usage(
        '#include "nn/layer_norm.cu"\n', "layer_norm_backward<float, float, 8, 2, true>", "sm_90"
    )
    assert (price.shared, price.threads) == (256, 512) and 32 < price.registers <= 128


OPTED = 226 << 10
LENGTHS = [12288, 65001, *(n // each + more for n in (nvrtc.SHARED, OPTED) for each in (8, 4) for more in (0, 8))]


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
