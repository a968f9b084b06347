"""Updates, norms, clipping and schedules on the device: kernels with the values of the references."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cuda_on_cpu import emulator

import ampkit
from ampkit import nn, optim
from ampkit.base.dtypes import bfloat16, float16, float32, float64
from ampkit.core.dispatch import reference_only
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.kernels.cuda.optim import elementwise as kernels
from ampkit.optim.clip import power_sum, scale_gradients
from ampkit.optim.elementwise import Step, update
from ampkit.optim.flat.memory import CHUNK, RandomBits, narrow, round_stochastically
from ampkit.optim.lr_scheduler.schedule import advance_schedule

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=str(emulator.missing()))
RULES = [  # an optimizer, its options, and which of its moments are there
    (optim.Adam, {}, (1, 1, 0)),
    (optim.Adam, {"weight_decay": 0.1}, (1, 1, 1)),
    (optim.AdamW, {"weight_decay": 0.1, "decoupled": True, "eps": 1e-3}, (1, 1, 0)),
    (optim.AdamWScheduleFree, {"weight_decay": 0.1, "decoupled": True, "warmup_steps": 4}, (1, 1)),
    (optim.SGD, {"weight_decay": 0.1}, (0,)),
    (optim.SGD, {"dampening": 0.3}, (1,)),
    (optim.SGD, {"nesterov": True, "weight_decay": 0.1}, (1,)),
    (optim.Adadelta, {"weight_decay": 0.1}, (1, 1)),
    (optim.Adagrad, {"lr_decay": 0.1, "initial_accumulator_value": 0.5}, (1,)),
    (optim.Adamax, {}, (1, 1)),
    (optim.ASGD, {"weight_decay": 0.1, "lambd": 0.5, "mu": 1.0}, (1,)),
    (optim.ASGD, {"lambd": 0.5}, (1,)),
    (optim.Lion, {"weight_decay": 0.1, "decoupled": True}, (1,)),
    (optim.NAdam, {"weight_decay": 0.1}, (1, 1)),
    (optim.RAdam, {"weight_decay": 0.1, "decoupled": True}, (1, 1)),
    (optim.RMSprop, {}, (1, 0, 0)),
    (optim.RMSprop, {"eps": 1e-3}, (1, 1, 1)),
    (optim.Rprop, {"step_sizes": (1e-3, 0.5)}, (1, 1)),
]
OPTIONS = {"eps": 1e-8, "weight_decay": 0.0, "maximize": False, "dampening": 0.0, "nesterov": False, "alpha": 0.9}
OPTIONS |= {
    "r": 0.5,
    "weight_lr_power": 2.0,
    "warmup_steps": 0,
    "lr_decay": 0.0,
    "momentum_decay": 4e-3,
    "rho": 0.9,
    "etas": (0.5, 1.2),
}
SIZES = [0, 1, 5, 64, 1027, 4 * kernels.BLOCK * 3 + 2]


def flats(device, count, size, off=0):
    """`count` flat float32 arrays, `off` values past a boundary of 256 bytes; the first two with inf and NaN."""
    rng, made = np.random.default_rng(size), []
    for number in range(count):
        buffer = device.xp.empty((size + off,), float32)
        values = np.abs(rng.standard_normal(size + off)).astype(np.float32)
        if number < 2:
            values[7:8], values[8:9] = np.inf, np.nan
        buffer[...] = device.asarray(values)
        made.append(buffer[off:])
    return made


def scalar(device, value, dtype=float64):
    return device.asarray(np.asarray(value, dtype))


@ignore_fp_errors()
def same(primitive, make, orders=(emulator.SHUFFLED,)):
    """The kernel runs, and leaves and returns the bits of the reference whatever the order of the threads."""
    args, options = make()
    want = primitive.reference.run(*args, **options)
    left = [a.get() for a in _arrays((*args, want))]
    for order in orders:
        again, options = make()
        kernel = primitive.select("cuda", *again, **options)
        assert kernel is not primitive.reference
        with emulator.thread_order(order):
            got = kernel.run(*again, **options)
        found = [a.get() for a in _arrays((*again, got))]
        for one, other in zip(found, left, strict=True):
            np.testing.assert_array_equal(one.astype(float64), other.astype(float64))
        left = found
    return want


def _arrays(items):
    for item in items:
        if isinstance(item, list):
            yield from _arrays(item)
        elif hasattr(item, "get"):
            yield item


def given(device, rule, size=1030, off=0, all_finite=None, copies=(), steps=4, low=None, maximize=False):
    kind, options, used = rule

    def make():
        weights, gradient, *moments = flats(device, 2 + len(used), size, off)
        if low is not None:
            weights = weights.astype(low)
        if kind is optim.Adam and used[2]:
            np.maximum(moments[2], moments[1], out=moments[2])  # as it always is
        values = {"lr": scalar(device, 1e-2), "betas": scalar(device, (0.9, 0.99)), "momentum": scalar(device, 0.9)}
        values |= {"mu_product": scalar(device, 0.7), "eta": scalar(device, 0.1), "k": scalar(device, 2)}
        values |= {"weight_sum": scalar(device, 3e-4), "lr_max": scalar(device, 0.0)}
        values["mu"] = scalar(device, options.get("mu", 0.25))
        penalty = 0.0 if options.get("decoupled") else options.get("weight_decay", 0.0)
        flag, count = (
            None if all_finite is None else scalar(device, all_finite, np.bool_),
            scalar(device, steps, np.int64),
        )
        random_bits = None if low is None else RandomBits(5, 7, 32)
        step = Step(kind, {**OPTIONS, **options, "maximize": maximize}, values, count, flag, penalty, random_bits)
        there = [moment if use else None for moment, use in zip(moments, used, strict=True)]
        return (weights, gradient, there, [device.xp.zeros((size + off,), d)[off:] for d in copies], step), {}

    return make


rules = pytest.mark.parametrize("rule", RULES, ids=[f"{kind.__name__}-{options}" for kind, options, _ in RULES])


@pytest.mark.parametrize("off", [0, 1])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rule", [RULES[0], RULES[4], RULES[9]], ids=["Adam", "SGD", "Lion"])
def test_an_update_has_the_references_bits_at_every_size(device, rule, size, off):
    orders = (emulator.FORWARD, emulator.REVERSE, emulator.SHUFFLED)
    same(update, given(device, rule, size, off, copies=(float16, bfloat16)), orders)


@rules
@pytest.mark.parametrize("all_finite", [None, True, False])
def test_an_update_has_the_references_bits_with_every_option(device, rule, all_finite):
    same(update, given(device, rule, all_finite=all_finite))
    same(update, given(device, rule, all_finite=all_finite, steps=0, copies=(float16,)))
    same(update, given(device, rule, all_finite=all_finite, steps=10**9, maximize=True))


@rules
@pytest.mark.parametrize(("low", "other"), [(bfloat16, float16), (float16, bfloat16)], ids=["bfloat16", "float16"])
def test_masters_in_16_bits_are_rounded_with_the_references_bits(device, rule, low, other):
    for all_finite in (None, False):
        same(update, given(device, rule, size=1028, low=low, all_finite=all_finite, copies=(other,)))


@rules
def test_a_step_that_is_not_real_changes_no_byte_even_of_nan(device, rule):
    args, _ = given(device, rule, 100, all_finite=False)()
    arrays = list(_arrays([args[0], args[1], args[2]]))
    before = [a.get() for a in arrays]
    update(*args)
    for array, was in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array.get(), was)


def test_float64_masters_are_left_to_the_references(device):
    flat = device.xp.zeros((8,), float64)
    for rule in RULES:
        *_, copies, step = given(device, rule, 8)()[0]
        assert update.select("cuda", flat, flat, [flat] * 3, copies, step) is update.reference
    assert power_sum.select("cuda", flat, 2.0, flat) is power_sum.reference


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize(("size", "off"), [(5, 0), (1027, 0), (64, 1)])
def test_values_are_rounded_at_random_with_the_references_bits(device, size, off, dtype):
    (values,) = flats(device, 1, size, off)
    for scale in (1.0, -1e-6, 65536.0, 1e-3):  # also below float16's normal numbers, and above its largest
        args = values * np.float32(scale), device.xp.zeros((size + off,), dtype)[off:], RandomBits(3, 4, 48)
        same(round_stochastically, lambda args=args: (args, {}))


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize("off", [0, 1])
@pytest.mark.parametrize("size", SIZES)
def test_masters_are_rounded_once_into_a_copy(device, size, off, dtype):
    (master,) = flats(device, 1, size, off)
    same(narrow, lambda: ((master, device.xp.zeros((size + off,), dtype)[off:]), {}))


# norms and clipping


def gradient(device, size, dtype, off=0, scale=1.0):
    values = (np.random.default_rng(size).standard_normal(size + off) * scale).astype(dtype)
    buffer = device.xp.empty((size + off,), dtype)
    buffer[...] = device.asarray(values)
    return buffer[off:]


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("order", [1.0, 2.0, 3.5, math.inf])
@pytest.mark.parametrize(("size", "off"), [(0, 0), (1, 0), (5, 1), (3000, 0), (CHUNK + 3, 0), (CHUNK + 3, 1)])
def test_a_norm_is_that_of_float64(device, size, off, order, dtype):
    values = gradient(device, size, dtype, off)
    kernel = power_sum.select("cuda", values, order, None)
    assert kernel is not power_sum.reference
    found = kernel.run(values, order, None)
    wide = np.abs(values.get().astype(float))
    truth = wide.max(initial=0) if order == math.inf else (wide**order).sum()
    assert found.dtype == float64 and found.shape == ()
    np.testing.assert_allclose(found.get(), truth, rtol=1e-13)


@pytest.mark.parametrize("order", [1.0, 2.0, math.inf])
def test_a_norm_of_large_values_does_not_overflow_and_nan_shows(device, order):
    values = device.asarray(np.full(10_000, 3e38, np.float32))
    assert np.isfinite(power_sum(values, order, None).get())
    for bad in (np.nan, np.inf):
        values[777] = bad
        assert not np.isfinite(power_sum(values, order, None).get())


def test_a_norm_is_the_same_bits_whatever_the_order_of_the_threads(device):
    values, found = gradient(device, 70_001, float32), set()
    for order in (emulator.FORWARD, emulator.REVERSE, 3, 4):
        with emulator.thread_order(order):
            found.add(power_sum(values, 2.0, None).get().tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize(("factor", "all_finite"), [(0.3, True), (1.0, True), (0.0, False)])
@pytest.mark.parametrize("off", [0, 1])
def test_clipping_has_the_references_bits(device, off, factor, all_finite, dtype):
    def make():
        values = gradient(device, 1029, dtype, off)
        values[5] = 1.0 if all_finite else math.nan
        return (values, scalar(device, factor), scalar(device, all_finite, np.bool_)), {}

    same(scale_gradients, make)


@pytest.mark.parametrize("real", [True, False])
@pytest.mark.parametrize("at", [0, 3, 9])
def test_a_schedule_moves_on_as_the_reference_does(device, at, real):
    table = np.random.default_rng(0).standard_normal((12, 40))

    def make():
        numbers = [scalar(device, n, np.int64) for n in (at, 5, 6 if real else 5)]
        return (*numbers, device.asarray(table), device.xp.zeros((40,), float64)), {}

    same(advance_schedule, make, (emulator.FORWARD, emulator.REVERSE, emulator.SHUFFLED))


# whole optimizers


def trained(place, kind, clip=False, dtype=float32, **options):
    rng = np.random.default_rng(0)
    parameters = [
        nn.Parameter(ampkit.tensor(rng.standard_normal(shape).astype(np.float32)).to(place, dtype))
        for shape in ((33, 7), (5,), ())
    ]
    optimizer = kind(parameters, lr=0.01, **options)
    schedule = optim.lr_scheduler.LinearLR(optimizer, 0.5, 1.0, 3)
    for _ in range(4):
        gradients = [ampkit.tensor(rng.standard_normal(p.shape).astype(np.float32)).to(place) for p in parameters]
        sum((p.float() * g).sum() for p, g in zip(parameters, gradients, strict=True)).backward()
        if clip:
            optim.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return [p.detach().numpy(force=True) for p in parameters] + [schedule.get_last_lr()]


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (optim.AdamW, {"clip": True}),
        (optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
        (optim.SGD, {"momentum": 0.9, "nesterov": True, "clip": True}),
        (optim.NAdam, {}),
        (optim.LAMB, {}),
    ],
)
def test_training_on_the_device_is_training_on_the_cpu(device, kind, options, dtype):
    with reference_only():
        truth = trained("cpu", kind, dtype=dtype, **options)
    tolerance = 1e-6 if dtype == float32 else 8e-3
    for got, want in zip(trained("cuda", kind, dtype=dtype, **options), truth, strict=True):
        np.testing.assert_allclose(np.asarray(got, float), np.asarray(want, float), rtol=tolerance, atol=1e-7)
