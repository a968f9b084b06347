"""`torch.__config__`: how the library was built."""

from __future__ import annotations

from .... import __version__
from ....backends.cpu.threads import get_num_threads

__all__ = ["parallel_info", "show"]


def show() -> str:
    """The text of `torch.__config__.show()`: of ampkit, which is built with neither MKL nor OpenMP of PyTorch."""
    return f"ampkit {__version__} in the place of PyTorch, USE_MKL=OFF, USE_OPENMP=OFF\n"


def parallel_info() -> str:
    """The number of threads of a kernel."""
    return f"ampkit {__version__}, {get_num_threads()} threads\n"
