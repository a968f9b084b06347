"""Updates that depend on whole parameters, LAMB's and Adafactor's: kernels with the values of the references."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import emulated_cupy, emulator

import ampkit
from ampkit import nn, optim
from ampkit.base.dtypes import bfloat16, float16, float32, float64
from ampkit.core.dispatch import reference_only
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.kernels.cuda.optim import adafactor, lamb
from ampkit.optim.adafactor import adafactor_update
from ampkit.optim.elementwise import Step
from ampkit.optim.lamb import lamb_update

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=str(emulator.missing()))
COPIES = (float16, bfloat16)


def drawn(device, rng, shape, off=0, bad=()):
    """A float32 array, `off` values past a boundary of 256 bytes, with values that are not finite."""
    size = int(np.prod(shape))
    values = np.abs(rng.standard_normal(size)).astype(np.float32)
    for place, value in zip((1, size - 1), bad, strict=False):
        values[place : place + 1] = value
    room = device.xp.empty((size + off,), float32)
    room[off:] = device.xp.asarray(values)
    return room[off:].reshape(shape)


def scalar(device, value, dtype=float64):
    return device.xp.asarray(np.asarray(value, dtype))


def close(one, other, rtol=3e-6):
    one, other = (a.get().astype(float) for a in (one, other))
    np.testing.assert_allclose(
        one, other, rtol=rtol, atol=rtol * np.nanmax(np.abs(other), initial=0, where=np.isfinite(other))
    )


def same(primitive, make, written, orders=(emulator.SHUFFLED,)):
    """The kernel leaves what the reference leaves, and the same bits whatever the order of the threads."""
    want, bits = make(), []
    with ignore_fp_errors():
        primitive.reference.run(*want[0], **want[1])
        for order in orders:
            args, options = make()
            kernel = primitive.select("cuda", *args, **options)
            assert kernel is not primitive.reference
            with emulator.thread_order(order):
                kernel.run(*args, **options)
            bits.append([a.get().tobytes() for a in written(args)])
            for got, wanted in zip(written(args), written(want[0]), strict=True):
                close(got, wanted, 1e-2 if got.dtype in COPIES else 3e-6)
    assert all(each == bits[0] for each in bits)


# LAMB


def lamb_given(device, sizes, all_finite=None, off=0, copies=COPIES, bad=(), maximize=False, decay=0.1, zeros=()):
    starts = [64 * n for n in np.cumsum([0, *(-(-size // 64) for size in sizes)])]

    def make():
        rng = np.random.default_rng(len(sizes))
        flats = [drawn(device, rng, (starts[-1],), off, bad if i == 1 else ()) for i in range(4)]
        segments = [slice(a, a + size) for a, size in zip(starts, sizes, strict=False) if size]
        for number in zeros:
            flats[0][segments[number]] = 0
        options = {"eps": 1e-6, "weight_decay": decay, "maximize": maximize}
        values = {"lr": scalar(device, 0.01), "betas": scalar(device, (0.9, 0.99))}
        flag = None if all_finite is None else scalar(device, all_finite, np.bool_)
        step = Step(optim.LAMB, options, values, scalar(device, 3, np.int64), flag, 0.0, None)
        return (*flats, segments, [device.xp.zeros((starts[-1] + off,), d)[off:] for d in copies], step), {}

    return make


def lamb_written(args):
    master, _, mean, square, segments, copies, _ = args
    return [flat[segment] for flat in (master, mean, square, *copies) for segment in segments]


ALL_ORDERS = (emulator.FORWARD, emulator.REVERSE, emulator.SHUFFLED)


@pytest.mark.parametrize("off", [0, 1])
@pytest.mark.parametrize("all_finite", [None, True, False])
def test_lamb_leaves_what_the_reference_leaves(device, all_finite, off):
    same(lamb_update, lamb_given(device, [1, 64, 1027, 0, 3 * 1024 + 5], all_finite, off), lamb_written, ALL_ORDERS)


@pytest.mark.parametrize("options", [{"maximize": True}, {"decay": 0.0}, {"zeros": [0, 2]}, {"copies": ()}], ids=str)
def test_lamb_has_every_option(device, options):
    same(lamb_update, lamb_given(device, [5, 70, 129], **options), lamb_written)


def test_lamb_takes_more_parameters_than_fit_in_one_launch(device):
    same(lamb_update, lamb_given(device, [3] * (lamb.SEGMENTS + 2)), lamb_written)
    same(lamb_update, lamb_given(device, [0, 0]), lamb_written)


@pytest.mark.parametrize("bad", [(np.nan,), (np.inf, -np.inf)], ids=str)
def test_a_lamb_gradient_that_is_not_finite_spoils_its_parameter_alone(device, bad):
    same(lamb_update, lamb_given(device, [70, 70], bad=bad[:1]), lamb_written)
    args, _ = lamb_given(device, [70, 70], bad=bad[:1])()
    lamb_update(*args)
    assert not np.isfinite(args[0].get()[:70]).all() and np.isfinite(args[0].get()[128:198]).all()


def test_a_lamb_step_that_is_not_real_changes_no_byte_but_fills_copies(device):
    args, _ = lamb_given(device, [70, 70], all_finite=False, bad=(np.nan,))()
    before = [flat.get() for flat in args[:4]]
    lamb_update(*args)
    for flat, was in zip(args[:4], before, strict=True):
        np.testing.assert_array_equal(flat.get(), was)
    np.testing.assert_array_equal(args[5][0].get()[:70], before[0][:70].astype(np.float16))


# Adafactor


def factor_given(device, shape, all_finite=None, copies=COPIES, bad=(), maximize=False, steps=3, off=0, **more):
    def make():
        rng = np.random.default_rng(len(shape))
        master, gradient = drawn(device, rng, shape, off), drawn(device, rng, shape, off, bad)
        gradient -= np.float32(0.5)
        rows = drawn(device, rng, (*shape[:-1], 1) if len(shape) > 1 else shape)
        columns = drawn(device, rng, (*shape[:-2], 1, shape[-1])) if len(shape) > 1 else None
        flag = None if all_finite is None else scalar(device, all_finite, np.bool_)
        given = scalar(device, steps, np.int64), scalar(device, 0.01), flag
        flats = [device.xp.zeros((master.size,), d) for d in copies]
        options = {"beta2_decay": -0.8, "least": 1e-7, "least_scale": 1e-3, "limit": 1.0, "weight_decay": 0.1}
        return (master, gradient, rows, columns, *given, flats), {**options, "maximize": maximize, **more}

    return make


def factor_written(args):
    return [a for a in (args[0], args[2], args[3], *args[7]) if a is not None]


SHAPES = [(1,), (5,), (3000,), (1, 1), (3, 5), (70, 33), (2, 3, 4), (40, 2, 3, 3), (2, 2100), (2100, 2), (300, 65)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_adafactor_leaves_what_the_reference_leaves(device, shape):
    orders = ALL_ORDERS if np.prod(shape) < 5000 else (emulator.SHUFFLED,)
    same(adafactor_update, factor_given(device, shape), factor_written, orders)


@pytest.mark.parametrize("shape", [(70,), (6, 35)], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        *(
            {"all_finite": True},
            {"all_finite": False},
            {"maximize": True},
            {"copies": ()},
            {"steps": 0},
            {"off": 1},
            {"limit": 1e6},
        ),
        *({"least": 0.5}, {"least_scale": 7.0}, {"weight_decay": 0.0}, {"beta2_decay": 0.0}),
        *({"bad": (np.nan,)}, {"bad": (np.inf,)}),
    ],
    ids=str,
)
def test_adafactor_has_every_option(device, shape, options):
    same(adafactor_update, factor_given(device, shape, **options), factor_written)


@pytest.mark.parametrize("shape", [(70,), (6, 35)], ids=str)
def test_an_adafactor_step_that_is_not_real_changes_no_byte(device, shape):
    args, options = factor_given(device, shape, all_finite=False, bad=(np.nan,))()
    before = [a.get() for a in factor_written(args)[:-2]]
    adafactor_update(*args, **options)
    for array, was in zip(factor_written(args), before, strict=False):
        np.testing.assert_array_equal(array.get(), was)
    np.testing.assert_array_equal(args[7][0].get(), before[0].reshape(-1).astype(np.float16))


def test_a_column_of_many_rows_is_added_up_in_parts(device, monkeypatch):
    monkeypatch.setattr(adafactor, "PARTS", 3)
    same(adafactor_update, factor_given(device, (400, 3)), factor_written)


def test_float64_masters_are_left_to_the_references(device):
    args, options = factor_given(device, (4, 5))()
    args = tuple(a.astype(float64) if getattr(a, "dtype", None) == float32 else a for a in args)
    assert adafactor_update.select("cuda", *args, **options) is adafactor_update.reference
    args, _ = lamb_given(device, [5])()
    assert lamb_update.select("cuda", args[0].astype(float64), *args[1:]) is lamb_update.reference


# whole optimizers


def trained(place, kind, dtype=float32, **options):
    rng = np.random.default_rng(0)
    shapes = ((33, 7), (5,), (), (2, 3, 4), (0, 3))
    parameters = [
        nn.Parameter(ampkit.tensor(rng.standard_normal(shape).astype(np.float32)).to(place, dtype)) for shape in shapes
    ]
    optimizer, scaler = kind(parameters, lr=0.01, **options), ampkit.GradScaler()
    for number in range(5):
        drawn = [ampkit.tensor(rng.standard_normal(p.shape).astype(np.float32)).to(place) for p in parameters]
        loss = sum((p.float() * g).sum() for p, g in zip(parameters, drawn, strict=True))
        scaler.scale(loss * (float("inf") if number == 2 else 1.0)).backward()
        before = emulated_cupy.waits[0]
        scaler.step(optimizer)
        assert emulated_cupy.waits[0] == before
        scaler.update()
        optimizer.zero_grad()
    return [p.detach().numpy(force=True) for p in parameters]


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize(
    ("kind", "options"),
    [(optim.LAMB, {}), (optim.Adafactor, {"weight_decay": 0.1}), (optim.LAMB, {"stochastic_rounding": True})],
)
def test_training_on_the_device_is_training_on_the_cpu(device, kind, options, dtype):
    ampkit.manual_seed(3)
    with reference_only():
        truth = trained("cpu", kind, dtype, **options)
    ampkit.manual_seed(3)
    for got, want in zip(trained("cuda", kind, dtype, **options), truth, strict=True):
        tolerance = 1e-6 if dtype == float32 else 8e-3
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=tolerance, atol=1e-7)
