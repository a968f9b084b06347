"""ampkit: automatic mixed-precision training on NumPy, in PyTorch's words.

    with ampkit.autocast(dtype=ampkit.float16):
        loss = ops.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

Every name of `ampkit.ops` is also a name here, the same object. Parts that a script may never use, such as
`ampkit.debug`, are loaded when they are first asked for.
"""

import builtins as _builtins
import inspect as _inspect
import sys as _sys
from importlib import import_module as _import_module

__version__ = "0.1.0"

from math import e, inf, nan, pi

from . import amp, autograd, cuda, func, linalg, nn, ops, optim, special
from .amp.grad_scaler import GradScaler
from .backends import Device as device
from .backends import get_default_device, set_default_device
from .backends.cpu import memory as cpu
from .backends.cpu.threads import get_num_threads, set_num_threads
from .backends.determinism import are_deterministic_algorithms_enabled, use_deterministic_algorithms
from .backends.precision import get_float32_matmul_precision, set_float32_matmul_precision
from .base import collector as _collector  # what it registers
from .base import missing_names as _missing_names
from .base import observe
from .base import progress as _progress
from .base.dtypes import finfo, iinfo
from .base.errors import (
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
from .base.memory_format import (
    channels_last,
    channels_last_3d,
    contiguous_format,
    preserve_format,
    sparse_coo,
    sparse_csc,
    sparse_csr,
    strided,
)
from .base.public_dtypes import (
    bfloat16,
    dtype,
    float4_e2m1fn_x2,
    float8_e4m3fn,
    float8_e4m3fnuz,
    float8_e5m2,
    float8_e5m2fnuz,
    float8_e8m0fnu,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)
from .base.public_dtypes import bool_ as bool
from .base.public_dtypes import float16 as half
from .base.public_dtypes import float32 as float
from .base.public_dtypes import float64 as double
from .base.public_dtypes import int16 as short
from .base.public_dtypes import int32 as int
from .base.public_dtypes import int64 as long
from .base.tensor_text import set_printoptions
from .core.autograd.grad_mode import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from .core.autograd.recompute import recompute
from .core.autograd.saved import Saved
from .core.autograd.tape import grad
from .core.autograd.tasks import fork, wait
from .core.capture.compiled import compile
from .core.dispatch import Primitive, reference_only
from .core.dlpack import from_dlpack
from .core.op import op
from .core.policy import Cast, Policy, autocast, get_autocast_dtype, is_autocast_enabled
from .core.random import Generator, get_rng_state, initial_seed, manual_seed, seed, set_rng_state
from .core.tensor import Tensor
from .core.tensor_base import Shape as Size
from .core.tensor_factory import BY_NAME as _TYPES
from .core.tensor_factory import set_default_tensor_type, tensor
from .func import vmap
from .ops import *
from .ops import sparse
from .serialization import load, save

newaxis = None


def load_run(run, weights="last", *, average=True, device=None):  # noqa: F811  # a parameter
    """The model of a run directory, with its weights and what it takes to use it: a `ampkit.run.trained.Trained`.

        found = ampkit.load_run("runs/digits_cnn-bfloat16-20261129-101500")
        found.predict(found.images(["one.png"]))

    run: the directory of a run, or what `ampkit export` wrote of one, which has one set of weights. weights: those of
    the last checkpoint, or of the best evaluation. average: take the moving average where the run keeps one. device: by
    default the one it was trained on. Raises FileError for a directory without a checkpoint that can be used,
    ConfigError for a recipe that this ampkit does not know, DeviceError for a device that is not there.
    -> found(batch), predict(batch), generate(prompt, count), text(...), evaluate(), and images(paths) or rows(files) as
    a batch; with found.model, recipe, step, averaged, classes, mean, std and path.
    """
    from .run import trained  # only here: recipes take as long to import as all else

    return trained.load_run(run, weights, average=average, device=device)


def progress(run):
    """Train a run, or a Trainer, with a progress bar: see `ampkit.cli.notebook.progress`, which this is."""
    from .cli import notebook

    return notebook.progress(run)


_progress.register_display(progress)


def report(*runs):
    """A page of charts that shows run directories, in a notebook in its cell: see `ampkit.cli.notebook.report`."""
    from .cli import notebook

    return notebook.report(*runs)


# What is loaded when it is first asked for: a name, and the module that it is, or stands in.
_LATER = {
    "data": ".data", "debug": ".debug", "distributed": ".distributed", "distributions": ".distributions",
    "models": ".models", "onnx": ".serialization.onnx", "utils": ".utils",
    "profile": ".debug.profiler", "Callback": ".run.trainer.callbacks", "EarlyStopping": ".run.trainer.callbacks",
    "ModelCheckpoint": ".run.trainer.callbacks", "Trainer": ".run.trainer.trainer", "setup": ".run.trainer.own_loop",
}  # fmt: skip


def __getattr__(name):
    if name not in _LATER:
        raise _missing_names.missing_in_module("torch", _sys.modules[__name__], name)
    module = _import_module(_LATER[name], __name__)
    value = module if module.__name__.endswith(f".{name}") else getattr(module, name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *_LATER})


globals().update({name.removeprefix("torch."): kind for name, kind in _TYPES.items() if name.count(".") == 1})
_PARTS = {"amp", "autograd", "cpu", "cuda", "func", "linalg", "nn", "observe", "ops", "optim"}
_PARTS |= {"sparse", "special"}
__all__ = [  # less what would hide a built-in: `ampkit.sum`, but never `sum` from a star import
    *_LATER,
    *[
        name
        for name, value in list(globals().items())
        if not name.startswith("_")
        and not hasattr(_builtins, name)
        and (name in _PARTS or not _inspect.ismodule(value))
    ],
]
_missing_names.answer_in(_sys.modules)
