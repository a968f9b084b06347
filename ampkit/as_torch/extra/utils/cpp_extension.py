"""`torch.utils.cpp_extension`: where compilers are for what it builds, which is nothing here."""

from __future__ import annotations

__all__ = ["CUDA_HOME", "ROCM_HOME"]

# Of which programs ask whether there is one.
CUDA_HOME = ROCM_HOME = None
