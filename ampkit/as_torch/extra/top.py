"""Names of `torch` that ampkit has elsewhere, or that change no result."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ... import frombuffer, get_default_dtype
from ...amp import is_autocast_available
from ...base.missing_names import PYTORCH_VERSION
from ...base.public_dtypes import dtype_named
from ...core.storage import UntypedStorage
from ...core.tensor import Tensor
from ...core.tensor_base import Shape
from ...distributed.rpc.futures import Future
from ...ops.sparse import mm as spmm
from ...ops.sparse.arithmetic import hspmm, smm, sspaddmm
from ..refused import refused
from .cuda import Event, Stream
from .dispatch.operators import ops
from .random import Generator, default_generator, get_rng_state, seed, set_rng_state
from .tracing.jit import ScriptFunction, ScriptModule
from .utils.torch_version import TorchVersion

__all__ = [
    "Event", "Future", "Generator", "PyTorchFileReader", "PyTorchFileWriter", "ScriptFunction", "ScriptModule",
    "Size", "Stream", "UntypedStorage", "__file__", "__version__", "_assert", "_assert_async", "cdouble", "cfloat",
    "chalf", "compile", "complex32", "complex64", "complex128", "default_generator", "dsmm", "from_file",
    "get_rng_state", "hsmm", "hspmm",
    "is_autocast_available", "jagged", "layout", "memory_format", "ops", "qint8", "qint32", "quint2x4", "quint4x2",
    "quint8", "saddmm", "seed", "set_rng_state", "smm", "sparse_bsc", "sparse_bsr", "spmm", "sspaddmm", "typename",
    "uint16", "uint32", "uint64",
]  # fmt: skip

__version__ = TorchVersion(PYTORCH_VERSION)
PyTorchFileReader = refused("torch.PyTorchFileReader", "torch.load reads a whole file")
PyTorchFileWriter = refused("torch.PyTorchFileWriter", "torch.save writes a whole file")
Size = Shape
dsmm, hsmm, saddmm = spmm, hspmm, sspaddmm

# dtypes that are looked up only.
complex32 = chalf = refused("torch.complex32", "tensors are real")
qint8, qint32, quint8, quint2x4, quint4x2 = (
    refused(f"torch.{name}", "float16 and bfloat16 are the dtypes below float32")
    for name in ("qint8", "qint32", "quint8", "quint2x4", "quint4x2")
)

# Layouts that no tensor has, and that libraries compare `x.layout` with.
jagged, sparse_bsc, sparse_bsr = (f"torch.{name}" for name in ("jagged", "sparse_bsc", "sparse_bsr"))

# Types for annotations and `isinstance`.
layout = memory_format = str

# dtypes that no tensor of ampkit has: libraries compare with them, and a tensor that asks for one raises DTypeError.
complex64 = cfloat = dtype_named("complex64")
complex128 = cdouble = dtype_named("complex128")
uint16, uint32, uint64 = (dtype_named(name) for name in ("uint16", "uint32", "uint64"))


# Methods in place that are functions too.
_IN_PLACE = [
    "abs_", "acos_", "acosh_", "addmv_", "arccos_", "arccosh_", "arcsin_", "arcsinh_", "arctan_", "arctanh_", "asin_",
    "asinh_", "atan_", "atanh_", "ceil_", "clamp_", "clamp_max_", "clamp_min_", "clip_", "conj_physical_", "cos_",
    "cosh_", "deg2rad_", "detach_", "erf_", "erfc_", "exp2_", "exp_", "expm1_", "fill_", "fix_", "floor_", "frac_",
    "gcd_", "index_put_", "lcm_", "ldexp_", "log10_", "log1p_", "log2_", "log_", "logit_", "nan_to_num_", "neg_",
    "negative_", "rad2deg_", "reciprocal_", "relu_", "round_", "rsqrt_", "sigmoid_", "sin_", "sinc_", "sinh_", "sqrt_",
    "square_", "tan_", "tanh_", "trunc_", "xlogy_", "zero_",
]  # fmt: skip
globals().update({name: getattr(Tensor, name) for name in _IN_PLACE})
__all__ += _IN_PLACE


def compile(model: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`model` as it is: ampkit runs eagerly, and `ampkit.compile` records whole steps."""
    return model if model is not None else lambda found: found


def from_file(
    filename: str | os.PathLike[str],
    shared: bool | None = None,
    size: int = 0,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor of `size` elements in a file that is mapped into memory; changes reach the file only if `shared`.

    A file that is shorter is extended with zeros if `shared`. Raises FileError for one that cannot be read, or is
    shorter.
    """
    dtype = dtype or get_default_dtype()
    nbytes = size * dtype.itemsize
    if shared:
        with Path(filename).open("ab") as file:  # which makes one that is not there
            file.truncate(max(nbytes, file.tell()))
    mapped = np.asarray(UntypedStorage.from_file(filename, bool(shared), nbytes))
    return frombuffer(mapped, dtype=dtype).to(device or "cpu").requires_grad_(requires_grad)


def typename(obj: Any) -> str:
    """The name of a type, or of that of an object, with its module."""
    kind = obj if isinstance(obj, type) else type(obj)
    return f"{kind.__module__}.{kind.__qualname__}"


def _assert_async(condition: Tensor, message: str = "Expected Tensor to be true") -> None:
    """Raise RuntimeError where a tensor of one element is 0."""
    if not condition:
        raise RuntimeError(message)


def _assert(condition: Any, message: str = "") -> None:
    """Raise AssertionError where `condition` is false."""
    assert condition, message
