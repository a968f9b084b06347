"""The references on device arrays: what an op without a faster kernel runs on a GPU, held to what CuPy offers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from ampkit import Tensor, backends, testing
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only


def _load(path: Path) -> list[testing.Case]:
    spec = importlib.util.spec_from_file_location(f"device_cases_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CASES


FILES = sorted(Path(__file__).parents[1].joinpath("cases").glob("*.py"))
CASES = [pytest.param(case, id=f"{path.stem}-{case!r}") for path in FILES for case in _load(path)]


def _run(case, tensors):
    """The outputs and the gradients, as NumPy arrays."""
    outs = case(*tensors)
    floats = [o for o in outs if o.requires_grad]
    points = [t for t in tensors if t.requires_grad]
    if not floats or not points:
        return [o.numpy(force=True) for o in outs]
    like = floats[0].array
    seeds = [np.random.default_rng(0).normal(size=o.shape).astype(o.dtype) for o in floats]
    placed = [Tensor(backends.backend_of(like).asarray(s)) for s in seeds]
    found = grad(floats, points, placed, allow_unused=True)
    return [o.numpy(force=True) for o in outs] + [None if g is None else g.numpy(force=True) for g in found]


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("case", CASES)
def test_a_reference_gives_the_same_values_on_device_arrays(case, dtype, device):
    # To rounding: sums of products are CuPy's sums there, and NumPy's einsum on the host.
    host = case.tensors(dtype)
    there = [Tensor(device.asarray(t.array), t.requires_grad) for t in host]
    with reference_only():
        for got, want in zip(_run(case, there), _run(case, host), strict=True):
            assert (got is None) == (want is None)
            if got is not None:
                assert got.dtype == want.dtype
                testing.assert_close(got, want, testing.GRADIENT_TOLERANCE.get(got.dtype))
