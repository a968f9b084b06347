"""In-place initialization of tensors, drawn from ampkit's random stream.

Each function fills and returns the tensor, outside the tape; values are drawn in float64 and rounded once to the
tensor's dtype. generator: a `core.random.Stream` to draw from instead of the default one. What draws raises DTypeError
for integers and bools, to which a draw would be cut.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from ..base.errors import ArgumentError, ShapeError, check_choice
from ..core import random
from ..core.tensor import Tensor
from ..ops.argument_checks import check_all, check_representable
from ..ops.creation.draw_ranges import check_bounds, check_float, rounded_within

__all__ = [
    "calculate_gain", "constant_", "dirac_", "eye_", "kaiming_normal_", "kaiming_uniform_", "normal_", "ones_",
    "orthogonal_", "sparse_", "trunc_normal_", "uniform_", "xavier_normal_", "xavier_uniform_", "zeros_",
]  # fmt: skip

# Gains that preserve the variance through each nonlinearity (He et al. 2015, arXiv:1502.01852; for tanh and selu
# PyTorch's customary values).
_GAINS = {
    "linear": 1.0,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), 1.0),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), 1.0),
    "sigmoid": 1.0,
    "tanh": 5 / 3,
    "relu": math.sqrt(2),
    "selu": 0.75,
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor for the weights of a nonlinearity; param: the negative slope of leaky_relu, 0.01 by default.

    Raises ArgumentError for an unknown nonlinearity.
    """
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in _GAINS:
        raise ArgumentError("calculate_gain", f"one of {', '.join([*_GAINS, 'leaky_relu'])}", repr(nonlinearity))
    return _GAINS[nonlinearity]


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: random.Stream | None = None) -> Tensor:
    """Values from the uniform distribution on [a, b)."""
    check_bounds("uniform_", tensor.array.dtype, a, b)
    if b - a == math.inf:
        values = 2 * random.next_draw(generator).uniform(a / 2, b / 2, tensor.shape)
    else:
        draw = random.next_draw(generator).uniform(a, b + 0.0, tensor.shape)  # NumPy refuses 0.0 to -0.0
        values = np.asarray(draw)
    return _fill(tensor, rounded_within(values, tensor.array.dtype, a, b))


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: random.Stream | None = None) -> Tensor:
    """Values from the normal distribution N(mean, std^2)."""
    check_float("normal_", tensor.array.dtype)
    if not 0 <= std < math.inf:
        raise ArgumentError("normal_", "std >= 0", f"{std}")
    return _fill(tensor, random.next_draw(generator).normal(mean, abs(std), tensor.shape))


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: random.Stream | None = None,
) -> Tensor:
    """Values from N(mean, std^2) truncated to [a, b], rounded within it: those outside are drawn again.

    Raises ArgumentError if [a, b] has less than a thousandth of the probability.
    """
    check_float("trunc_normal_", tensor.array.dtype)
    if not std > 0 or not _mass((a - mean) / std, (b - mean) / std) >= 1e-3:  # NaN is refused, too
        got = f"mean={mean}, std={std}, a={a}, b={b}"
        raise ArgumentError("trunc_normal_", "std > 0 and [a, b] near the mean", got)
    draw = random.next_draw(generator)
    values = draw.normal(mean, std, tensor.shape)
    while (out := (values < a) | (values > b)).any():
        values[out] = draw.normal(mean, std, int(out.sum()))
    return _fill(tensor, rounded_within(values, tensor.array.dtype, a, b, closed=True))


def _mass(low: float, high: float) -> float:
    return (math.erf(high / math.sqrt(2)) - math.erf(low / math.sqrt(2))) / 2


def constant_(tensor: Tensor, val: float) -> Tensor:
    """`val` everywhere. Raises ArgumentError for a number that the dtype cannot represent."""
    check_representable("constant_", tensor.array.dtype, val)
    return _fill(tensor, np.full(tensor.shape, val))


def ones_(tensor: Tensor) -> Tensor:
    """1 everywhere."""
    return constant_(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    """0 everywhere."""
    return constant_(tensor, 0.0)


def eye_(tensor: Tensor) -> Tensor:
    """The identity matrix. Raises ShapeError unless the tensor has two axes."""
    if tensor.ndim != 2:
        raise ShapeError("eye_", "a tensor of two axes", f"shape {tuple(tensor.shape)}")
    return _fill(tensor, np.eye(*tensor.shape))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """The identity convolution: a weight that passes on min(in, out) channels in each group.

    tensor [out, in / groups, ...] of three to five axes. Raises ShapeError for others, ArgumentError for a number of
    groups that does not divide out. Zagoruyko and Komodakis 2017, arXiv:1706.00388, eq. 2.
    """
    if not 3 <= tensor.ndim <= 5:
        raise ShapeError("dirac_", "a tensor of three to five axes", f"shape {tuple(tensor.shape)}")
    if groups < 1 or tensor.shape[0] % groups:
        raise ArgumentError("dirac_", f"groups that divide {tensor.shape[0]}", repr(groups))
    values: Any = np.zeros(tensor.shape)
    center = tuple([n // 2 for n in tensor.shape[2:]])
    width = tensor.shape[0] // groups
    for channel in range(min(width, tensor.shape[1])):
        values[(slice(channel, None, width), channel, *center)] = 1
    return _fill(tensor, values)


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: random.Stream | None = None) -> Tensor:
    """Values from N(0, std^2), of which a fraction `sparsity` of each column, rounded up, is 0.

    Raises ShapeError unless the tensor has two axes, ArgumentError for a fraction outside [0, 1]. Martens 2010, ICML.
    """
    if tensor.ndim != 2:
        raise ShapeError("sparse_", "a tensor of two axes", f"shape {tuple(tensor.shape)}")
    if not 0 <= sparsity <= 1:
        raise ArgumentError("sparse_", "a sparsity from 0 to 1", repr(sparsity))
    check_float("sparse_", tensor.array.dtype)
    if not 0 <= std < math.inf:
        raise ArgumentError("sparse_", "a finite std from 0", f"{std}")
    draw = random.next_draw(generator)
    values = draw.normal(0, abs(std), tensor.shape)  # -0.0 is 0
    order = draw.random(tensor.shape).argsort(0)
    np.put_along_axis(values, order[: math.ceil(sparsity * tensor.shape[0])], 0.0, 0)
    return _fill(tensor, values)


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: random.Stream | None = None) -> Tensor:
    """U(-a, a) with a = gain sqrt(6 / (fan_in + fan_out)). Glorot and Bengio 2010, AISTATS, eq. 16."""
    a = gain * math.sqrt(6 / sum(_fans("xavier_uniform_", tensor)))
    return uniform_(tensor, -a, a, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: random.Stream | None = None) -> Tensor:
    """N(0, std^2) with std = gain sqrt(2 / (fan_in + fan_out)). Glorot and Bengio 2010, AISTATS, eq. 12."""
    return normal_(tensor, 0.0, gain * math.sqrt(2 / sum(_fans("xavier_normal_", tensor))), generator)


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: random.Stream | None = None,
) -> Tensor:
    """U(-b, b) with b = gain sqrt(3 / fan). He et al. 2015, arXiv:1502.01852, eq. 10 and 15.

    a: the negative slope, for leaky_relu. mode: "fan_in" keeps the variance of the forward, "fan_out" of the backward.
    A tensor without elements stays as it is, with a warning, as in PyTorch.
    """
    if _is_empty("kaiming_uniform_", tensor):
        return tensor
    bound = calculate_gain(nonlinearity, a) * math.sqrt(3 / _fan("kaiming_uniform_", tensor, mode))
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: random.Stream | None = None,
) -> Tensor:
    """N(0, std^2) with std = gain / sqrt(fan), as kaiming_uniform_. He et al. 2015, arXiv:1502.01852, eq. 10 and 15."""
    if _is_empty("kaiming_normal_", tensor):
        return tensor
    std = calculate_gain(nonlinearity, a) / math.sqrt(_fan("kaiming_normal_", tensor, mode))
    return normal_(tensor, 0.0, std, generator)


def orthogonal_(tensor: Tensor, gain: float = 1, generator: random.Stream | None = None) -> Tensor:
    """A (semi-)orthogonal matrix times `gain`, uniform over them; axes after the first are taken as one.

    Saxe, McClelland, Ganguli 2013, arXiv:1312.6120; the signs as in Mezzadri 2006, arXiv:math-ph/0609050.
    Raises ShapeError for fewer than two axes.
    """
    if tensor.ndim < 2:
        raise ShapeError("orthogonal_", "a tensor of two axes or more", f"shape {tuple(tensor.shape)}")
    check_float("orthogonal_", tensor.array.dtype)
    rows = tensor.shape[0]
    columns = tensor.numel() // max(rows, 1)
    flat = random.next_draw(generator).normal(size=(max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(flat)
    q = q * np.sign(np.diagonal(r))
    return _fill(tensor, gain * (q if rows >= columns else q.T).reshape(tensor.shape))


def _is_empty(where: str, tensor: Tensor) -> bool:
    if 0 not in tensor.shape:
        return False
    warnings.warn(f"{where}: nothing to initialize in a tensor of shape {tuple(tensor.shape)}", stacklevel=3)
    return True


def fan_in(tensor: Tensor) -> int:
    """The number of inputs per output of this weight."""
    return _fans("fan_in", tensor)[0]


def _fan(where: str, tensor: Tensor, mode: str) -> int:
    check_choice(where, "mode", mode, "fan_in", "fan_out")
    return _fans(where, tensor)[mode == "fan_out"]


def _fans(where: str, tensor: Tensor) -> tuple[int, int]:
    if tensor.ndim < 2 or not tensor.numel():
        raise ShapeError(where, "a tensor of two axes or more, none empty", f"shape {tuple(tensor.shape)}")
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def _fill(tensor: Tensor, values: Any) -> Tensor:
    tensor._write(values)
    return tensor


check_all(globals())
