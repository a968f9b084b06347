"""ampkit.cuda: device properties, memory statistics, out-of-memory errors, missing devices."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from cuda_on_cpu import emulated_cupy, installed, memory

import ampkit
from ampkit import backends, nn, ops, optim
from ampkit.backends.cuda import device as cuda_device
from ampkit.backends.cuda.device import connect
from ampkit.backends.cuda.libs import cublaslt
from ampkit.core.dispatch import reference_only


@pytest.fixture
def device():
    """The emulated GPU, as "cuda"."""
    with installed() as backend:
        yield backend
    memory.hooks.clear()


@pytest.fixture
def limit(device):
    """A function that limits how many more bytes the pool may allocate from the device."""
    gc.collect()

    def leave(more):
        memory.pool.free_all_blocks()
        memory.pool.set_limit(memory.pool.total_bytes() + more)

    yield leave
    memory.pool.set_limit(0)


def test_a_gpu_has_a_name_an_index_and_a_capability(device):
    assert ampkit.cuda.is_available() and ampkit.cuda.device_count() == 1 and ampkit.cuda.current_device() == 0
    assert ampkit.cuda.get_device_name() == ampkit.cuda.get_device_name(0) == "an emulated GPU"
    assert ampkit.cuda.get_device_capability("cuda:0") == (9, 0)


def test_allocated_memory_and_its_peak_are_counted(device):
    gc.collect()
    ampkit.cuda.empty_cache()
    ampkit.cuda.reset_peak_memory_stats()
    before, reserved = ampkit.cuda.memory_allocated(), ampkit.cuda.memory_reserved()
    kept = ampkit.zeros(1000, device="cuda")
    ampkit.zeros(100_000, device="cuda")
    assert 4000 <= ampkit.cuda.memory_allocated() - before < 8000
    assert 404_000 <= ampkit.cuda.max_memory_allocated() - before < 410_000
    assert ampkit.cuda.memory_reserved() - before >= 404_000
    ampkit.cuda.empty_cache()
    ampkit.cuda.reset_peak_memory_stats()
    assert ampkit.cuda.max_memory_allocated() == ampkit.cuda.memory_allocated() <= ampkit.cuda.memory_reserved()
    assert ampkit.cuda.memory_reserved() <= reserved + 8000
    del kept


def test_without_a_gpu_memory_is_zero_and_device_properties_raise():
    if ampkit.cuda.is_available():
        pytest.skip("there is a GPU")
    assert ampkit.cuda.memory_allocated() == ampkit.cuda.max_memory_allocated() == ampkit.cuda.memory_reserved() == 0
    ampkit.cuda.reset_peak_memory_stats()
    for ask in (ampkit.cuda.get_device_name, ampkit.cuda.get_device_capability, ampkit.cuda.synchronize):
        with pytest.raises(ampkit.DeviceError):
            ask()


def test_synchronize_raises_deferred_errors(device):
    index = ampkit.tensor(np.array([1, 9]), device="cuda")
    ops.embedding(index, ampkit.zeros(4, 2, device="cuda"))
    with pytest.raises(ampkit.RangeError, match="9 at position 1"):
        ampkit.cuda.synchronize()


# memory that runs out


def test_an_out_of_memory_error_names_the_request_and_what_holds_memory(limit):
    parameter = nn.Parameter(ampkit.ones(2**18, device="cuda"))
    optimizer = optim.Adam([parameter])
    (parameter * parameter).sum().backward()
    optimizer.step()
    limit(2**20)
    with pytest.raises(ampkit.OutOfMemoryError) as told:
        ampkit.zeros(2**19, device="cuda")
    line, cure = str(told.value).split("\n")
    assert line.startswith("cuda:0: needs 2.0 MiB more, got ") and "MiB free of" in line
    assert "parameters 1.0 MiB, gradients 1.0 MiB, optimizer 2.0 MiB, activations and others" in line
    assert all(way in cure for way in ("smaller batch", "recompute", "bfloat16"))
    assert isinstance(told.value, MemoryError)


def test_a_loose_parameter_and_its_gradient_are_counted(limit):
    parameter = nn.Parameter(ampkit.ones(2**20, device="cuda"))
    (parameter * parameter).sum().backward()
    limit(2**20)
    with pytest.raises(ampkit.OutOfMemoryError, match=r"parameters 4\.0 MiB, gradients 4\.0 MiB, optimizer 0 bytes"):
        ampkit.zeros(2**19, device="cuda")


def test_a_step_that_does_not_fit_raises_and_a_smaller_one_succeeds(limit):
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4)).to("cuda")
    optimizer, scaler = optim.AdamW(model.parameters()), ampkit.GradScaler()

    def step(rows):
        x, labels = ampkit.ones(rows, 64, device="cuda"), ampkit.zeros(rows, dtype=ampkit.int64, device="cuda")
        with ampkit.autocast("cuda", dtype=ampkit.float16):
            loss = ops.cross_entropy(model(x), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.item()

    first = step(8)
    limit(600_000)
    count = 0
    for rows in (2000, 1500, 1200, 1000, 800, 600):  # it runs out in the forward, later in the backward
        try:
            step(rows)
        except ampkit.OutOfMemoryError:
            count += 1
            optimizer.zero_grad()
    assert count > 1
    assert step(8) < first


def test_ops_and_backwards_that_allocate_by_themselves_raise_the_same_error(limit):
    x = ampkit.ones(2**18, device="cuda", requires_grad=True)
    with reference_only():
        loss = (x * x).sum()
        limit(2**18)
        with pytest.raises(ampkit.OutOfMemoryError):
            loss.backward()
        with pytest.raises(ampkit.OutOfMemoryError):
            ops.cat([x] * 4)


def test_a_first_allocation_that_the_driver_refuses_raises_and_the_next_one_succeeds(device):
    gc.collect()
    memory.pool.free_all_blocks()
    line = "cuda:0: needs 3.8 MiB more, got "
    with memory.fail_at(*range(1, 9)), pytest.raises(ampkit.OutOfMemoryError, match=line):
        ampkit.zeros(1_000_000, device="cuda")
    assert ampkit.zeros(1_000_000, device="cuda").sum().item() == 0
    memory.pool.free_all_blocks()


def test_a_library_without_memory_for_its_workspace_raises_the_same_error(device):
    def create(handle):
        return 3

    with pytest.raises(cublaslt.CublasLtMemoryError, match="cublasLtCreate: out of memory") as told:
        cublaslt._call(type("library", (), {"cublasLtCreate": staticmethod(create)}), "Create", None)
    x = ampkit.ones(2, device="cuda").array
    assert "cuda:0: needs more memory" in str(backends.out_of_memory_error([x], told.value))


def test_a_kernel_that_does_not_load_raises_and_the_next_one_succeeds(device, monkeypatch):
    x = ampkit.ones(4, device="cuda")
    with monkeypatch.context() as patch:
        patch.setattr(emulated_cupy, "RawModule", _broken_module)
        with pytest.raises(ampkit.DeviceError, match="needs a device that loads the kernel, got cudaErrorNoKern"):
            ops.softmax(x, 0)
    assert ops.softmax(x, 0).tolist() == [0.25] * 4


def _broken_module(**given):
    def get_function(name):
        raise memory.CUDARuntimeError(209, "cudaErrorNoKernelImageForDevice", "no kernel image is available")

    return type("RawModule", (), {"get_function": staticmethod(get_function)})


def test_the_host_s_memory_error_stays_what_it_is(device):
    error = MemoryError("Unable to allocate")
    assert device.out_of_memory_error(error) is error
    with pytest.raises(MemoryError, match="zeros: needs a shape that memory can hold"):
        ampkit.zeros(2**60)


# devices that are not there


@pytest.mark.parametrize("name", ["cuda:1", "cuda:17"])
def test_an_invalid_device_index_is_one_clear_error(device, name):
    moves = ampkit.zeros(1).to, nn.Linear(1, 1).to, ampkit.cuda.synchronize
    for ask in moves:
        with pytest.raises(ampkit.DeviceError, match=f"needs cuda:0, got {name}"):
            ask(name)


@pytest.mark.cpu
def test_tensors_on_two_devices_are_one_clear_error(device):
    here, there = ampkit.ones(2, 2), ampkit.ones(2, 2, device="cuda")
    for meet in (lambda: here + there, lambda: there @ here, lambda: ops.cat([there, here]), lambda: there.add_(here)):
        with pytest.raises(ampkit.DeviceError, match=r"tensors on one device, got cpu, cuda:0\nhelp: move them"):
            meet()


@pytest.mark.parametrize(
    ("runtime", "words"),
    [
        ({"driverGetVersion": lambda: 0}, "needs NVIDIA's driver, got none"),
        ({"driverGetVersion": lambda: 12040}, "a driver for CUDA 12 and CuPy for CUDA 13"),
    ],
)
def test_to_cuda_says_why_there_is_no_gpu(monkeypatch, runtime, words):
    for name, found in runtime.items():
        monkeypatch.setattr(emulated_cupy.cuda.runtime, name, found)
    monkeypatch.setattr(cuda_device.importlib, "import_module", lambda name: emulated_cupy)
    with pytest.raises(ampkit.DeviceError) as told:
        connect()
    assert words in str(told.value) and "\nhelp: " in str(told.value)


def test_to_cuda_without_a_gpu_raises_once_and_moves_nothing():
    if ampkit.cuda.is_available():
        pytest.skip("there is a GPU")
    layer = nn.Linear(2, 2)
    with pytest.raises(ampkit.DeviceError, match="help: "):
        layer.to("cuda")
    assert layer.weight.device == "cpu"


@pytest.mark.parametrize("axes", [(0, 2, 3, 1), (3, 1, 0, 2), (3, 2, 1, 0)])
def test_a_copy_to_the_device_keeps_the_order_of_axes_in_memory(axes, device):
    host = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5).transpose(axes)
    there = ampkit.Tensor(host).to("cuda").array
    assert there.strides == host.strides and np.array_equal(there.get(), host)
    assert device.asarray(host[::2]).shape == host[::2].shape
