"""Which device the tests run on: `pytest --device cuda` for a GPU, `--device emulated` for one that is not there,
`--device emulated:1` for the second of two such, where nothing may be allocated on the first, which is current.

There the default device is that one, and values are looked at at once, so that an error comes from the call that it is
about. A test marked `cpu` is about NumPy's arrays, and runs on the CPU wherever; one marked `no_gpu` does not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cuda_on_cpu import emulated, memory, streams

from ampkit import backends, set_default_device


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device", default="cpu", choices=("cpu", "cuda", "emulated", "emulated:1"), help="where tensors are made"
    )


def pytest_configure(config: pytest.Config) -> None:
    device = config.getoption("--device")
    if device == "emulated:1":
        streams.COUNT, streams.tolerant = 2, True
    if device.startswith("emulated"):
        backends.install(emulated())
    if device != "cpu":
        gpu = backends.get(_name(config))
        gpu.later = lambda arrays, then: then(*[array.item() for array in arrays])


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
    found = emulated()
    undo = backends.install(found)
    yield found
    undo()


@pytest.fixture
def emulation(request: pytest.FixtureRequest) -> None:
    """Skips a test of what only the emulated CuPy can tell."""
    if request.config.getoption("--device") == "cuda":
        pytest.skip("about what the emulated CuPy counts")
