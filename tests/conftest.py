"""Options of the test suite: the device that tests run on, and how kernels are emulated.

--device cuda         tensors are made on the GPU
--device emulated     tensors are made on an emulated GPU, whose kernels the CPU runs
--device emulated:1   tensors are made on the second of two emulated GPUs; a test that allocates on the first, which is
                      the current device, fails
--contract            emulated kernels round a * b + c once, as NVIDIA's compiler lets a GPU do
--no-skips            a test that would be skipped fails

On a GPU, deferred checks of values run at once, so that an error is raised by the call that caused it. A test marked
`cpu` runs on the CPU whatever the device; one marked `no_gpu` runs with --device cpu only.

Works with pytest-xdist (`pytest -n auto`), which gives each worker its share of the CPUs.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from cuda_on_cpu import emulated, emulator, installed, memory, nvrtc_compiler, streams

from ampkit import backends, set_default_device
from ampkit.backends.cpu.memory import empty_cache
from ampkit.backends.cpu.threads import usable_cpus

CHANGING = re.compile(r" at 0x[0-9a-f]{6}|\\x1f\\x8b|PK\\x03\\x04")  # an address; gzip or zip, which hold a time
MOST_MEMORY = 3 << 30  # bytes that a process of the suite may hold between two files of tests


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="a test that would be skipped fails")
    every = "compile all entries of the CUDA kernels for each architecture, not a sample for the oldest alone"
    parser.addoption("--all-architectures", action="store_true", help=every)
    parser.addoption("--contract", action="store_true", help="emulated kernels round a * b + c once, as a GPU does")
    parser.addoption(
        "--device", default="cpu", choices=("cpu", "cuda", "emulated", "emulated:1"), help="the default device"
    )


def pytest_configure(config: pytest.Config) -> None:
    # Idle OpenMP threads sleep: spinning, they take the CPU from whatever else runs. Read when oneDNN is loaded, later.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):  # child processes would compile ampkit's files anew, in a second
        os.environ.setdefault("PYTHONPYCACHEPREFIX", f"{tempfile.gettempdir()}/ampkit_bytecode_{os.getuid()}")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background job; child processes inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if getattr(config.option, "dist", "no") == "load":  # -n: a worker that has run its share takes from the others'
        config.option.dist = "worksteal"
    device = config.getoption("--device")
    if config.getoption("--contract"):
        if "fma" not in emulator.cpu_flags():
            raise pytest.UsageError("--contract: needs a CPU with FMA")
        emulator.extra_flags += emulator.CONTRACTED
    if device == "emulated:1":
        streams.COUNT, streams.tolerant = 2, True
    if device.startswith("emulated"):
        backends.install(emulated())
    if device != "cpu":
        gpu = backends.get(_device_name(config))
        gpu.call_when_ready = lambda arrays, then: then(*[a.item() if a.size == 1 else a.get() for a in arrays])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse ids that differ between processes: pytest-xdist's workers must collect the same tests."""
    if odd := [item.nodeid for item in items if CHANGING.search(item.nodeid)]:
        raise pytest.UsageError(f"needs ids without addresses and bytes of archives, got {odd[0]}")


def pytest_collection_finish() -> None:
    """Exclude the collected tests from later garbage collections, each of which would otherwise take 0.3 s."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    """Divide the CPUs among the workers, which inherit the variable: more threads than CPUs wait for each other."""
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, usable_cpus() // len(specs))))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.config.getoption("--no-skips"):
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome, report.longrepr = "failed", reason
    return report


def pytest_report_header(config: pytest.Config) -> list[str]:
    missing = nvrtc_compiler.missing()
    unchecked = "emulated launches are not checked against a GPU's register and shared-memory limits"
    return [f"{unchecked}: {missing}"] if missing else []


def _device_name(config: pytest.Config) -> str:
    """The device that the tests make tensors on."""
    return {"cpu": "cpu", "emulated:1": "cuda:1"}.get(config.getoption("--device"), "cuda")


@pytest.fixture(autouse=True)
def _default_device(request: pytest.FixtureRequest) -> object:
    before = memory.allocated(0)
    if request.config.getoption("--device") != "cpu":
        if request.node.get_closest_marker("no_gpu"):
            pytest.skip("needs a machine without a GPU")
        if not request.node.get_closest_marker("cpu"):
            set_default_device(_device_name(request.config))
    yield
    set_default_device("cpu")
    assert "ampkit.as_torch" not in sys.modules, "the test made `torch` mean ampkit for the tests that follow, too"
    if request.config.getoption("--device") == "emulated:1":
        current, memory.current.device = memory.current.device, 0
        assert current == 0, f"the test left device {current} current, not 0"
        if "gpu" not in request.fixturenames:  # whose "cuda" is device 0
            assert memory.allocated(0) <= before, "the test allocated on device 0, not on its default device"


@pytest.fixture(scope="module", autouse=True)
def _memory() -> Iterator[None]:
    """Return the memory that a file of tests has freed: a training run makes malloc keep it.

    What stays, modules and caches, is excluded from later collections, as the collected tests are.
    """
    yield
    gc.collect()
    gc.freeze()
    empty_cache()
    if resident() > MOST_MEMORY:
        assert resident() <= MOST_MEMORY, f"the process holds {resident() >> 20} MiB, limit {MOST_MEMORY >> 20}"


def resident() -> int:
    """Bytes of this process in memory; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Python's collector is off: what remains is held by a reference."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The backend "cuda": with --device cuda the GPU's, its checks deferred as for users; else an emulated one."""
    if request.config.getoption("--device") == "cuda":
        backend = backends.get("cuda")
        monkeypatch.delattr(backend, "call_when_ready")
        yield backend
        return
    with installed() as backend:
        yield backend


@pytest.fixture
def emulation(request: pytest.FixtureRequest) -> None:
    """Skip a test that needs counters which only the emulated CuPy has."""
    if request.config.getoption("--device") == "cuda":
        pytest.skip("needs the emulated CuPy")
