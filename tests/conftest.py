"""Which device the tests run on: `pytest --device cuda` for a GPU, `--device emulated` for one that is not there,
`--device emulated:1` for the second of two such, where nothing may be allocated on the first, which is current.

There the default device is that one, and values are looked at at once, so that an error comes from the call that it is
about. A test marked `cpu` is about NumPy's arrays, and runs on the CPU wherever; one marked `no_gpu` does not run.

`--contract` compiles emulated kernels with contraction, as NVIDIA's compiler does: a * b + c is rounded once.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pytest
from cuda_on_cpu import emulated, emulator, installed, memory, nvrtc, streams

from ampkit import backends, set_default_device


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="a test that would be skipped fails")
    parser.addoption("--contract", action="store_true", help="emulated kernels round a * b + c once, as a GPU does")
    parser.addoption(
        "--device", default="cpu", choices=("cpu", "cuda", "emulated", "emulated:1"), help="where tensors are made"
    )


def pytest_configure(config: pytest.Config) -> None:
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
        gpu = backends.get(_name(config))
        gpu.later = lambda arrays, then: then(*[array.item() for array in arrays])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.config.getoption("--no-skips"):
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome, report.longrepr = "failed", reason
    return report


def pytest_report_header(config: pytest.Config) -> list[str]:
    lines = [f"launches are not held to the registers and shared memory of a GPU: {nvrtc.missing()}"]
    return lines if nvrtc.missing() else []


def _name(config: pytest.Config) -> str:
    return {"cpu": "cpu", "emulated:1": "cuda:1"}.get(config.getoption("--device"), "cuda")


@pytest.fixture(autouse=True)
def _default_device(request: pytest.FixtureRequest) -> object:
    before = memory.allocated(0)
    if request.config.getoption("--device") != "cpu":
        if request.node.get_closest_marker("no_gpu"):
            pytest.skip("about a machine without a GPU")
        if not request.node.get_closest_marker("cpu"):
            set_default_device(_name(request.config))
    yield
    set_default_device("cpu")
    if request.config.getoption("--device") == "emulated:1":
        left, memory.current.device = memory.current.device, 0
        assert left == 0, "the device that was current before the test is not current again"
        assert memory.allocated(0) <= before, "something was allocated on the device that the test is not about"


@pytest.fixture
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The backend "cuda": the card with `--device cuda`, whose errors come when they come; else an emulated one."""
    if request.config.getoption("--device") == "cuda":
        card = backends.get("cuda")
        monkeypatch.delattr(card, "later")
        yield card
        return
    with installed() as found:
        yield found


@pytest.fixture
def emulation(request: pytest.FixtureRequest) -> None:
    """Skips a test of what only the emulated CuPy can tell."""
    if request.config.getoption("--device") == "cuda":
        pytest.skip("about what the emulated CuPy counts")
