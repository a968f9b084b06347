"""Updates of moments in bfloat16 and in 8 bits on the device: kernels with the bits of the references."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from cuda_on_cpu import emulator

from ampkit import optim
from ampkit.base.dtypes import bfloat16, float16, float32, float64, uint8
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.optim.elementwise import Step, update
from ampkit.optim.flat.blockwise import BLOCK, Blockwise, code_of, decode, encode
from ampkit.optim.flat.memory import RandomBits

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=str(emulator.missing()))
RULES = {"AdamW": (optim.AdamW, (0, 1, 1)), "SGD": (optim.SGD, (0,)), "RMSprop": (optim.RMSprop, (1, 0, 0))}
OPTIONS = {"eps": 1e-8, "weight_decay": 0.1, "dampening": 0.0, "nesterov": False, "alpha": 0.9, "maximize": True}
BITS = RandomBits(5, 7, 512)


def numbers(device, size, seed, is_positive=False):
    values = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    values[BLOCK : 2 * BLOCK] = 0
    return device.asarray(np.abs(values) if is_positive else values)


@ignore_fp_errors()
def moment(device, state_dtype, values, is_positive):
    if state_dtype == "bfloat16":
        return device.cast(values, bfloat16)
    made = Blockwise(
        device.zeros(values.shape, uint8),
        device.zeros((-(-values.size // BLOCK),), float32),
        code_of(state_dtype, bool(is_positive)),
    )
    made.encode(values)
    return made


def arrays_of(items) -> Iterator[np.ndarray]:
    for item in items:
        if isinstance(item, (list, tuple)) and not isinstance(item, Step):
            yield from arrays_of(item)
        elif isinstance(item, Blockwise):
            yield from (item.codes.get(), item.scales.get())
        elif hasattr(item, "get") and not isinstance(item, Step):
            yield item.get()


@ignore_fp_errors()
def given(device, kind, state_dtype, size, weights=float32, all_finite=None):
    rule, positive = RULES[kind]
    scalar = lambda value, dtype=float64: device.asarray(np.asarray(value, dtype))  # noqa: E731
    values = {"lr": scalar(1e-2), "betas": scalar((0.9, 0.99)), "momentum": scalar(0.9)}
    flag = None if all_finite is None else scalar(all_finite, np.bool_)
    step = Step(rule, OPTIONS, values, scalar(4, np.int64), flag, 0.0, BITS)
    moments = [moment(device, state_dtype, numbers(device, size, 3 + k, p), p) for k, p in enumerate(positive)]
    master = device.cast(numbers(device, size, 0), weights)
    return master, numbers(device, size, 1), moments, [device.zeros((size,), float16)], step


@ignore_fp_errors()
def same(primitive, make, order=emulator.SHUFFLED):
    want, got = make(), make()
    kernel = primitive.select("cuda", *got)
    assert kernel is not primitive.reference
    result = primitive.reference.run(*want)
    with emulator.thread_order(order):
        found = kernel.run(*got)
    for one, other in zip(arrays_of([*got, found]), arrays_of([*want, result]), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("state_dtype", ["bfloat16", "float8", "int8"])
@pytest.mark.parametrize("kind", RULES)
def test_an_update_has_the_references_bits(device, kind, state_dtype):
    for size, all_finite in product((1, 1030, 1536), (None, False)):
        same(update, lambda s=size, f=all_finite: given(device, kind, state_dtype, s, all_finite=f))
    same(update, lambda: given(device, kind, state_dtype, 1028, bfloat16))


@pytest.mark.parametrize("is_positive", [False, True])
@pytest.mark.parametrize("state_dtype", ["float8", "int8"])
def test_a_block_is_coded_with_the_references_bits(device, state_dtype, is_positive):
    values = numbers(device, 1030, 0, is_positive)
    values[600], values[1029] = np.nan, np.inf
    made = moment(device, state_dtype, values, is_positive)
    for bits in (None, BITS):
        same(encode, lambda b=bits: (values, made.codes.copy(), made.scales.copy(), made.code, b))
    same(decode, lambda: (made.codes, made.scales, made.code))
