"""Calls of the CPU's kernels that belong to no op: of optimizers, loss scaling, averages, clipping, running statistics.

A function of `PRIMITIVES` draws arguments, and returns a program that any number of runs repeat on arrays of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from ampkit import GradScaler, Tensor, nn, optim, tensor
from ampkit.amp import exponents
from ampkit.amp.found_inf import unscale
from ampkit.base.dtypes import bfloat16, bool_, float16, float32, float64, int64
from ampkit.base.formats import FORMATS, is_packed
from ampkit.core.autograd.accumulate import add_to
from ampkit.core.policy.recipe import RECIPES
from ampkit.ops.linalg.quantization import Quantized, dequantize_, quantize_, quantize_both_, scaled_mm_
from ampkit.ops.nn.batch_norm import update_running_statistics
from ampkit.ops.pointwise.formats import decode, encode
from ampkit.ops.quantized.codes import QParams, dequantize_per_tensor
from ampkit.optim import clip, swa_utils
from ampkit.optim.flat import blockwise
from ampkit.optim.flat.memory import narrow

from .layouts import LAYOUTS, laid_out

Program = Callable[[], list[Any]]
LENGTHS = (1, 1, 2, 3, 5, 7, 9, 17, 33, 65, 4099, 9001)
SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -6e-8, 6e-5)
RULES: tuple[tuple[Any, dict[str, Any]], ...] = (
    (optim.Adam, {"amsgrad": True, "maximize": True}), (optim.AdamW, {}), (optim.SGD, {}),
    (optim.SGD, {"momentum": 0.8, "nesterov": True}), (optim.Adadelta, {"weight_decay": 0.1}),
    (optim.Adagrad, {"lr_decay": 0.1}), (optim.Adamax, {}), (optim.ASGD, {"t0": 2}), (optim.Lion, {}),
    (optim.NAdam, {}), (optim.RAdam, {}), (optim.RMSprop, {"centered": True, "momentum": 0.9}), (optim.Rprop, {}),
)  # fmt: skip


def _flat(random: Random, dtype: Any = float32, special: bool = True, n: int = 0) -> Any:
    rng = np.random.default_rng(random.randrange(1 << 32))
    found = rng.standard_normal(n or random.choice(LENGTHS)).astype(dtype)
    if special and random.random() < 0.5:
        found[random.randrange(found.size)] = random.choice(SPECIAL)
    return found


def _odd(random: Random, array: Any) -> Any:
    # As memory that is written may lie: no two of its elements share an address.
    shared = ("broadcast", "one number", "windows", "overlapping", "read-only", "masked", "subclass")
    return laid_out(array.copy(), random.choice([each for each in LAYOUTS if each not in shared]), random)


def _unscale(random: Random) -> Program:
    gradient, layout = _flat(random), random.randrange(1 << 32)
    inverse = random.choice((None, np.array(0.25, float32)))

    def program() -> list[Any]:
        held = _odd(Random(layout), gradient)
        first = unscale(held, inverse, np.empty(held.size, bool_))
        return [held.copy(), np.array(first)]

    return program


def _add_to(random: Random) -> Program:
    dtype, n, layout = random.choice((float32, bfloat16, float16)), random.choice(LENGTHS), random.randrange(1 << 32)
    first, second = _flat(random, dtype, n=n), _flat(random, dtype, n=n)
    dense = random.random() < 0.5

    def program() -> list[Any]:
        held = first.copy() if dense else _odd(Random(layout), first)
        add_to(held, second)
        return [held.copy()]

    return program


def _counts(random: Random) -> Program:
    values = _odd(random, _flat(random, random.choice((float32, bfloat16, float16, float64))))

    def program() -> list[Any]:
        counts = np.zeros(exponents.SIZE, int64)
        exponents.count_exponents(values, counts)
        return [counts]

    return program


def _values_of_codes(random: Random) -> Program:
    codes, signed = _flat(random, int64, special=False).astype(np.uint8), random.random() < 0.5
    qparams = QParams(random.choice((1.0, 0.02)), random.randrange(-128, 256), signed)
    held = _odd(random, codes.view(qparams.dtype))
    return lambda: [dequantize_per_tensor(held, qparams)]


def _segments(random: Random, length: int) -> list[tuple[int, int]]:
    cuts = sorted(random.choices(range(length + 1), k=4))
    return [*zip(cuts[::2], cuts[1::2], strict=True)]


def _counts_of_segments(random: Random) -> Program:
    values = _odd(random, _flat(random, random.choice((float32, bfloat16, float16))))
    segments = _segments(random, values.size)

    def program() -> list[Any]:
        counts = np.zeros((len(segments), exponents.SIZE), int64)
        exponents.count_exponents_of_segments(values, segments, counts)
        return [counts]

    return program


def _lost(random: Random) -> Program:
    before = _flat(random)
    after = _odd(random, before + _flat(random, special=False, n=before.size) * np.float32(1e-3))
    before = _odd(random, before)

    def program() -> list[Any]:
        counts = np.zeros(3, int64)
        exponents.count_lost_updates(before, after, counts)
        return [counts]

    return program


def _lost_of_segments(random: Random) -> Program:
    before = _flat(random)
    after = before + _flat(random, special=False, n=before.size) * np.float32(1e-3)
    segments = _segments(random, before.size)

    def program() -> list[Any]:
        counts = np.zeros((len(segments), 3), int64)
        exponents.lost_updates_of_segments(before, after, segments, counts)
        return [counts]

    return program


def _power_sum(random: Random) -> Program:
    values, order = _odd(random, _flat(random, random.choice((float32, bfloat16)))), random.choice((2, np.inf))
    return lambda: [np.array(clip.power_sum(values, order, np.empty(values.size, float64)))]


def _scale_gradients(random: Random) -> Program:
    values, layout = _flat(random, random.choice((float32, bfloat16))), random.randrange(1 << 32)
    factor, finite = np.array(random.choice((1.0, 0.3))), np.array(random.random() < 0.8)

    def program() -> list[Any]:
        held = _odd(Random(layout), values)
        clip.scale_gradients(held, factor, finite)
        return [held.copy()]

    return program


def _lerp(random: Random) -> Program:
    average, layout = _flat(random, special=False), random.randrange(1 << 32)
    current = _odd(random, _flat(random, special=False, n=average.size))
    stepped = random.choice((None, np.array(True), np.array(False)))
    flags = random.choice((None, np.array(stepped is None or bool(stepped)))), stepped  # fresh only after a real step

    def program() -> list[Any]:
        held = _odd(Random(layout), average)
        swa_utils.lerp(held, current, 0.3, *flags)
        return [held.copy()]

    return program


def _moment(random: Random) -> tuple[Any, Any, Any, Any]:
    # Values of a moment, memory for their codes and scales, and the code.
    is_non_negative = random.random() < 0.5
    code = blockwise.code_of(random.choice(("int8", "float8")), is_non_negative)
    values = _flat(random, float32, special=False)
    values = np.abs(values) if is_non_negative else values
    return values, np.zeros(values.size, np.uint8), np.zeros(-(-values.size // blockwise.BLOCK), float32), code


def _encode_moment(random: Random) -> Program:
    values, codes, scales, code = _moment(random)
    bits = random.choice((None, (random.randrange(2**64), 5, 0)))

    def program() -> list[Any]:
        blockwise.encode(values, codes, scales, code, bits)
        return [codes.copy(), scales.copy()]

    return program


def _decode_moment(random: Random) -> Program:
    values, codes, scales, code = _moment(random)
    blockwise.encode(values, codes, scales, code, None)
    return lambda: [blockwise.decode(codes, scales, code)]


def _narrow(random: Random) -> Program:
    values, dtype = _odd(random, _flat(random)), random.choice((bfloat16, float16))
    layout = random.randrange(1 << 32)

    def program() -> list[Any]:
        held = _odd(Random(layout), np.zeros(values.size, dtype))
        narrow(values, held)
        return [held.copy()]

    return program


def _running(random: Random) -> Program:
    first, layout = _flat(random, special=False), random.randrange(1 << 32)
    more = [_flat(random, special=False, n=first.size) for _ in range(2)]
    batch = [laid_out(each, random.choice(LAYOUTS[:12]), random) for each in (*more,)]

    def program() -> list[Any]:
        held = [_odd(Random(layout + i), first) for i in range(2)]
        update_running_statistics(*held, *batch, 1.25, 0.1)
        return [each.copy() for each in held]

    return program


def _step_of(rules: tuple[tuple[Any, dict[str, Any]], ...], random: Random) -> Program:
    kind, options = random.choice(rules)
    shapes = [tuple(random.choices((1, 2, 3, 5, 9, 17, 33), k=random.choice((1, 2, 2, 3)))) for _ in range(2)]
    dtype, seed = random.choice((float32, bfloat16)), random.randrange(1 << 32)
    turned = random.random() < 0.5

    def program() -> list[Any]:
        rng = np.random.default_rng(seed)
        drawn = [[rng.standard_normal(shape).astype(np.float32) for shape in shapes] for _ in range(3)]
        weights = [nn.Parameter(tensor(each).to(dtype)) for each in drawn[0]]
        optimizer, scaler = kind(weights, lr=0.01, **options), GradScaler(enabled=dtype is float32)
        for each in weights:
            each.copy_in(bfloat16, True)
        for values in drawn[1:]:
            optimizer.zero_grad()
            factors = [np.asfortranarray(each) if turned else each for each in values]
            terms = [(w.float() * Tensor(each)).sum() for w, each in zip(weights, factors, strict=True)]
            scaler.scale(terms[0] + terms[1]).backward()
            scaler.step(optimizer)
            scaler.update()
        return [each.detach().numpy() for each in weights]

    return program


def _encode(random: Random) -> Program:
    dtype = random.choice([*FORMATS])
    values = _flat(random, random.choice((float32, bfloat16, float16, float64)))
    values = _odd(random, values[: values.size // 2 * 2] if is_packed(dtype) else values)
    options = random.random() < 0.5, random.choice((None, (random.randrange(2**64), 5)))
    return lambda: [encode(values, dtype, *options)]


def _decode(random: Random) -> Program:
    dtype, to = random.choice([*FORMATS]), random.choice((float32, bfloat16, float16, float64))
    raw = np.frombuffer(random.randbytes(random.choice(LENGTHS)), np.uint8)
    codes = _odd(random, raw)
    return lambda: [decode(codes, dtype, to)]


def _quantized(random: Random, special: bool = True) -> tuple[Any, Any, Callable[[Any, Any], Any]]:
    # A matrix, a way to quantize it that is of some recipe's product, and the call that does so.
    products = [(each.forward, each.input_gradient, each.weight_gradient) for each in RECIPES.values()]
    how = random.choice(random.choice([pair for each in products for pair in each if pair]))
    shape = random.choice(LENGTHS[:-2]), random.choice(LENGTHS[:-2])
    dtype = random.choice((float32, bfloat16, float16))
    values = _flat(random, dtype, special, shape[0] * shape[1]).reshape(shape)
    scale = np.full((1, 1), 2.5, float32) if how.delayed else None

    def call(values: Any, how: Any) -> Any:
        codes, scales, factor, *_ = quantize_(values, how, scale, (3, 4) if how.stochastic else None)
        columns = values.shape[1] + (-values.shape[1] % 16 if how.hadamard else 0)
        return Quantized(codes, scales, factor, (values.shape[0], columns), how)

    return laid_out(values, random.choice(LAYOUTS), random), how, call


def _quantize(random: Random) -> Program:
    values, how, call = _quantized(random)

    def program() -> list[Any]:
        found = call(values, how)
        return [found.codes, found.scales]

    return program


def _quantize_both(random: Random) -> Program:
    values, first, _ = _quantized(random)
    other = random.choice([each for each in RECIPES.values() if each.name != "delayed"])
    second = random.choice(random.choice([pair for pair in (other.forward, other.input_gradient) if pair]))

    def program() -> list[Any]:
        found = quantize_both_(values, first, second, None, lambda: (3, 4))
        if found is None:  # the reference: each by itself
            ways = (values, first), (values.T, second)
            found = [quantize_(array, how, None, (3, 4) if how.stochastic else None) for array, how in ways]
        return [part for codes, scales, *_ in found[:2] for part in (codes, scales)]

    return program


def _dequantize(random: Random) -> Program:
    values, how, call = _quantized(random)

    def program() -> list[Any]:
        found = call(values, how)
        return [dequantize_(found.codes, found)]

    return program


def _scaled_mm(random: Random) -> Program:
    values, how, call = _quantized(random, special=False)

    def program() -> list[Any]:
        found = call(values, how)
        return [scaled_mm_(found.codes, found, found, float32, None)]

    return program


PRIMITIVES: dict[str, Callable[[Random], Program]] = {
    "amp.exponents:count_exponents": _counts,
    "amp.exponents:count_exponents_of_segments": _counts_of_segments,
    "amp.exponents:count_lost_updates": _lost,
    "amp.exponents:lost_updates_of_segments": _lost_of_segments,
    "amp.found_inf:unscale": _unscale,
    "autograd.accumulate:add_to": _add_to,
    "linalg.quantization:dequantize": _dequantize,
    "linalg.quantization:quantize": _quantize,
    "linalg.quantization:quantize_both": _quantize_both,
    "linalg.quantization:scaled_mm": _scaled_mm,
    "nn.batch_norm:update_running_statistics": _running,
    "pointwise.formats:encode": _encode,
    "pointwise.formats:decode": _decode,
    "optim.adafactor:adafactor_update": lambda random: _step_of(((optim.Adafactor, {}),), random),
    "optim.elementwise:lerp": _lerp,
    "optim.elementwise:decode": _decode_moment,
    "optim.elementwise:encode": _encode_moment,
    "optim.elementwise:narrow": _narrow,
    "optim.elementwise:power_sum": _power_sum,
    "optim.elementwise:scale_gradients": _scale_gradients,
    "optim.elementwise:update": lambda random: _step_of(RULES, random),
    "optim.lamb:lamb_update": lambda random: _step_of(((optim.LAMB, {"weight_decay": 0.1}),), random),
    "quantized.codes:dequantize_per_tensor": _values_of_codes,
}
