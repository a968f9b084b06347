"""Creation like another tensor: constants and random numbers with its shape, dtype and device, or those given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ampkit.core.random import Stream
from ampkit.core.tensor import Tensor

from .factories import empty, full, ones, rand, randint, randn, zeros

__all__ = ["empty_like", "full_like", "ones_like", "rand_like", "randint_like", "randn_like", "zero_", "zeros_like"]


def _like(make: Callable[..., Tensor], what: str) -> Callable[..., Tensor]:
    def like(input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        return make(tuple(input.shape), **_options(input, dtype, device, requires_grad))

    like.__name__ = like.__qualname__ = f"{make.__name__}_like"
    like.__doc__ = f"{what}, with the shape, dtype and device of input."
    return like


def _options(input: Tensor, dtype: Any, device: Any, requires_grad: bool) -> dict[str, Any]:
    device = input.device if device is None else device
    return {"dtype": input.dtype if dtype is None else dtype, "device": device, "requires_grad": requires_grad}


zeros_like = _like(zeros, "Zeros")
ones_like = _like(ones, "Ones")
empty_like = _like(empty, "Whatever the memory held")


def full_like(
    input: Tensor, fill_value: float, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """`fill_value` throughout, with the shape, dtype and device of input."""
    return full(tuple(input.shape), fill_value, **_options(input, dtype, device, requires_grad))


def _drawn(make: Callable[..., Tensor], what: str) -> Callable[..., Tensor]:
    def like(
        input: Tensor,
        *,
        generator: Stream | None = None,
        dtype: Any = None,
        device: Any = None,
        requires_grad: bool = False,
    ) -> Tensor:
        return make(tuple(input.shape), generator=generator, **_options(input, dtype, device, requires_grad))

    like.__name__ = like.__qualname__ = f"{make.__name__}_like"
    like.__doc__ = f"{what}, with the shape, dtype and device of input."
    return like


rand_like = _drawn(rand, "Uniform numbers from [0, 1)")
randn_like = _drawn(randn, "Normal numbers of mean 0 and variance 1")


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
    """Whole numbers from [low, high), or [0, low), with the shape, dtype and device of input."""
    low, high = (0, low) if high is None else (low, high)
    options = _options(input, dtype, device, requires_grad)
    return randint(low, high, tuple(input.shape), generator=generator, **options)


def zero_(input: Tensor) -> Tensor:
    """`Tensor.zero_`: overwrite every element of input with 0."""
    return input.zero_()
