"""Formats below 16 bits on the GPU: kernels, run by the emulation, with the codes and the values of the references."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import emulator

from ampkit.backends.cuda.launch.formats import STRUCTS
from ampkit.base.dtypes import bfloat16, float16, float32, float64
from ampkit.base.formats import FORMATS, values_of
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.ops.pointwise.formats import decode, encode

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=str(emulator.missing()))
EVERY = pytest.mark.parametrize("dtype", FORMATS, ids=lambda dtype: dtype.names[0])


def values(dtype, size):
    rng = np.random.default_rng(size)
    near = np.concatenate([values_of(each).reshape(-1) for each in FORMATS])
    with ignore_fp_errors():
        wide = np.concatenate([near, near * 1.0625, rng.integers(0, 2**32, 4000, np.uint32).view(np.float32)])
        return rng.permutation(wide)[:size].astype(dtype)


@EVERY
@pytest.mark.parametrize("of", [float32, float16, bfloat16, float64], ids=str)
@pytest.mark.parametrize("draw", [None, (2**64 - 1, 2**40 + 1)], ids=["nearest", "stochastic"])
def test_codes_are_those_of_the_reference(device, draw, of, dtype):
    for size in (2, 10, 4002):
        for host in (values(of, size), values(of, 2 * size)[size:].reshape(-1, 2)[::-1]):
            for saturate in (True, False):
                want = encode.reference.run(host, dtype, saturate, draw)
                given = device.asarray(host)
                kernel = encode.select("cuda", given, dtype, saturate, draw)
                assert (kernel is encode.reference) == (dtype not in STRUCTS or of == float64)
                np.testing.assert_array_equal(encode(given, dtype, saturate, draw).get(), want)


@EVERY
@pytest.mark.parametrize("to", [float32, float16, bfloat16, float64], ids=str)
def test_values_are_those_of_the_reference(device, to, dtype):
    every = np.arange(256, dtype=np.uint8)
    for start, stop in ((0, 256), (1, 250), (0, 3)):
        codes = device.asarray(every)[start:stop]
        kernel = decode.select("cuda", codes, dtype, to)
        assert (kernel is decode.reference) == (dtype not in STRUCTS or to == float64)
        found, want = decode(codes, dtype, to).get(), decode.reference.run(every[start:stop], dtype, to)
        assert found.dtype == to
        np.testing.assert_array_equal(found.astype(float64), want.astype(float64))


@EVERY
def test_references_run_on_the_device(device, dtype):
    host = values(float32, 1000)
    for draw in (None, (5, 6)):
        codes = encode.reference.run(device.asarray(host), dtype, True, draw)
        np.testing.assert_array_equal(codes.get(), encode.reference.run(host, dtype, True, draw))
    np.testing.assert_array_equal(
        decode.reference.run(codes, dtype, float32).get(), decode.reference.run(codes.get(), dtype, float32)
    )
