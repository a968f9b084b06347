"""What the tests of the GPU run on where there is none: kernels on the CPU, an emulated CuPy, cublasLt and cuDNN."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ampkit import backends
from ampkit.backends.cuda.device import CUDA

from . import emulated_cupy, memory
from .emulated_cublaslt import EmulatedCublasLt
from .emulated_cudnn import EmulatedCudnn


def emulated() -> CUDA:
    """The backend "cuda" on the CPU; `ampkit.backends.install` makes it the one in use."""
    return CUDA(emulated_cupy, cublaslt=EmulatedCublasLt(), cudnn=EmulatedCudnn())


@contextmanager
def installed(make: Callable[[], CUDA] = emulated) -> Iterator[CUDA]:
    """Within the block what `make` gives is the backend "cuda", and the default pool is a new one."""
    with memory.fresh():
        gpu = make()
        undo = backends.install(gpu)
        try:
            yield gpu
        finally:
            gpu.xp.cuda.Device().synchronize()  # copies from memory of the host that the backend keeps
            undo()
