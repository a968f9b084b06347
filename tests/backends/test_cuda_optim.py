"""Updates, norms, clipping and schedules on the device: kernels with the values of the references."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cuda_on_cpu import emulator

import ampkit
from ampkit import nn, optim
from ampkit.backends.cuda import optim as bodies
from ampkit.core.dtypes import bfloat16, float16, float32, float64
from ampkit.core.primitive import reference_only
from ampkit.core.quiet import quietly
from ampkit.flat import CHUNK, narrow
from ampkit.optim.adam import adam_update
from ampkit.optim.clip import power_sum, shrink
from ampkit.optim.schedule import follow
from ampkit.optim.sgd import sgd_update

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=str(emulator.missing()))
ADAM = {"eps": 1e-8, "weight_decay": 0.0, "decoupled": False, "maximize": False}
SGD = {"dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False}
SIZES = [0, 1, 5, 64, 1027, 4 * bodies.BLOCK * 3 + 2]


def flats(device, count, size, off=0):
    """`count` flat float32 arrays, `off` values past a boundary of 256 bytes; the first two with inf and NaN."""
    rng, made = np.random.default_rng(size), []
    for number in range(count):
        room = device.xp.empty((size + off,), float32)
        values = np.abs(rng.standard_normal(size + off)).astype(np.float32)
        if number < 2:
            values[7:8], values[8:9] = np.inf, np.nan
        room[...] = device.xp.asarray(values)
        made.append(room[off:])
    return made


def scalar(device, value, dtype=float64):
    return device.xp.asarray(np.asarray(value, dtype))


@quietly()
def same(primitive, make, orders=(emulator.SHUFFLED,)):
    """The body runs, and leaves and returns the bits of the reference whatever the order of the threads."""
    args, options = make()
    count = len(args) - (primitive in (adam_update, sgd_update))  # what comes last is room to work in
    want = primitive.reference.run(*args, **options)
    left = [a.get() for a in _arrays((*args[:count], want))]
    for order in orders:
        again, options = make()
        body = primitive.pick("cuda", *again, **options)
        assert body is not primitive.reference
        with emulator.threads(order):
            got = body.run(*again, **options)
        for one, other in zip(_arrays((*again[:count], got)), left, strict=True):
            np.testing.assert_array_equal(*(a.astype(float64) for a in (one.get(), other)))
    return want


def _arrays(items):
    for item in items:
        if isinstance(item, list):
            yield from _arrays(item)
        elif hasattr(item, "get"):
            yield item


def adam(device, size, off=0, largest=False, go=None, copies=(), steps=4, **options):
    def make():
        p, g, m, v, most = flats(device, 5, size, off)
        np.maximum(most, v, out=most)  # as it always is
        numbers = scalar(device, steps, np.int64), scalar(device, 1e-2), scalar(device, (0.9, 0.999))
        homes = [device.xp.zeros((size + off,), d)[off:] for d in copies]
        flag = None if go is None else scalar(device, go, np.bool_)
        scratch = [device.xp.empty((max(size, 1),), float32) for _ in range(2)]
        args = (p, g, m, v, most if largest else None, *numbers, flag, homes, scratch)
        return args, {**ADAM, **options}

    return make


def sgd(device, size, off=0, buffer=True, go=None, copies=(), steps=4, **options):
    def make():
        p, g, m = flats(device, 3, size, off)
        numbers = scalar(device, steps, np.int64), scalar(device, 1e-2), scalar(device, 0.9)
        homes = [device.xp.zeros((size + off,), d)[off:] for d in copies]
        flag = None if go is None else scalar(device, go, np.bool_)
        scratch = [device.xp.empty((max(size, 1),), float32) for _ in range(2)]
        return (p, g, m if buffer else None, *numbers, flag, homes, scratch), {**SGD, **options}

    return make


@pytest.mark.parametrize("off", [0, 1])
@pytest.mark.parametrize("size", SIZES)
def test_adam_and_sgd_have_the_references_bits_at_every_size(device, size, off):
    orders = (emulator.FORWARD, emulator.REVERSE, emulator.SHUFFLED)
    same(adam_update, adam(device, size, off, copies=(float16, bfloat16)), orders)
    same(sgd_update, sgd(device, size, off, copies=(float16, bfloat16)), orders)


@pytest.mark.parametrize("go", [None, True, False])
@pytest.mark.parametrize(
    "options",
    [
        {"largest": True},
        {"maximize": True},
        {"weight_decay": 0.1},
        {"weight_decay": 0.1, "maximize": True, "largest": True},
        {"weight_decay": 0.1, "decoupled": True, "copies": (bfloat16,)},
        {"eps": 1e-3, "steps": 0},
        {"steps": 10**9, "copies": (float16,)},
    ],
    ids=str,
)
def test_adam_has_the_references_bits_with_every_option(device, options, go):
    same(adam_update, adam(device, 1030, go=go, **options))


@pytest.mark.parametrize("go", [None, True, False])
@pytest.mark.parametrize(
    "options",
    [
        {"buffer": False, "weight_decay": 0.1},
        {"maximize": True},
        {"dampening": 0.3, "steps": 0},
        {"dampening": 0.3, "weight_decay": 0.1},
        {"nesterov": True, "copies": (bfloat16,)},
        {"nesterov": True, "weight_decay": 0.1, "maximize": True},
    ],
    ids=str,
)
def test_sgd_has_the_references_bits_with_every_option(device, options, go):
    same(sgd_update, sgd(device, 1030, go=go, **options))


def test_a_step_that_is_not_real_changes_no_byte_even_of_nan(device):
    for primitive, make in ((adam_update, adam(device, 100, go=False)), (sgd_update, sgd(device, 100, go=False))):
        args, options = make()
        before = [a.get() for a in _arrays(args[:4])]
        primitive(*args, **options)
        for array, was in zip(_arrays(args[:4]), before, strict=True):
            np.testing.assert_array_equal(array.get(), was)


def test_float64_masters_are_left_to_the_references(device):
    flat = device.xp.zeros((8,), float64)
    rest = (None, scalar(device, 0, np.int64), *[scalar(device, 0.5)] * 2, None, [], [flat, flat])
    assert adam_update.pick("cuda", *[flat] * 4, *rest, **ADAM) is adam_update.reference
    assert sgd_update.pick("cuda", *[flat] * 2, *rest, **SGD) is sgd_update.reference
    assert power_sum.pick("cuda", flat, 2.0, flat) is power_sum.reference


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize("off", [0, 1])
@pytest.mark.parametrize("size", SIZES)
def test_masters_are_rounded_once_into_a_copy(device, size, off, dtype):
    (master,) = flats(device, 1, size, off)
    same(narrow, lambda: ((master, device.xp.zeros((size + off,), dtype)[off:]), {}))


# norms and clipping


def gradient(device, size, dtype, off=0, scale=1.0):
    values = (np.random.default_rng(size).standard_normal(size + off) * scale).astype(dtype)
    room = device.xp.empty((size + off,), dtype)
    room[...] = device.xp.asarray(values)
    return room[off:]


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("order", [1.0, 2.0, 3.5, math.inf])
@pytest.mark.parametrize(("size", "off"), [(0, 0), (1, 0), (5, 1), (3000, 0), (CHUNK + 3, 0), (CHUNK + 3, 1)])
def test_a_norm_is_that_of_float64(device, size, off, order, dtype):
    values = gradient(device, size, dtype, off)
    body = power_sum.pick("cuda", values, order, None)
    assert body is not power_sum.reference
    found = body.run(values, order, None)
    wide = np.abs(values.get().astype(float))
    truth = wide.max(initial=0) if order == math.inf else (wide**order).sum()
    assert found.dtype == float64 and found.shape == ()
    np.testing.assert_allclose(found.get(), truth, rtol=1e-13)


@pytest.mark.parametrize("order", [1.0, 2.0, math.inf])
def test_a_norm_of_large_values_does_not_overflow_and_nan_shows(device, order):
    values = device.xp.asarray(np.full(10_000, 3e38, np.float32))
    assert np.isfinite(power_sum(values, order, None).get())
    for bad in (np.nan, np.inf):
        values[777] = bad
        assert not np.isfinite(power_sum(values, order, None).get())


def test_a_norm_is_the_same_bits_whatever_the_order_of_the_threads(device):
    values, found = gradient(device, 70_001, float32), set()
    for order in (emulator.FORWARD, emulator.REVERSE, 3, 4):
        with emulator.threads(order):
            found.add(power_sum(values, 2.0, None).get().tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize(("factor", "go"), [(0.3, True), (1.0, True), (0.0, False)])
@pytest.mark.parametrize("off", [0, 1])
def test_clipping_has_the_references_bits(device, off, factor, go, dtype):
    def make():
        values = gradient(device, 1029, dtype, off)
        values[5] = 1.0 if go else math.nan
        return (values, scalar(device, factor), scalar(device, go, np.bool_)), {}

    same(shrink, make)


@pytest.mark.parametrize("real", [True, False])
@pytest.mark.parametrize("at", [0, 3, 9])
def test_a_schedule_moves_on_as_the_reference_does(device, at, real):
    table = np.random.default_rng(0).standard_normal((12, 40))

    def make():
        numbers = [scalar(device, n, np.int64) for n in (at, 5, 6 if real else 5)]
        return (*numbers, device.xp.asarray(table), device.xp.zeros((40,), float64)), {}

    same(follow, make, (emulator.FORWARD, emulator.REVERSE, emulator.SHUFFLED))


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
    ],
)
def test_training_on_the_device_is_training_on_the_cpu(device, kind, options, dtype):
    with reference_only():
        truth = trained("cpu", kind, dtype=dtype, **options)
    tolerance = 1e-6 if dtype == float32 else 8e-3
    for got, want in zip(trained("cuda", kind, dtype=dtype, **options), truth, strict=True):
        np.testing.assert_allclose(np.asarray(got, float), np.asarray(want, float), rtol=tolerance, atol=1e-7)
