"""Which device the tests run on: `pytest --device cuda` for a GPU, `--device emulated` for one that is not there."""

from __future__ import annotations

import pytest
from cuda_on_cpu import cupy_like

from ampkit import backends, set_default_device
from ampkit.backends.cuda.device import CUDA


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", choices=("cpu", "cuda", "emulated"), help="where tensors are made")


def pytest_configure(config: pytest.Config) -> None:
    device = config.getoption("--device")
    if device == "emulated":
        backends.install(CUDA(cupy_like))
    set_default_device("cpu" if device == "cpu" else "cuda")
