"""Calls of numbers with tensors of every dtype, as expressions that PyTorch and ampkit can both evaluate.

`x` and `y` are tensors, `c` is a mask, `s` is a number. PyTorch's answers are in tests/golden/numbers.json: see
tests/peers/numbers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

DTYPES = ("bool", "uint8", "int64", "float16", "bfloat16", "float32", "float64")
FLOATS = DTYPES[3:]

# By name: numbers of Python and NumPy, and 0-d tensors, as functions of the library.
NUMBERS: dict[str, Callable[[Any], Any]] = {
    "True": lambda lib: True,
    "2": lambda lib: 2,
    "-1": lambda lib: -1,
    "300": lambda lib: 300,
    "0.3": lambda lib: 0.3,
    "0.1": lambda lib: 0.1,
    "inf": lambda lib: float("inf"),
    "nan": lambda lib: float("nan"),
    "1e30": lambda lib: 1e30,
    "np.int8(2)": lambda lib: np.int8(2),
    "np.int64(2)": lambda lib: np.int64(2),
    "np.float16(.3)": lambda lib: np.float16(0.3),
    "np.float32(.1)": lambda lib: np.float32(0.1),
    "np.float64(.1)": lambda lib: np.float64(0.1),
    **{f"{d} 0-d": lambda lib, d=d: lib.tensor(0.3 if d in FLOATS else 2, dtype=getattr(lib, d)) for d in DTYPES[2:]},
}

LETTERS = dict(zip("abcdefghijklmnopqrstuvwxyz", NUMBERS, strict=False))  # by which the golden file names them

CALLS = """
x == s; x != s; x < s; x <= s; x > s; x >= s; s == x; s != x; s < x; s >= x
x + s; x - s; x * s; x / s; x // s; x % s; x ** s; s + x; s - x; s * x; s / x; s // x; s % x; s ** x; x & s; s | x
x.clone().add_(s); x.clone().sub_(s); x.clone().mul_(s); x.clone().div_(s); x.clone().eq_(s); x.clone().fill_(s)
x.clone().pow_(s); x.clone().clamp_min_(s); x.clone().masked_fill_(c, s); x.clone().__setitem__(0, s)
lib.where(c, x, s); lib.where(c, s, x); lib.where(c, s, s); lib.clamp(x, s); lib.clamp(x, max=s); lib.isin(x, s)
lib.isin(s, x); x.masked_fill(c, s); lib.full_like(x, s); x.new_full((2,), s); lib.full((2,), s, dtype=x.dtype)
lib.add(x, y, alpha=s); lib.rsub(x, y, alpha=s); lib.addcmul(x, y, y, value=s); lib.addcdiv(x, y, y, value=s)
lib.lerp(x, y, s); lib.heaviside(x, s); lib.maximum(x, s); lib.fmin(x, s); lib.fmod(x, s); lib.remainder(s, x)
lib.div(x, s, rounding_mode='floor'); lib.float_power(x, s); lib.atan2(x, s); lib.copysign(x, s); lib.xlogy(x, s)
lib.pow(s, x); lib.hypot(x, s); lib.logaddexp(x, s); lib.nan_to_num(x, s); lib.searchsorted(x.sort()[0], s)
lib.bucketize(s, x.sort()[0]); lib.index_fill(x, 0, lib.tensor([1]), s); lib.scatter(x, 0, lib.tensor([1]), s)
lib.nn.functional.threshold(x, s, s); lib.nn.functional.pad(x, (1, 1), value=s); lib.nn.functional.hardtanh(x, -9, s)
lib.nn.functional.leaky_relu(x, s); lib.result_type(x, s)
"""

CREATIONS = """
lib.tensor(s); lib.tensor([s]); lib.tensor([[s, s]]); lib.tensor((s, s)); lib.tensor([1, s]); lib.tensor([s, 1.])
lib.tensor([True, s]); lib.as_tensor(s); lib.as_tensor([s]); lib.asarray([s]); lib.scalar_tensor(s); lib.full((2,), s)
lib.arange(0, s); lib.linspace(0, s, 2).dtype; lib.logspace(0, s, 2).dtype; lib.Tensor([s]); lib.where(c, s, 1)
lib.where(c, s, .5); lib.full((2,), s, dtype=lib.float16); x.new_tensor(s); x.new_tensor([s]); collate([s, s])
collate([(s, 1.5)] * 2); lib.tensor([np.array([.5]), np.array([s])])
lib.tensor([np.ones(2, np.float16), [s, s]]); lib.tensor([x, x])
"""

_UNARY = """
abs acos acosh asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 floor frac lgamma log
log10 log1p log2 logit neg rad2deg reciprocal relu round rsqrt sgn sigmoid sign sin sinc sinh sqrt square tan tanh trunc
isnan isfinite logical_not mean median nanmean nansum sum prod std var norm amax amin std_mean var_mean any all
count_nonzero diff trapezoid cov corrcoef bincount clone matrix_exp vander quantile special.entr special.expit
special.gammaln special.psi special.xlog1py special.ndtr nn.functional.celu nn.functional.elu nn.functional.gelu
nn.functional.hardswish nn.functional.leaky_relu nn.functional.logsigmoid nn.functional.mish nn.functional.selu
nn.functional.silu nn.functional.softplus nn.functional.softsign nn.functional.tanhshrink
"""

# Integers and numbers that become floats, and what has the default dtype.
DEFAULTS = (
    """
x / 3; x * .1; .1 * x; x + .1; 1 / x; x ** .5; 2. ** x; 10000 ** (x / 4); x // .5; x % .3; x / x; lib.div(x, 2)
lib.true_divide(x, x); lib.where(c, .1, .2); lib.where(c, 1, .2); lib.where(c, x, .2); lib.where(c, 1, 2)
lib.clamp(x, .5); lib.atan2(x, x); lib.hypot(x, x); lib.copysign(x, x); lib.xlogy(x, .5); lib.logaddexp(x, x)
lib.float_power(x, 2); lib.pow(.5, x); lib.ldexp(x, x); lib.fmod(x, .5); lib.polygamma(1, x); x.sum() / 3; -x / 2
(x > 1) * .5; (x > 1).sum() / 3; x * np.float64(.5); np.float64(.5) * x; np.float32(.5) * x; x / np.int64(2)
x * lib.tensor(.5); x * lib.tensor(.5, dtype=lib.float64); lib.result_type(x, .5); lib.special.multigammaln(x + 3., 2)
lib.full((2,), .5); lib.tensor(.5); lib.tensor([1, .5]); lib.tensor([]); lib.scalar_tensor(2); lib.zeros(2); lib.eye(2)
lib.ones(2); lib.empty(2); lib.arange(3); lib.arange(3.); lib.linspace(0, 1, 3); lib.logspace(0, 1, 3); lib.rand(2)
lib.randn(2); lib.randint(3, (2,)); lib.normal(0., 1., (2,)); lib.hann_window(4); lib.kaiser_window(4); lib.Tensor(2)
lib.Tensor([1, 2]); lib.empty(2).exponential_(); lib.finfo().dtype; lib.get_default_dtype(); lib.softmax(x, 0)
lib.gradient(x)[0]; lib.cumulative_trapezoid(x); lib.logsumexp(x, 0); lib.cumprod(x, 0); lib.cat([x, x / 2])
lib.nn.functional.softmax(x, 0); lib.nn.functional.normalize(x, dim=0); lib.nn.functional.mse_loss(x, x)
lib.nn.functional.smooth_l1_loss(x, x); lib.nn.functional.kl_div(x, x); lib.nn.functional.poisson_nll_loss(x, x)
lib.nn.functional.one_hot(lib.arange(3)); lib.nn.functional.pairwise_distance(x, x); lib.nn.functional.l1_loss(x, x)
lib.nn.Linear(2, 2).weight; lib.nn.LayerNorm(2).weight; lib.nn.BatchNorm1d(2).running_mean; lib.nn.PReLU().weight
lib.nn.BatchNorm1d(2).num_batches_tracked; lib.nn.Embedding(2, 2).weight; lib.nn.Conv2d(1, 1, 1).weight
lib.nn.LSTM(2, 2).weight_ih_l0; lib.nn.MultiheadAttention(2, 1).in_proj_weight; lib.nn.GRUCell(2, 2).weight_ih
lib.nn.init.normal_(lib.empty(2)); lib.nn.Transformer.generate_square_subsequent_mask(2); lib.nn.RMSNorm(2).weight
lib.distributions.Normal(0., 1.).sample(); lib.distributions.Normal(0, 1).sample()
lib.distributions.Bernoulli(.5).sample(); lib.distributions.Categorical(lib.ones(3)).sample()
lib.distributions.Uniform(0, 1).sample(); lib.distributions.Exponential(1.).sample()
lib.distributions.Laplace(0., 1.).sample(); lib.distributions.Normal(0., 1.).cdf(lib.tensor(.5))
"""
    + "; ".join(f"lib.{name}(x)" for name in _UNARY.split())
    + "; "
    + "; ".join(f"lib.special.{name}(x, x)" for name in ("xlogy", "xlog1py"))
)

# Default dtype, whether in a region of bfloat16, dtype of x.
DEFAULT_CASES = [
    (default, region, dtype)
    for default in ("float32", "float64", "bfloat16", "float16")
    for region in (False, True)
    for dtype in ("int64", "bool")
]


def split(calls: str) -> list[str]:
    """The expressions of a list of them."""
    return [call.strip() for line in calls.strip().splitlines() for call in line.split(";") if call.strip()]


def operands(lib: Any, dtype: str, repeats: int = 1) -> dict[str, Any]:
    """The names in the expressions, of this library and dtype; tensors are repeated, so that kernels take them."""
    x = [0.3, -1.5, 2.0, 0.1] if dtype in FLOATS else [1, 2, 3, 0]
    kind = getattr(lib, dtype)
    return {
        "lib": lib,
        "np": np,
        "x": lib.tensor(x, dtype=kind).repeat(repeats),
        "y": lib.tensor([1, 2, 3, 1], dtype=kind).repeat(repeats),
        "c": lib.tensor([True, False, True, False]).repeat(repeats),
    }


def described(lib: Any, answer: Any) -> str:
    """The dtype and the values of an answer as text; of a dtype or a Python object its name."""
    if isinstance(answer, (tuple, list)):
        return " and ".join(described(lib, one) for one in answer)
    if not isinstance(answer, lib.Tensor):
        return str(getattr(answer, "name", answer)).replace("torch.", "")
    values = answer.detach().reshape(-1)[:4].double().tolist()
    return " ".join([str(answer.dtype).rpartition(".")[2], *[format(value, ".7g") for value in values]])


def dtypes_of(answer: str) -> str:
    """The dtypes in what `described` says: of several answers all."""
    return "+".join(one.partition(" ")[0] for one in answer.split(" and "))


def answers(lib: Any, calls: str, names: dict[str, Any]) -> Iterator[tuple[str, str | Exception]]:
    """Each of the expressions, and what it gives, described, or raises."""
    for call in split(calls):
        try:
            if call.endswith(".__setitem__(0, s)"):
                changed = names["x"].clone()
                changed[0] = names["s"]
                yield call, described(lib, changed)
            else:
                yield call, described(lib, eval(call, names))
        except Exception as error:
            yield call, error
