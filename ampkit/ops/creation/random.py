"""Random tensors: rand, randn, randint, normal, bernoulli, multinomial, and their `*_like` forms.

Numbers come from the stream that `manual_seed` seeds, or from `generator`, a `core.random.Stream`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ampkit.base import dtypes
from ampkit.base.dtypes import DType, int64
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.arguments import MOST, is_whole, shown
from ampkit.core.dispatch.batching.draws import of_samples, on_host
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.core.random import Stream
from ampkit.core.tensor import Tensor

from ..argument_checks import broadcast_or_none, check_count
from ..named import named
from .constants import options_like, parse_size, tensor_from_values
from .draw_ranges import check_float, draw_dtype, finite, integers, uniform

__all__ = [
    "bernoulli", "binomial", "multinomial", "normal", "poisson", "rand", "rand_like", "randint", "randint_like",
    "randn", "randn_like", "randperm",
]  # fmt: skip


Generator = np.random.Generator


def _draw(
    draw: Callable[[Generator, tuple[int, ...]], Any],
    shape: tuple[int, ...],
    dtype: Any,
    device: Any,
    requires_grad: bool,
    generator: Stream | None,
    default: DType | None = None,
) -> Tensor:
    # draw(generator, shape): under `vmap`, of all samples, whose axes come first.
    def made(g: Generator, sizes: tuple[int, ...]) -> Tensor:
        return tensor_from_values(draw(g, (*sizes, *shape)), dtype, device, requires_grad, default)

    return of_samples(made, generator)


def _float_dtype(where: str, dtype: Any) -> DType:
    wanted = dtypes.default() if dtype is None else dtypes.parse(dtype)
    check_float(where, wanted)
    return wanted


def rand(
    *size: Any, generator: Stream | None = None, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Uniform numbers from [0, 1), which does not contain 1 in any dtype. Raises DTypeError for integers.

    They follow `manual_seed`; a process that calls neither it nor `seed` draws the same numbers each time it is run.
    """
    shape, wanted = parse_size("rand", size), _float_dtype("rand", dtype)
    return _draw(lambda g, shape: uniform(g, shape, wanted), shape, wanted, device, requires_grad, generator)


def randn(
    *size: Any, generator: Stream | None = None, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Normal numbers of mean 0 and variance 1. Raises DTypeError for integers.

    They follow `manual_seed`; a process that calls neither it nor `seed` draws the same numbers each time it is run.
    """
    shape, wanted = parse_size("randn", size), _float_dtype("randn", dtype)
    return _draw(
        lambda g, shape: g.standard_normal(shape, draw_dtype(wanted)), shape, wanted, device, requires_grad, generator
    )


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
    """Integers from [low, high), int64; `randint(high, size)` starts at 0.

    Raises ArgumentError for an empty range, and for one that an integer `dtype` does not hold or of which a
    floating-point one represents no number.
    """
    if size is None:
        low, high, size = 0, low, high
    for name, bound in (("low", low), ("high", high)):
        if not is_whole(bound) or not -MOST - 1 <= bound <= MOST:
            raise ArgumentError("randint", f"{name} as an integer within 64 bits", shown(bound))
    if not low < high:
        raise ArgumentError("randint", "low below high", f"{low} and {high}")
    shape, wanted = parse_size("randint", (size,)), int64 if dtype is None else dtypes.parse(dtype)

    def draw(g: Generator, shape: tuple[int, ...]) -> Any:
        return integers("randint", g, shape, wanted, low, high)

    return _draw(draw, shape, wanted, device, requires_grad, generator)


def randperm(
    n: int, *, generator: Stream | None = None, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A random permutation of 0 to n - 1, int64."""
    n = check_count("randperm", "n", n)

    def draw(g: Generator, shape: tuple[int, ...]) -> Any:
        return g.permutation(n) if shape == (n,) else g.permuted(np.broadcast_to(np.arange(n), shape), axis=-1)

    return _draw(draw, (n,), dtype, device, requires_grad, generator, int64)


def _normal_shape(params: list[Any], size: tuple[int, ...] | None) -> tuple[int, ...]:
    # The broadcast shape of mean and std, which must be `size` if that is params.
    shapes = [tuple(value.shape) if isinstance(value, Tensor) else np.shape(value) for value in params]
    found = broadcast_or_none(*shapes, *([] if size is None else [size]))
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
    """Normal samples: mean and std are numbers, with a size, or tensors, whose broadcast shape the result has.

    dtype by default that of the first floating-point tensor of the two.
    """
    if device is None:
        device = next((v.device for v in (mean, std) if isinstance(v, Tensor)), None)
    kinds = [v.dtype for v in (mean, std) if isinstance(v, Tensor) and v.is_floating_point()]
    dtype = kinds[0] if dtype is None and kinds else dtype
    shape = _normal_shape([mean, std], None if size is None else parse_size("normal", (size,)))
    params = on_host(mean, std, rank=len(shape))
    if np.min(params[1], initial=0) < 0:
        raise ArgumentError("normal", "std from 0", f"{np.min(params[1])}")
    wanted = _float_dtype("normal", dtype)

    def draw(g: Generator, shape: tuple[int, ...]) -> Any:
        with ignore_fp_errors():
            values = params[0] + params[1] * g.standard_normal(shape, draw_dtype(wanted))
        return finite(values, wanted) if np.isfinite(params[0]).all() and np.isfinite(params[1]).all() else values

    return _draw(draw, shape, wanted, device, requires_grad, generator)


def bernoulli(input: Tensor, *, generator: Stream | None = None) -> Tensor:
    """Bernoulli samples: 1 with the probability in each element of input, else 0, in input's dtype."""
    p = on_host(input)[0].astype(np.float64)
    if not np.all((p >= 0) & (p <= 1)):
        raise ArgumentError("bernoulli", "probabilities from 0 to 1", "others")
    shape = tuple(input.shape)
    return _draw(lambda g, shape: g.random(shape) < p, shape, input.dtype, input.device, False, generator)


def poisson(input: Tensor, generator: Stream | None = None) -> Tensor:
    """Poisson samples of the rates in input, in its dtype. Raises ArgumentError for rates below 0."""
    if not input.is_floating_point():
        raise DTypeError("poisson", "floating-point rates", input.dtype.name, "cast them: x.float()")
    rate = on_host(input)[0].astype(np.float64)
    if not np.all((rate >= 0) & (rate < 2**62)):
        raise ArgumentError("poisson", "rates from 0 to 2**62", "others")
    shape = tuple(input.shape)
    return _draw(lambda g, shape: g.poisson(rate, shape), shape, input.dtype, input.device, False, generator)


def binomial(count: Tensor, prob: Tensor, generator: Stream | None = None) -> Tensor:
    """Binomial samples: successes of probability `prob` in `count` trials, broadcast, in the dtype of count.

    Raises ArgumentError for counts below 0 or not whole, and for probabilities outside [0, 1].
    """
    n, p = [values.astype(np.float64) for values in on_host(count, prob)]
    if not np.all((n >= 0) & (n == np.floor(n)) & (n < 2**62)):
        raise ArgumentError("binomial", "whole counts from 0", "others")
    if not np.all((p >= 0) & (p <= 1)):
        raise ArgumentError("binomial", "probabilities from 0 to 1", "others")
    shapes = [tuple(each.shape) for each in (count, prob)]
    shape = broadcast_or_none(*shapes)
    if shape is None:
        raise ShapeError("binomial", "count and prob that broadcast", f"{shapes[0]} and {shapes[1]}")

    def draw(g: Generator, shape: tuple[int, ...]) -> Any:
        return g.binomial(n.astype(np.int64), p, shape)

    return _draw(draw, shape, count.dtype, count.device, False, generator)


def multinomial(
    input: Tensor, num_samples: int, replacement: bool = False, *, generator: Stream | None = None
) -> Tensor:
    """Indices sampled with probabilities proportional to the rows of input: [..., n] -> [..., num_samples] int64.

    Raises ArgumentError for weights that are negative, not finite or all 0, for num_samples < 1, and without
    replacement for more samples than positive weights.
    """
    if not isinstance(num_samples, int) or num_samples < 1:
        raise ArgumentError("multinomial", "num_samples from 1", repr(num_samples))
    if not input.is_floating_point():
        raise DTypeError("multinomial", "floating-point weights", input.dtype.name, "cast them: x.float()")
    weights = on_host(input)[0].astype(np.float64)
    if input.ndim not in (1, 2) or not np.all((weights >= 0) & np.isfinite(weights)) or not weights.any(-1).all():
        raise ArgumentError("multinomial", "rows of finite weights from 0, not all 0", f"shape {tuple(input.shape)}")
    check_count("multinomial", "num_samples", num_samples)
    if not replacement and num_samples > (weights > 0).sum(-1).min(initial=weights.shape[-1]):
        raise ArgumentError("multinomial", "num_samples at most the positive weights of a row", f"{num_samples}")

    def draw(g: Generator, shape: tuple[int, ...]) -> Any:
        if replacement:
            ends = np.cumsum(_scaled(weights), -1)[..., None, :]
            return (g.random((*shape, 1)) * ends[..., -1:] >= ends).sum(-1)
        # The largest u^(1/w) sample without replacement (Efraimidis & Spirakis 2006, Inf. Proc. Lett. 97, 181).
        wanted = weights > 0
        with ignore_fp_errors():  # a draw of 0; the logarithm of a quotient, which might overflow
            keys = np.log(g.exponential(size=(*shape[:-1], weights.shape[-1]))) - np.log(np.where(wanted, weights, 1))
        keys = np.where(wanted, keys, np.inf)
        return np.argsort(keys, -1)[..., :num_samples]

    return _draw(draw, (*input.shape[:-1], num_samples), None, input.device, False, generator, int64)


def _scaled(weights: Any) -> Any:
    # Rows times powers of 2 that let their largest weight be from 0.5 to 1: sums neither over- nor underflow.
    exponents = np.frexp(weights.max(-1, keepdims=True, initial=0))[1]
    return np.ldexp(weights, np.minimum(-exponents, 1000)) if exponents.size else weights


def _random_like(make: Callable[..., Tensor], what: str) -> Callable[..., Tensor]:
    @named(f"{make.__name__}_like", f"{what}, with the shape, dtype and device of input.")
    def like(
        input: Tensor,
        *,
        generator: Stream | None = None,
        dtype: Any = None,
        device: Any = None,
        requires_grad: bool = False,
    ) -> Tensor:
        return make(tuple(input.shape), generator=generator, **options_like(input, dtype, device, requires_grad))

    return like


rand_like = _random_like(rand, "Uniform numbers from [0, 1)")
randn_like = _random_like(randn, "Normal numbers of mean 0 and variance 1")


def randint_like(
    input: Tensor,
    low: int = 0,
    high: Any = None,
    *,
    generator: Stream | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Integers from [low, high), or [0, low), with the shape, dtype and device of input."""
    low, high = (0, low) if high is None else (low, high)
    options = options_like(input, dtype, device, requires_grad)
    return randint(low, high, tuple(input.shape), generator=generator, **options)
