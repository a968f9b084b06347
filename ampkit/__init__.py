"""ampkit: automatic mixed-precision training on NumPy, in PyTorch's words.

    with ampkit.autocast(dtype=ampkit.float16):
        loss = ops.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

Every name of `ampkit.ops` is also a name here, the same object.
"""

import builtins as _builtins
import inspect as _inspect

__version__ = "0.1.0"

from math import e, inf, nan, pi

from . import amp, autograd, cuda, data, linalg, models, nn, ops, optim, special, utils
from .backends import Device as device
from .backends import get_default_device, set_default_device
from .backends.cpu.threads import get_num_threads, set_num_threads
from .backends.determinism import are_deterministic_algorithms_enabled, use_deterministic_algorithms
from .backends.precision import get_float32_matmul_precision, set_float32_matmul_precision
from .capture import compile
from .core import observe
from .core.dlpack import from_dlpack
from .core.dtypes import DType as dtype
from .core.dtypes import bfloat16, finfo, float16, float32, float64, iinfo, int8, int16, int32, int64, uint8
from .core.dtypes import bool_ as bool
from .core.dtypes import float16 as half
from .core.dtypes import float32 as float
from .core.dtypes import float64 as double
from .core.dtypes import int16 as short
from .core.dtypes import int32 as int
from .core.dtypes import int64 as long
from .core.errors import (
    AmpkitError,
    ArgumentError,
    ConfigError,
    DeviceError,
    DTypeError,
    FileError,
    NonFiniteError,
    OutOfMemoryError,
    RangeError,
    ScaleCollapseError,
    ShapeError,
    StateError,
)
from .core.op import op
from .core.policy import Cast, Policy, autocast, get_autocast_dtype, is_autocast_enabled
from .core.primitive import Primitive, reference_only
from .core.random import Generator, get_rng_state, initial_seed, manual_seed, set_rng_state
from .core.readable import Shape as Size
from .core.recording import enable_grad, inference_mode, is_grad_enabled, no_grad, set_grad_enabled
from .core.rerun import recompute
from .core.saved import Saved
from .core.tape import grad
from .core.tensor import Tensor
from .core.values import tensor
from .core.words import channels_last, channels_last_3d, contiguous_format, preserve_format, strided
from .ops import *
from .profiler import profile
from .scaler import GradScaler
from .serialize import load, save

newaxis = None
_PARTS = {"amp", "autograd", "cuda", "data", "linalg", "models", "nn", "observe", "ops", "optim", "special", "utils"}
__all__ = [  # less what would hide a built-in: `ampkit.sum`, but never `sum` from a star import
    name
    for name, value in list(globals().items())
    if not name.startswith("_") and not hasattr(_builtins, name) and (name in _PARTS or not _inspect.ismodule(value))
]
