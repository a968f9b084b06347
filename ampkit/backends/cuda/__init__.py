"""The GPU: CuPy arrays, kernels in `.cu` files, matrix products by cublasLt, convolutions and attention by cuDNN.

`matmul` and `is_built` are PyTorch's `torch.backends.cuda`, mapped to ampkit's settings.
"""

from __future__ import annotations

from importlib.util import find_spec

from ...base.errors import switch
from .. import precision


def is_built() -> bool:
    """Whether CuPy is installed, without which ampkit uses no GPU."""
    return find_spec("cupy") is not None


class _Matmul:
    """PyTorch's switches of matrix products.

    allow_fp16_reduced_precision_reduction, allow_bf16_reduced_precision_reduction: kept as they are set, without an
    effect, since 16-bit products are always summed in float32.
    """

    allow_fp16_reduced_precision_reduction = True
    allow_bf16_reduced_precision_reduction = True

    @property
    def allow_tf32(self) -> bool:
        """Whether float32 products may use TF32 (see `ampkit.set_float32_matmul_precision`)."""
        return precision.get_float32_matmul_precision() != "highest"

    @allow_tf32.setter
    def allow_tf32(self, value: bool) -> None:
        if switch("backends.cuda.matmul", "allow_tf32", value) != self.allow_tf32:
            precision.set_float32_matmul_precision("highest" if self.allow_tf32 else "high")


matmul = _Matmul()
