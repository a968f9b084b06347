"""Arrays of more than 2^31 elements: kernels with a thread or more per row take them where each row's index fits."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import ampkit
from ampkit.backends.cuda.array_layout import supports_rows
from ampkit.base.dtypes import bfloat16, float32
from ampkit.kernels.cuda.loss import cross_entropy
from ampkit.kernels.cuda.nn import layer_norm, softmax

pytestmark = pytest.mark.cpu
KERNELS = Path(ampkit.__file__).parent / "kernels" / "cuda"
SHAPES = [((16744, 128256), True), ((65536, 50257), True), ((2**31, 2), False), ((2, 2**31), False), ((0, 7), False)]


def untouched(shape, dtype=bfloat16):
    """What predicates ask of an array, without its memory."""
    flags = SimpleNamespace(c_contiguous=True)
    return SimpleNamespace(shape=shape, dtype=np.dtype(dtype), ndim=len(shape), size=math.prod(shape), flags=flags)


@pytest.mark.parametrize(("shape", "taken"), SHAPES)
def test_kernels_over_rows_take_more_than_2_31_elements_but_not_rows(shape, taken):
    array = untouched(shape)
    saved = SimpleNamespace(input=array, rstd=untouched((1,), float32))
    asked = [cross_entropy._supports(array), softmax._supports_rows(array, -1), layer_norm._fits(array, shape[1])]
    asked += [layer_norm._readable(array, saved, (bfloat16,), shape[1]), supports_rows(array, shape[1])]
    assert asked == [taken] * len(asked)


FILES = ["loss/cross_entropy.cu", "include/softmax.cuh", "nn/layer_norm.cu", "include/norm.cuh"]


@pytest.mark.parametrize("file", FILES)
def test_offsets_of_rows_are_computed_in_64_bits(file):
    text = (KERNELS / file).read_text()
    wide = {*re.findall(r"int64 (\w+)", text), *re.findall(r"int64 [\w, ]*?, ?(\w+)\b", text)}
    products = re.findall(r"(?<!\(int64\))\b(?:blockIdx\.\w|row|part) \* (\w+)", text)
    assert products
    assert {*products} <= wide | {"blockDim"}, products
