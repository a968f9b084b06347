"""Tensor's operators and methods, and the ops they call."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from ampkit.backends.bool_bytes import need_bool_bytes
from ampkit.base import dtypes
from ampkit.base.errors import DTypeError, ShapeError, StateError
from ampkit.core.autograd import views
from ampkit.core.dispatch.batching.array import own_of_each
from ampkit.core.dlpack import is_foreign
from ampkit.core.tensor import Tensor
from ampkit.core.tensor_factory import TensorType, made_of, type_named, type_of
from ampkit.ops import inplace, numpy_interop, tensor_info

from .argument_checks import broadcasts_to, checked, parse_shape
from .indexing.getitem import getitem
from .pointwise.arithmetic import div_, rdiv
from .shape.repeat_and_flip import unfold_axis

# Functions that are methods too, with self as first argument, and have an in-place form, `add_`: its result has self's
# shape and is rounded to its dtype.
IN_PLACE = [
    "abs", "absolute", "acos", "acosh", "add", "addbmm", "addcdiv", "addcmul", "addmm", "addmv", "addr", "arccos",
    "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "asin", "asinh", "atan", "atan2", "atanh",
    "baddbmm", "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
    "ceil", "clamp", "clamp_max", "clamp_min", "clip", "conj_physical", "copysign", "cos", "cosh", "cumprod", "cumsum",
    "deg2rad", "digamma", "div", "divide", "eq", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "fix", "float_power",
    "floor", "floor_divide", "fmod", "frac", "gcd", "ge", "greater", "greater_equal", "gt", "heaviside", "hypot",
    "index_add", "index_copy", "index_fill", "index_put", "index_reduce", "lcm", "ldexp", "le", "lerp", "less",
    "less_equal", "lgamma", "log", "log10", "log1p", "log2", "logical_and", "logical_not", "logical_or", "logical_xor",
    "logit", "lt", "masked_fill", "masked_scatter", "mul", "multiply", "nan_to_num", "ne", "neg", "negative",
    "nextafter", "not_equal", "pow", "put", "rad2deg", "reciprocal", "relu", "remainder", "renorm", "round", "rsqrt",
    "scatter", "scatter_add", "scatter_reduce", "sgn", "sigmoid", "sign", "sin", "sinc", "sinh", "sqrt", "square",
    "sub", "subtract", "tan", "tanh", "tril", "triu", "true_divide", "trunc", "xlogy",
]  # fmt: skip

# Methods that call the function of the same name with self as first argument.
METHODS = [
    *IN_PLACE, "all", "allclose", "amax", "amin", "aminmax", "any", "argmax", "argmin", "argsort", "argwhere",
    "as_strided", "bernoulli", "bincount", "bmm", "broadcast_to", "cholesky_inverse", "cholesky_solve", "chunk",
    "clone", "conj", "contiguous", "corrcoef", "count_nonzero", "cov", "cross", "cummax", "cummin", "det", "diag",
    "diag_embed", "diagflat", "diagonal", "diff", "dist", "dot", "dsplit", "equal", "expand", "flatten", "flip",
    "fliplr", "flipud", "fmax", "fmin", "gather", "ger", "hardshrink", "histc", "histogram", "hsplit", "index_select",
    "inner", "inverse", "isclose", "isfinite", "isinf", "isnan", "isneginf", "isposinf", "isreal", "kron", "kthvalue",
    "log_softmax", "logaddexp", "logaddexp2", "logcumsumexp", "logdet", "logsumexp", "masked_select", "matmul",
    "matrix_exp", "matrix_power", "max", "maximum", "mean", "median", "min", "minimum", "mm", "mode", "moveaxis",
    "movedim", "msort", "multinomial", "mv", "nanmean", "nanmedian", "nanquantile", "nansum", "narrow", "nonzero",
    "norm", "outer", "permute", "pinverse", "positive", "prelu", "prod", "quantile", "ravel", "repeat",
    "repeat_interleave", "reshape", "resolve_conj", "roll", "rot90", "select", "signbit", "slogdet", "softmax", "sort",
    "split", "squeeze", "std", "sum", "swapaxes", "swapdims", "t", "take", "take_along_dim", "tensor_split", "tile",
    "to", "to_sparse", "to_sparse_coo", "to_sparse_csc", "to_sparse_csr", "topk", "trace", "transpose", "unbind",
    "unflatten", "unique", "unique_consecutive", "unsqueeze", "var", "vdot", "vsplit",
]  # fmt: skip


# Binary operators, also reflected (`__radd__`) and in place (`__iadd__`): name -> function.
OPERATORS = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floor_divide", "mod": "remainder",
    "pow": "pow", "matmul": "matmul", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
}  # fmt: skip

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


# Methods that overwrite the elements: the functions of these names in inplace.py.
IN_PLACE_FILLS = [
    "copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "exponential_", "random_", "fill_diagonal_",
    "log_normal_", "cauchy_", "geometric_",
]  # fmt: skip

# in place, changing only shape and strides
IN_PLACE_VIEWS = ["squeeze", "swapaxes", "swapdims", "t", "transpose", "unsqueeze"]

CASTS = {
    "float": dtypes.float32, "double": dtypes.float64, "half": dtypes.float16, "bfloat16": dtypes.bfloat16,
    "long": dtypes.int64, "int": dtypes.int32, "short": dtypes.int16, "char": dtypes.int8, "byte": dtypes.uint8,
    "bool": dtypes.bool_,
}  # fmt: skip


def add_tensor_methods(functions: dict[str, Any]) -> None:
    """Set the operators and methods of the tables on Tensor; functions: the namespace of `ops`."""
    f = SimpleNamespace(**functions)
    for name in METHODS:
        _add_method(name, _method(functions[name]), functions[name].__doc__)
    for name, target in OPERATORS.items():
        function = div_ if target == "div" else functions[target]
        _add_method(f"__{name}__", _binary(function))
        _add_method(f"__r{name}__", _swapped(function))
        if target != "matmul":
            _add_method(f"__i{name}__", inplace.in_place_method(function))
    for name in COMPARISONS:
        _add_method(f"__{name}__", _comparison(functions[name]))
    for name in IN_PLACE:
        _add_method(f"{name}_", inplace.in_place_method(functions[name]))
    for name in IN_PLACE_VIEWS:
        _add_method(f"{name}_", inplace.in_place_view_method(functions[name]))
    for name, dtype in CASTS.items():
        _add_method(name, _cast(f.to, dtype), f"The values as {dtype.name}; see `to`.")
    for name in IN_PLACE_FILLS:
        _add_method(name, checked(getattr(inplace, name)))
    for name, function in {**_special_methods(f), **_shape_methods(f), **_new_methods(f)}.items():
        _add_method(name, function)
    _add_method("polygamma_", inplace.in_place_method(Tensor.polygamma))
    for function in tensor_info.METHODS:
        setattr(Tensor, function.__name__, function)
    for name, getter in tensor_info.PROPERTIES.items():
        setattr(Tensor, name, property(getter))
    transposed = property(lambda self: f.transpose(self, -2, -1), doc="Matrices transposed.")
    properties = {
        "T": property(
            lambda self: f.permute(self, tuple(range(self.ndim))[::-1]),
            doc="The axes in reversed order; shares memory.",
        ),
        "H": property(f.t, doc="A matrix transposed."),
        "mT": transposed,
        "mH": transposed,
        "real": property(lambda self: self, doc="The tensor itself."),
    }
    for name, each in properties.items():
        setattr(Tensor, name, each)


def _add_method(name: str, function: Any, doc: str | None = None) -> None:
    function.__name__, function.__qualname__ = name, f"Tensor.{name}"
    function.__doc__ = doc or function.__doc__
    setattr(Tensor, name, function)


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    vars(method)["__wrapped__"] = function  # whose signature `help` and editors show
    return method


def _binary(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: function(self, other)


def _swapped(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: function(other, self)


_COMPARABLE = (Tensor, int, float, np.ndarray, np.generic)


def _comparison(function: Callable[..., Any]) -> Callable[..., Any]:
    def compare(self: Tensor, other: Any) -> Any:
        if isinstance(other, _COMPARABLE) or is_foreign(other):  # of which the op raises
            return function(self, other)
        return NotImplemented

    return compare


def _cast(to: Callable[..., Any], dtype: dtypes.DType) -> Callable[..., Any]:
    return lambda self, memory_format=None: to(self, dtype=dtype, memory_format=memory_format)


_NUMBERS = (int, float, np.number, np.bool_, dtypes.bfloat16.type)


def _special_methods(f: Any) -> dict[str, Callable[..., Any]]:
    return {
        "__neg__": lambda self: f.neg(self),
        "__pos__": lambda self: self,
        "__abs__": lambda self: f.abs(self),
        "__invert__": lambda self: f.bitwise_not(self),
        "__getitem__": lambda self, index: getitem(self, index),
        "__setitem__": lambda self, index, value: inplace.setitem(self, index, value),
        "__rtruediv__": lambda self, other: rdiv(self, other) if isinstance(other, _NUMBERS) else div_(other, self),
        "__div__": lambda self, other: div_(self, other),  # Python 2's name of `/`, which PyTorch has kept
        "__contains__": lambda self, item: bool(f.eq(self, item).array.any()),
        "__array_ufunc__": numpy_interop.array_ufunc,
        "__array_function__": numpy_interop.array_function,
        "cpu": lambda self, memory_format=None: f.to(self, device="cpu", memory_format=memory_format),
        "cuda": lambda self, device=None, non_blocking=False, memory_format=None: f.to(
            self, device=_cuda(device), memory_format=memory_format
        ),
        "where": lambda self, condition, other: f.where(condition, self, other),
        "type": _type,
    }


def _cuda(device: Any) -> str:
    return "cuda" if device is None else f"cuda:{device}" if isinstance(device, int) else str(device)


def _type(self: Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """Cast to a dtype, or to a type such as FloatTensor; without an argument, the name "torch.FloatTensor"."""
    wanted = type_named(dtype)
    if isinstance(wanted, TensorType):
        return self.to(wanted.device, wanted.dtype)
    return type_of(self) if dtype is None else self.to(dtype)


def _view(f: Any, self: Tensor, shape: tuple[Any, ...]) -> Tensor:
    # x.view(shape), or x.view(dtype): the same bits as another dtype.
    if len(shape) != 1 or isinstance(shape[0], (int, tuple, list)):
        return _same_memory(self, lambda: f.reshape(self, *shape))
    wanted = dtypes.parse(shape[0])
    needs = "a shape, or a dtype for a tensor off the tape whose last axis has whole elements of it"
    if self.requires_grad:
        raise DTypeError("view", needs, f"{wanted.name} for {self.dtype.name}, which requires grad")
    try:
        out = Tensor(_same_bytes(self.array, wanted))
    except ValueError:
        got = f"{wanted.name} for {self.dtype.name} of shape {tuple(self.shape)}, strides {self.stride()}"
        raise DTypeError("view", needs, got) from None
    if self.array.dtype != wanted:
        need_bool_bytes("view", out.array)
    out._version_counter = self._version_counter
    return out


def _same_bytes(array: Any, dtype: Any) -> Any:
    # NumPy views a byte with a name as one without, or as another of one byte, but not as wider ones.
    plain = array.view(dtypes.uint8) if array.dtype in dtypes.NARROW else array
    return plain.view(dtypes.uint8).view(dtype) if dtype in dtypes.NARROW else plain.view(dtype)


def _same_memory(self: Tensor, reshaped: Callable[[], Tensor]) -> Tensor:
    # A result whose kernel chose another order than row-major, such as a convolution's, can be viewed like any other:
    # its memory is put in order, or, where other tensors share it, the view is a copy that cannot be changed.
    made = reshaped()
    if not made.array.size or np.may_share_memory(made.array, self.array):
        return made
    if views.store_row_major(self, made.array):
        return reshaped()
    if type(made.array) is np.ndarray and views.fits_row_major(self, made.array.shape):
        made.array.flags.writeable = False
        return made
    cure = "use reshape, which copies where needed"
    raise StateError("view", "a tensor whose memory fits the new shape", f"strides {self.stride()}", cure)


def _shape_methods(f: Any) -> dict[str, Callable[..., Any]]:
    def of_another(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Tensor, other: Tensor) -> Tensor:
            if not isinstance(other, Tensor):
                raise DTypeError(name, "a Tensor for `other`", type(other).__name__)
            return function(self, other)

        return call

    return {
        "view": lambda self, *shape, size=None, dtype=None: _view(
            f, self, shape or tuple(given for given in (size, dtype) if given is not None)
        ),
        "view_as": of_another("view_as", lambda self, other: _same_memory(self, lambda: f.reshape(self, other.shape))),
        "reshape_as": of_another("reshape_as", lambda self, other: f.reshape(self, other.shape)),
        "expand_as": of_another("expand_as", lambda self, other: f.expand(self, other.shape)),
        "unfold": lambda self, dimension, size, step: _unfold(self, dimension, size, step),
        "adjoint": lambda self: f.transpose(self, -2, -1),
        "polygamma": lambda self, n: f.polygamma(n, self),
        "narrow_copy": lambda self, dim, start, length: f.clone(f.narrow(self, dim, start, length)),
        "split_with_sizes": lambda self, split_sizes, dim=0: f.split(self, _lengths(split_sizes), dim),
        "sum_to_size": lambda self, *size: _sum_to_size(f, self, parse_shape("sum_to_size", size)),
        "type_as": of_another("type_as", lambda self, other: f.to(self, other.device, other.dtype)),
    }


_unfold = checked(unfold_axis)


def _lengths(split_sizes: Any) -> list[int]:
    if not isinstance(split_sizes, (list, tuple)):
        raise DTypeError("split_with_sizes", "a list of lengths", f"a {type(split_sizes).__name__}")
    return list(split_sizes)


def _sum_to_size(f: Any, self: Tensor, shape: tuple[int, ...]) -> Tensor:
    if not broadcasts_to(shape, self.shape):
        raise ShapeError("sum_to_size", f"a size that broadcasts to {tuple(self.shape)}", f"{shape}")
    lead = self.ndim - len(shape)
    over = [i for i in range(self.ndim) if i < lead or (shape[i - lead] == 1 != self.shape[i])]
    return f.reshape(f.sum(self, over), shape) if over else self


def _new_methods(f: Any) -> dict[str, Callable[..., Any]]:
    # `x.new_zeros(2, 3)`: a new tensor of x's dtype on x's device; of a batched x in memory for each sample.
    def new(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(self: Tensor, *args: Any, dtype: Any = None, device: Any = None, **kwargs: Any) -> Any:
            found = make(
                *args,
                dtype=self.dtype if dtype is None else dtype,
                device=self.device if device is None else device,
                **kwargs,
            )
            found.array = own_of_each(found.array, self.array)
            return found

        return made

    made = {f"new_{name}": new(getattr(f, name)) for name in ("zeros", "ones", "empty", "full", "tensor")}
    return {
        **made,
        "new": lambda self, *args, device=None: made_of(args, self.dtype, self.device if device is None else device),
    }
