"""Every random draw against the range that it documents: `python -m tests.bench.draws [--draws N]`.

By default 10^8 draws of each, in every dtype, on a CPU: minutes. Exit status 1 if one leaves its range. A draw on a GPU
is made on the host and copied.
"""

from __future__ import annotations

import argparse
import sys
import time

import ml_dtypes
import numpy as np

import ampkit
from ampkit import distributions, nn, ops

DTYPES = ("float16", "bfloat16", "float32", "float64")
_BATCH = 1 << 22
_UP = {"float16": 1 + 2.0**-10, "bfloat16": 1 + 2.0**-7, "float32": 1 + 2.0**-23, "float64": 1 + 2.0**-52}


def _wide(x):
    return x.detach().numpy().astype(np.float64)


def _uniform(a, b):
    def draw(n, dtype):
        return ops.empty(n, dtype=dtype).uniform_(a, b), lambda x: (_wide(x) >= a) & (_wide(x) < b) & _below(x, b)

    return draw


def _below(x, b):  # as the tensor's dtype rounds the bound
    with np.errstate(over="ignore"):
        return x.detach().numpy() < np.asarray(b).astype(x.detach().numpy().dtype)


def _next_to_1(n, dtype):
    x = ops.empty(n, dtype=dtype).uniform_(1, _UP[dtype])
    return x, lambda x: _wide(x) == 1


def _huge(n, dtype):
    most = float(ml_dtypes.finfo(ops.empty(0, dtype=dtype).numpy().dtype).max)
    x = ops.empty(n, dtype=dtype).uniform_(-most, most)
    return x, lambda x: np.isfinite(_wide(x)) & (_wide(x) < most)


def _filled(fill, holds):
    return lambda n, dtype: (fill(ops.empty(n, dtype=dtype)), lambda x: holds(_wide(x)))


def _made(make, holds):
    return lambda n, dtype: (make(n, dtype), lambda x: holds(_wide(x)))


def _from(make):
    """Samples of a distribution: in its support, with a finite logarithm of the density."""

    def draw(n, dtype):
        d = make(lambda v: ampkit.tensor(v, dtype=dtype))
        x = d.sample((n,))
        return x, lambda x: np.isfinite(_wide(d.log_prob(x))) & d.support.check(x).numpy()

    return draw


def _finite(x):
    return np.isfinite(x)


def _positive(x):
    return (x > 0) & np.isfinite(x) & np.isfinite(np.log(np.where(x > 0, x, 1)))


def _of(weights):
    return lambda n, dtype: ops.multinomial(ampkit.tensor(weights, dtype=dtype), n, True)


DRAWS = {
    "rand": _made(lambda n, d: ops.rand(n, dtype=d), lambda x: (x >= 0) & (x < 1)),
    "rand_like": lambda n, dtype: (
        ops.rand_like(ops.empty(n, dtype=dtype)),
        lambda x: (_wide(x) >= 0) & (_wide(x) < 1),
    ),
    "rand, log1p(-x)": _made(lambda n, dtype: ops.log1p(-ops.rand(n, dtype=dtype)), _finite),
    "uniform_(0, 2)": _uniform(0, 2),
    "uniform_(-1, 0)": _uniform(-1, 0),
    "uniform_(0.1, 0.3)": _uniform(0.1, 0.3),
    "uniform_(-0.7, -0.3)": _uniform(-0.7, -0.3),
    "uniform_(100.3, 101.7)": _uniform(100.3, 101.7),
    "uniform_(1, the next number)": _next_to_1,
    "uniform_(-max, max)": _huge,
    "randn": _made(lambda n, dtype: ops.randn(n, dtype=dtype), _finite),
    "normal_(0, 3e4)": _filled(lambda x: x.normal_(0, 3e4), _finite),
    "normal": _made(lambda n, dtype: ops.normal(0.0, 3e4, (n,), dtype=dtype), _finite),
    "exponential_": _filled(lambda x: x.exponential_(), _positive),
    "exponential_(1e6)": _filled(lambda x: x.exponential_(1e6), _positive),
    "exponential_(1e-4)": _filled(lambda x: x.exponential_(1e-4), _positive),
    "log_normal_": _filled(lambda x: x.log_normal_(), _positive),
    "log_normal_(0, 30)": _filled(lambda x: x.log_normal_(0, 30), _positive),
    "cauchy_": _filled(lambda x: x.cauchy_(), _finite),
    "geometric_(0.3)": _filled(lambda x: x.geometric_(0.3), lambda x: (x >= 1) & _finite(x)),
    "geometric_(1e-6)": _filled(lambda x: x.geometric_(1e-6), lambda x: (x >= 1) & _finite(x)),
    "randint(0, 65504)": _made(lambda n, d: ops.randint(0, 65504, (n,), dtype=d), lambda x: (x >= 0) & (x < 65504)),
    "randint(257, 4099)": _made(lambda n, d: ops.randint(257, 4099, (n,), dtype=d), lambda x: (x >= 257) & (x < 4099)),
    "random_(-4099, -257)": _filled(lambda x: x.random_(-4099, -257), lambda x: (x >= -4099) & (x < -257)),
    "random_": _filled(lambda x: x.random_(), lambda x: (x >= 0) & (x % 1 == 0)),
    "bernoulli_": _filled(lambda x: x.bernoulli_(0.3), lambda x: (x == 0) | (x == 1)),
    "bernoulli_(0)": _filled(lambda x: x.bernoulli_(0.0), lambda x: x == 0),
    "bernoulli_(1)": _filled(lambda x: x.bernoulli_(1.0), lambda x: x == 1),
    "multinomial": _made(_of([0.0, 1.0, 0.0, 0.5, 0.0]), lambda x: (x == 1) | (x == 3)),
    "dropout": _made(lambda n, d: ops.dropout(ops.ones(n, dtype=d), 0.5), lambda x: (x == 0) | (x == 2)),
    "rrelu": _made(
        lambda n, d: ops.rrelu(ops.full((n,), -1.0, dtype=d), 0.1, 0.3, True), lambda x: (-x >= 0.1) & (-x < 0.3)
    ),
    "gumbel_softmax": _made(
        lambda n, d: ops.gumbel_softmax(ops.zeros(n // 4, 4, dtype=d)), lambda x: (x >= 0) & (x <= 1)
    ),
    "init.uniform_(0, 1)": _filled(lambda x: nn.init.uniform_(x), lambda x: (x >= 0) & (x < 1)),
    "init.uniform_(0.1, 0.3)": _filled(lambda x: nn.init.uniform_(x, 0.1, 0.3), lambda x: (x >= 0.1) & (x < 0.3)),
    "init.trunc_normal_": _filled(
        lambda x: nn.init.trunc_normal_(x, 0, 1, -0.3, 0.3), lambda x: (x >= -0.3) & (x <= 0.3)
    ),
    "Normal": _from(lambda t: distributions.Normal(t(0.5), t(2.0))),
    "LogNormal": _from(lambda t: distributions.LogNormal(t(0.0), t(4.0))),
    "Uniform(0, 1)": _from(lambda t: distributions.Uniform(t(0.0), t(1.0))),
    "Uniform(100, 101)": _from(lambda t: distributions.Uniform(t(100.0), t(101.0))),
    "Uniform(-3, -2)": _from(lambda t: distributions.Uniform(t(-3.0), t(-2.0))),
    "Exponential": _from(lambda t: distributions.Exponential(t(0.5))),
    "Laplace": _from(lambda t: distributions.Laplace(t(0.0), t(1.0))),
    "Bernoulli": _from(lambda t: distributions.Bernoulli(t(0.3))),
    "Categorical": _from(lambda t: distributions.Categorical(t([0.0, 0.3, 0.7]))),
    "OneHotCategorical": _from(lambda t: distributions.OneHotCategorical(t([0.0, 0.3, 0.7]))),
}


def violations(name, dtype, n, seed):
    """The first few of n draws that leave their range."""
    ampkit.manual_seed(seed)
    x, holds = DRAWS[name](n, dtype)
    with np.errstate(all="ignore"):
        bad = ~holds(x)
    return _wide(x)[bad][:5].tolist()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=10**8)
    parser.add_argument("--only", default="", help="names that contain this")
    given, failed = parser.parse_args(), False
    for name in [name for name in DRAWS if given.only in name]:
        for dtype in DTYPES:
            start, bad, done = time.time(), [], 0
            while done < given.draws and not bad:
                bad = violations(name, dtype, min(_BATCH, given.draws), seed=done)
                done += _BATCH
            failed |= bool(bad)
            print(
                f"{name:28} {dtype:9} {'WRONG' if bad else 'ok':6} {bad or ''} {time.time() - start:.0f} s", flush=True
            )
    sys.exit(failed)


if __name__ == "__main__":
    main()
