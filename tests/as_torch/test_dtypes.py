"""dtypes through the alias: PyTorch's text and class; ampkit's own text without it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.cpu

NAMES = (
    "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 complex128 uint16 uint32 uint64 "
    "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2"
).split()


def test_a_dtype_of_torch_has_pytorchs_text_and_class(run_aliased):
    code = f"""
import copy, pickle
import torch
for name in {NAMES!r}:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype) and getattr(torch, str(dtype).split(".")[1]) is dtype
    assert pickle.loads(pickle.dumps(dtype)) is copy.deepcopy(dtype) is dtype
    print(dtype, repr(dtype))
print(torch.half, torch.double, torch.cfloat, torch.ones(2).dtype, f"{{torch.float32}}")
"""
    *each, last = run_aliased(code)
    assert each == [f"torch.{name} torch.{name}" for name in NAMES]
    assert last == "torch.float16 torch.float64 torch.complex64 torch.float32 torch.float32"


def test_what_libraries_ask_of_dtypes(run_aliased):
    code = """
import json
import numpy as np
import torch
model = torch.nn.Linear(2, 2).to(torch.bfloat16)
config = {"torch_dtype": str(model.weight.dtype).split(".")[1]}             # transformers' save_pretrained
print(json.dumps(config), getattr(torch, config["torch_dtype"]) is model.weight.dtype)
print(model.weight.dtype.is_floating_point, torch.int64.is_floating_point, torch.complex64.is_complex)  # PEFT, kornia
print(torch.finfo(model.weight.dtype).bits, torch.iinfo(torch.uint8).max, torch.promote_types(torch.int8, torch.half))
print(isinstance("float32", torch.dtype), isinstance(np.dtype("float32"), torch.dtype), torch.float32 in (None, "auto"))
print({torch.float16: 1}[torch.zeros(2).half().dtype], torch.zeros(2).type(torch.float64).type())
try:
    torch.zeros(2, dtype=torch.complex64)
except TypeError as error:
    print(error)
"""
    *found, refused = run_aliased(code)
    assert found == [
        '{"torch_dtype": "bfloat16"} True',
        "True False True",
        "16 255 torch.float16",
        "False False False",
        "1 torch.DoubleTensor",
    ]
    assert refused.endswith("got torch.complex64")


def test_the_text_is_of_torch_from_the_import_of_the_alias_on():
    code = """
import ampkit
before = str(ampkit.float32), repr(ampkit.ones(2).half().dtype), str(ampkit.ones(2).half())
import ampkit.as_torch
print(before, str(ampkit.float32), str(ampkit.ones(2).half()))
try:
    ampkit.float32.no_such
except AttributeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    text = "tensor([1., 1.], dtype={}.float16)"
    assert done.stdout.splitlines() == [
        f"{('ampkit.float32', 'ampkit.float16', text.format('ampkit'))!r} torch.float32 {text.format('torch')}",
        "'torch.dtype' object has no attribute 'no_such'",
    ]
