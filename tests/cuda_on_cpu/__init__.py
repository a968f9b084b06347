"""What the tests of the GPU run on where there is none: kernels on the CPU, an emulated CuPy, cublasLt and cuDNN."""

from __future__ import annotations

from ampkit.backends.cuda.device import CUDA

from . import cupy_like
from .emulated_cudnn import EmulatedCudnn
from .emulated_products import EmulatedProducts


def emulated() -> CUDA:
    """The backend "cuda" on the CPU; `ampkit.backends.install` makes it the one in use."""
    return CUDA(cupy_like, products=EmulatedProducts(), dnn=EmulatedCudnn())
