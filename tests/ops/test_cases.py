"""Every case of every operation: gradients, precision, strides, dtypes."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from ampkit import Tensor, tensor, testing
from ampkit.base import observe
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.base.errors import AmpkitError
from ampkit.core.autograd.grad_mode import no_grad
from ampkit.core.op import ops as registry


def _load(path: Path) -> list[testing.Case]:
    spec = importlib.util.spec_from_file_location(f"cases_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CASES


FILES = sorted(Path(__file__).parents[1].joinpath("cases").glob("*.py"))
CASES = [pytest.param(case, id=f"{path.stem}-{case!r}") for path in FILES for case in _load(path)]
every_case = pytest.mark.parametrize("case", CASES)


@every_case
def test_gradients_agree_with_finite_differences(case):
    testing.check_gradients(case)


@every_case
@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=lambda d: d.name)
def test_values_and_gradients_are_those_of_float64_within_tolerance(case, dtype):
    testing.check_precision(case, dtype)


@every_case
def test_strided_inputs_give_the_same_values(case):
    testing.check_strides(case)


@every_case
def test_the_dtype_of_the_answer_follows_the_category(case):
    testing.check_dtypes(case)


@pytest.mark.cpu  # on a GPU the links of self_attention run in its place
def test_every_op_has_a_case():
    ran = set()
    with observe.watch(lambda name, inputs, output: ran.add(name)), no_grad():
        for param in CASES:
            case = param.values[0]
            case(*case.tensors(float32))
    ours = {name for name, op in registry.items() if op.forward.reference.run.__module__.startswith("ampkit.")}
    ours.discard("cast_to")  # to and from formats without arithmetic: tests/ops/pointwise/test_formats.py
    assert not ours - ran, f"no case for {sorted(ours - ran)}"


# what is no tensor, where one is wanted

STRAYS = [5, 2.5, True, "x", None, [1.0, 2.0], np.ones(3), [tensor([1.0])], 1j, object()]
ONE_OF_EACH = list({param.values[0].name: param.values[0] for param in CASES}.values())


def is_fine(call, stray, dtype):
    """Whether `call(stray)` raises one line of ampkit's, or gives what it gives for the tensor of that number."""
    try:
        out = call(stray)
    except AmpkitError as error:
        return bool(re.fullmatch(r"[^\n]{8,200}(\nhelp: [^\n]+)?", str(error)))
    if not isinstance(stray, (int, float)):
        return stray is None and all(isinstance(o, Tensor) and o.dtype != object for o in out)
    same = call(tensor(stray, dtype))
    pairs = list(zip(out, same, strict=True))
    near = all(np.allclose(a.numpy(), b.numpy(), 1e-6, 1e-6, equal_nan=True) for a, b in pairs)
    return near and all(a.dtype == b.dtype for a, b in pairs)


@pytest.mark.parametrize("case", ONE_OF_EACH, ids=lambda case: case.name)
def test_what_is_no_tensor_is_refused_in_one_line_or_a_number_that_means_the_same(case):
    tensors = [t.detach() for t in case.tensors(float32)]
    dtype = float32 if all(t.is_floating_point() for t in tensors) else None
    for position in range(len(tensors)):
        for stray in STRAYS:
            call = lambda item, i=position: case(*tensors[:i], item, *tensors[i + 1 :])  # noqa: E731
            assert is_fine(call, stray, dtype), (position, stray)
