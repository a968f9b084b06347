"""Rounding at random: unbiased, finite, repeatable; 16-bit parameters that train without masters."""

import copy
import pickle

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, optim
from ampkit.base.errors import ArgumentError, StateError
from ampkit.core.dispatch import reference_only
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.optim.flat.arena import Span
from ampkit.optim.flat.memory import RandomBits, round_stochastically

LOW = pytest.mark.parametrize("dtype", [ampkit.bfloat16, ampkit.float16], ids=str)
KINDS = {
    "SGD": lambda p, **o: optim.SGD(p, lr=1e-2, momentum=0.9, weight_decay=0.1, **o),
    "AdamW": lambda p, **o: optim.AdamW(p, lr=1e-2, **o),
    "Lion": lambda p, **o: optim.Lion(p, lr=1e-2, **o),
    "NAdam": lambda p, **o: optim.NAdam(p, lr=1e-2, **o),
    "Rprop": lambda p, **o: optim.Rprop(p, lr=1e-2, **o),
    "LAMB": lambda p, **o: optim.LAMB(p, lr=1e-2, **o),
    "Adafactor": lambda p, **o: optim.Adafactor(p, lr=1e-2, **o),
}


def values(tensor):
    return tensor.detach().cpu().numpy().copy()


@ignore_fp_errors()
def rounded(numbers, dtype, random_bits):
    out = np.zeros(len(numbers), dtype)
    round_stochastically(np.asarray(numbers, np.float32), out, random_bits)
    return out.astype(np.float64)


@LOW
@pytest.mark.parametrize("number", [1.001, 1 / 3, -2.7182817, 1e-5, -3.3e-6, 60000.1, 5e-8])
def test_the_mean_over_many_draws_is_the_number(number, dtype):
    numbers = np.full(1 << 18, number, np.float32)
    found = rounded(numbers, dtype, RandomBits(1, 2))
    low, high = np.unique(found)[[0, -1]]
    assert len(np.unique(found)) == 2 and low <= numbers[0] <= high
    assert abs(found.mean() - float(numbers[0])) < 5 * (high - low) / 2 / np.sqrt(numbers.size)


@LOW
def test_what_16_bits_hold_stays_and_the_finite_stays_finite(dtype):
    held = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    with ignore_fp_errors():
        found = rounded(held.astype(np.float32), dtype, RandomBits(0, 0))
        truth = held.astype(np.float64)
        if dtype == ampkit.bfloat16:  # a CPU with bfloat16 units makes 0 of its subnormals
            truth[(np.abs(truth) <= np.finfo(np.float32).tiny) & (found == 0)] = 0
        np.testing.assert_array_equal(found, truth)
    top = float(np.finfo(np.float16).max) if dtype == ampkit.float16 else 3.3895314e38
    large = np.array([top * 1.0009765, -top * 1.0009765, 3.4028235e38, -3.4028235e38] * 64, np.float32)
    assert (np.abs(rounded(large, dtype, RandomBits(0, 0))) == np.float64(np.float32(top))).all()


def test_the_words_of_a_draw_are_named_by_the_element():
    numbers = np.full(96, 1 / 3, np.float32)
    whole = rounded(numbers, ampkit.bfloat16, RandomBits(5, 6))
    assert whole[32:].tolist() == rounded(numbers[32:], ampkit.bfloat16, RandomBits(5, 6).skip(32)).tolist()
    assert whole.tolist() != rounded(numbers, ampkit.bfloat16, RandomBits(5, 7)).tolist()
    assert whole.tolist() != rounded(numbers, ampkit.bfloat16, RandomBits(6, 6)).tolist()


def model_in(dtype):
    ampkit.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype=dtype)


def train(model, optimizer, steps, bad=()):
    scaler = ampkit.GradScaler(init_scale=4.0, growth_interval=100)
    for k in range(steps):
        x = ampkit.tensor(np.sin(np.arange(20.0) + k).reshape(4, 5)).to(next(model.parameters()))
        optimizer.zero_grad()
        scaler.scale(ops.sum(ops.square(model(x)).float()) * (float("nan") if k in bad else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()


def bits(model):
    return [values(p).tobytes() for p in model.parameters()]


@LOW
@pytest.mark.parametrize("kind", KINDS)
def test_there_is_no_master_and_a_skipped_step_changes_nothing(kind, dtype):
    model = model_in(dtype)
    optimizer = KINDS[kind](model.parameters(), stochastic_rounding=True)
    before = bits(model)
    train(model, optimizer, 1, bad=(0,))
    with reference_only():
        train(model, optimizer, 1, bad=(0,))
    assert bits(model) == before
    train(model, optimizer, 1)
    assert bits(model) != before
    (block,) = optimizer.param_groups[0].arenas
    assert block.master.dtype == dtype and not block.copies and block.gradient.dtype == np.float32
    assert "master" not in optimizer.state_dict()["state"][0]


@LOW
@pytest.mark.parametrize("way", ["state", "pickle", "deepcopy"])
@pytest.mark.parametrize("kind", ["AdamW", "LAMB"])
def test_a_run_goes_on_bit_for_bit(kind, way, dtype):
    model = model_in(dtype)
    optimizer = KINDS[kind](model.parameters(), stochastic_rounding=True)
    train(model, optimizer, 2)
    if way == "state":
        twin = model_in(dtype)
        other = KINDS[kind](twin.parameters(), stochastic_rounding=True)
        twin.load_state_dict(model.state_dict())
        other.load_state_dict(optimizer.state_dict())
    else:
        go = copy.deepcopy if way == "deepcopy" else lambda pair: pickle.loads(pickle.dumps(pair))
        twin, other = go((model, optimizer))
    found = []
    for each in ((model, optimizer), (twin, other)):
        ampkit.manual_seed(3)
        train(*each, 3, bad=(1,))
        found.append(bits(each[0]))
    assert found[0] == found[1]
    ampkit.manual_seed(4)
    train(twin, other, 1)
    ampkit.manual_seed(5)
    train(model, optimizer, 1)
    assert bits(twin) != bits(model)


@LOW
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_on_average_that_of_float32(kind, dtype):
    start = np.float32(np.linspace(0.5, 1.5, 32)).astype(dtype).astype(np.float32)
    found = []
    for each in (dtype, ampkit.float32):
        copies = 1024 if each == dtype else 1
        p = nn.Parameter(ampkit.tensor(np.tile(start, (copies, 1))).to(each))
        options = {"stochastic_rounding": True} if each == dtype else {}
        optimizer = KINDS[kind]([p], **options)
        p.grad = ampkit.tensor(np.tile(np.linspace(1, 2, 32, dtype=np.float32), (copies, 1)))
        optimizer.step()
        found.append(values(p).astype(np.float64).mean(0) - start)
    spacing = (2.0**-7 if dtype == ampkit.bfloat16 else 2.0**-10) * np.where(start < 1, 0.5, 1)
    assert (np.abs(found[0] - found[1]) < 5 * spacing / 2 / np.sqrt(1024)).all()


@LOW
@pytest.mark.parametrize("kind", ["SGD", "Lion"])
def test_steps_too_small_for_16_bits_train_only_where_rounding_is_random(kind, dtype):
    ampkit.manual_seed(0)
    p = nn.Parameter(ampkit.ones(4096, dtype=dtype))
    lr = 2.0**-12 if dtype == ampkit.bfloat16 else 2.0**-15  # 1/16 of the spacing below 1
    optimizer = getattr(optim, kind)([p], lr=lr, stochastic_rounding=True)
    plain = p.detach().clone()
    for _ in range(64):
        p.grad = ampkit.ones(4096)
        optimizer.step()
        plain = plain - lr
    assert (values(plain) == 1).all()
    assert abs(values(p).astype(np.float64).mean() - (1 - 64 * lr)) < 3 * lr


def test_the_draws_do_not_depend_on_how_memory_was_worked_through(monkeypatch):
    model = model_in(ampkit.bfloat16)
    parameters = list(model.parameters())
    optimizer = KINDS["SGD"](parameters, stochastic_rounding=True)
    starts = []
    random_bits = Span.random_bits.fget
    monkeypatch.setattr(
        Span, "random_bits", property(lambda span: starts.append((span.start, random_bits(span))) or random_bits(span))
    )
    for present in ([0, 1], [0, 2], [0, 1, 2, 3]):
        for i in present:
            parameters[i].grad = ampkit.ones(*parameters[i].shape)
        optimizer.step()
        optimizer.zero_grad()
    assert all(found.start == start for start, found in starts)
    assert len({found.call for _, found in starts}) == 3


def test_float32_parameters_are_as_they_are_and_16_bit_ones_beside_them_are_rounded_at_random():
    wide, low = nn.Parameter(ampkit.ones(3)), nn.Parameter(ampkit.ones(3, dtype=ampkit.bfloat16))
    optimizer = optim.SGD([{"params": [wide, low], "stochastic_rounding": True}], lr=2.0**-12)
    for p in (wide, low):
        p.grad = ampkit.ones(3)
    optimizer.step()
    assert values(wide).tolist() == [1 - 2.0**-12] * 3
    assert set(values(low).tolist()) <= {1.0, 1 - 2.0**-8}


def test_what_memory_holds_is_settled_when_the_optimizer_is_made():
    p = nn.Parameter(ampkit.ones(3, dtype=ampkit.bfloat16))
    optimizer = optim.SGD([p], stochastic_rounding=True)
    with pytest.raises(StateError, match="got another rounding"):
        optimizer.param_groups[0]["stochastic_rounding"] = False
    with_masters = optim.SGD([nn.Parameter(ampkit.ones(3, dtype=ampkit.bfloat16))], momentum=0.5)
    (held,) = with_masters.param_groups[0]["params"]
    held.grad = ampkit.ones(3)
    with_masters.step()
    optimizer.load_state_dict(with_masters.state_dict())  # its float32 values are left out
    assert optimizer.param_groups[0]["stochastic_rounding"] is True
    assert optimizer.param_groups[0]["momentum"] == 0.5


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_a_word_is_no_answer_to_whether_to_round_at_random(kind):
    with pytest.raises(ArgumentError, match="needs stochastic_rounding True or False, got 'false'"):
        kind([nn.Parameter(ampkit.zeros(2))], stochastic_rounding="false")
