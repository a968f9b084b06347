"""Creation: tensors from values, constants and random numbers.

Everywhere: dtype (float32 by default, int64 for whole numbers), device (the CPU), requires_grad. Random numbers come
from the stream that `manual_seed` starts, or from `generator`, a `core.random.Stream`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base import dtypes
from ampkit.base.dtypes import DType, bool_, float32, int64
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, ShapeError
from ampkit.core import random
from ampkit.core.arguments import MOST, is_whole, shown
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.core.tensor import Tensor
from ampkit.core.tensor_factory import tensor

from ..pointwise.selection import need_to_hold
from ..shape.axes import addressable, count, sizes

__all__ = [
    "bernoulli", "empty", "eye", "full", "multinomial", "normal", "one_hot", "ones", "rand", "randint", "randn",
    "randperm", "tensor", "zeros",
]  # fmt: skip

Stream = random.Stream
Generator = np.random.Generator


def _made(
    values: Any, dtype: Any, device: Any, requires_grad: bool, default: DType = float32, constant: bool = False
) -> Tensor:
    wanted = default if dtype is None else dtypes.parse(dtype)
    with ignore_fp_errors():
        made = np.asarray(values).astype(wanted, copy=False)
    there = backends.get(device)
    return Tensor(there.constant(made) if constant else there.asarray(made), requires_grad)


def _shape(where: str, size: tuple[Any, ...]) -> tuple[int, ...]:
    shape = sizes(where, size)
    if any(n < 0 for n in shape):
        raise ShapeError(where, "sizes from 0", f"{shape}")
    return addressable(where, shape)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """Rows of zeros with a one at the class: [...] integers -> [..., num_classes] int64.

    num_classes=-1 counts them: the largest class + 1. Raises RangeError for a class outside [0, num_classes).
    """
    labels = tensor.array
    if labels.dtype.kind not in "iu":
        raise DTypeError("one_hot", "integers", labels.dtype.name)
    classes = (int(labels.max()) + 1 if labels.size else 0) if num_classes == -1 else num_classes

    addressable("one_hot", (labels.size, max(classes, 0)))

    def fail(value: int, position: Any) -> None:
        raise RangeError("one_hot", f"classes from 0 to {classes - 1}", f"{value} at position {position}")

    backends.backend_of(labels).raise_if(labels, (labels < 0) | (labels >= classes), fail)
    return Tensor((labels[..., None] == np.arange(classes, like=labels)).astype(np.int64))


# constants


def full(size: Any, fill_value: float, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of `size`, every element `fill_value`: bool, int64 or float32 as its type.

    Raises ArgumentError for a number that an integer `dtype` does not hold.
    """
    kind = {bool: bool_, int: int64}.get(type(fill_value), float32)
    wanted = kind if dtype is None else dtypes.parse(dtype)
    if not dtypes.is_float(wanted):
        need_to_hold("full", wanted, fill_value)
    return _made(
        np.full(_shape("full", (size,)), fill_value),
        dtype,
        device,
        requires_grad,
        kind,
        constant=True,
    )


def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of zeros."""
    wanted = float32 if dtype is None else dtypes.parse(dtype)
    return Tensor(backends.get(device).zeros(_shape("zeros", size), wanted), requires_grad)


def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of ones."""
    return _made(np.ones(_shape("ones", size), np.int8), dtype, device, requires_grad, constant=True)


def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor whose values are whatever the memory held."""
    wanted = float32 if dtype is None else dtypes.parse(dtype)
    return Tensor(backends.get(device).empty(_shape("empty", size), wanted), requires_grad)


def eye(n: int, m: int | None = None, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """The identity matrix [n, m], m being n by default."""
    n, m = count("eye", "n", n), count("eye", "m", n if m is None else m)
    addressable("eye", (n, m))
    return _made(np.eye(n, m), dtype, device, requires_grad, constant=True)


# random numbers


def _random(
    draw: Callable[[Generator], Any],
    dtype: Any,
    device: Any,
    requires_grad: bool,
    generator: Stream | None,
    default: DType = float32,
) -> Tensor:
    return _made(draw(random.generator(*(generator or random.default).take())), dtype, device, requires_grad, default)


def _float(dtype: Any) -> Any:
    # The format NumPy draws in: float64 only where asked for.
    return np.float64 if dtype is not None and dtypes.parse(dtype) == dtypes.float64 else np.float32


def rand(
    *size: Any, generator: Stream | None = None, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Uniform numbers from [0, 1)."""
    shape = _shape("rand", size)
    return _random(lambda g: g.random(shape, _float(dtype)), dtype, device, requires_grad, generator)


def randn(
    *size: Any, generator: Stream | None = None, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Normal numbers of mean 0 and variance 1."""
    shape = _shape("randn", size)
    return _random(lambda g: g.standard_normal(shape, _float(dtype)), dtype, device, requires_grad, generator)


def randint(
    low: int = 0,
    high: Any = None,
    size: Any = None,
    *,
    generator: Stream | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Whole numbers from [low, high), int64; `randint(high, size)` starts at 0.

    Raises ArgumentError for an empty range.
    """
    if size is None:
        low, high, size = 0, low, high
    for name, bound in (("low", low), ("high", high)):
        if not is_whole(bound) or not -MOST - 1 <= bound <= MOST:
            raise ArgumentError("randint", f"{name} as an integer within 64 bits", shown(bound))
    if not low < high:
        raise ArgumentError("randint", "low below high", f"{low} and {high}")
    shape = _shape("randint", (size,))
    return _random(lambda g: g.integers(low, high, shape), dtype, device, requires_grad, generator, int64)


def randperm(
    n: int, *, generator: Stream | None = None, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """The numbers from 0 to n - 1 in random order, int64."""
    return _random(lambda g: g.permutation(count("randperm", "n", n)), dtype, device, requires_grad, generator, int64)


def _together(given: list[Any], size: tuple[int, ...] | None) -> tuple[int, ...]:
    # The shape of mean and std, or of the size that they have to fit in.
    shapes = [np.shape(value) for value in given]
    try:
        found = np.broadcast_shapes(*shapes, *([] if size is None else [size]))
    except ValueError:
        found = None
    if found is None or (size is not None and found != size):
        got = f"mean {shapes[0]}, std {shapes[1]}" + ("" if size is None else f", size {size}")
        raise ShapeError("normal", "mean and std that broadcast, to size if there is one", got)
    return found


def normal(
    mean: Tensor | float = 0.0,
    std: Tensor | float = 1.0,
    size: Any = None,
    *,
    generator: Stream | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Normal numbers of the given mean and deviation: numbers with a size, or tensors, whose shape it then is.

    In the dtype of the first of these that is a floating-point tensor.
    """
    given = [v.numpy(force=True) if isinstance(v, Tensor) else v for v in (mean, std)]
    if device is None:
        device = next((v.device for v in (mean, std) if isinstance(v, Tensor)), None)
    kinds = [v.dtype for v in (mean, std) if isinstance(v, Tensor) and v.is_floating_point()]
    dtype = kinds[0] if dtype is None and kinds else dtype
    shape = _together(given, None if size is None else _shape("normal", (size,)))
    if np.min(given[1], initial=0) < 0:
        raise ArgumentError("normal", "std from 0", f"{np.min(given[1])}")
    return _random(
        lambda g: given[0] + given[1] * g.standard_normal(shape, _float(dtype)), dtype, device, requires_grad, generator
    )


def bernoulli(input: Tensor, *, generator: Stream | None = None) -> Tensor:
    """1 with the probability that each element of input is, else 0, in input's dtype."""
    p = input.numpy(force=True).astype(np.float64)
    if not np.all((p >= 0) & (p <= 1)):
        raise ArgumentError("bernoulli", "probabilities from 0 to 1", "others")
    return _random(lambda g: g.random(p.shape) < p, input.dtype, input.device, False, generator)


def multinomial(
    input: Tensor, num_samples: int, replacement: bool = False, *, generator: Stream | None = None
) -> Tensor:
    """Positions drawn with probabilities proportional to the rows of input: [..., n] -> [..., num_samples] int64.

    Raises ArgumentError for weights that are negative, not finite or all 0, for no samples, and for more than a row can
    give.
    """
    if not isinstance(num_samples, int) or num_samples < 1:
        raise ArgumentError("multinomial", "num_samples from 1", repr(num_samples))
    if not input.is_floating_point():
        raise DTypeError("multinomial", "floating-point weights", input.dtype.name, "cast them: x.float()")
    weights = input.numpy(force=True).astype(np.float64)
    if weights.ndim not in (1, 2) or not np.all((weights >= 0) & np.isfinite(weights)) or not weights.sum(-1).all():
        raise ArgumentError("multinomial", "rows of finite weights from 0, not all 0", f"shape {weights.shape}")
    count("multinomial", "num_samples", num_samples)
    if not replacement and num_samples > (weights > 0).sum(-1).min(initial=weights.shape[-1]):
        raise ArgumentError("multinomial", "num_samples at most the positive weights of a row", f"{num_samples}")

    def draw(g: Generator) -> Any:
        if replacement:
            ends = np.cumsum(weights, -1)[..., None, :]
            return (g.random((*weights.shape[:-1], num_samples, 1)) * ends[..., -1:] >= ends).sum(-1)
        # The largest u^(1/w) sample without replacement (Efraimidis & Spirakis 2006, Inf. Proc. Lett. 97, 181).
        keys = np.where(weights > 0, g.exponential(size=weights.shape) / np.where(weights > 0, weights, 1), np.inf)
        return np.argsort(keys, -1)[..., :num_samples]

    return _random(draw, None, input.device, False, generator, int64)
