"""Averages of weights: their formulas, real steps only, float32, states."""

import copy

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, optim
from ampkit.base.errors import ArgumentError
from ampkit.optim import swa_utils
from ampkit.optim.swa_utils import AveragedModel

EMA = 0.75
RULES = {
    "ema of lists": {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(EMA)},
    "ema of one": {"avg_fn": swa_utils.get_ema_avg_fn(EMA)},
    "one's own": {"avg_fn": lambda average, current, n: EMA * average + (1 - EMA) * current},
    "the mean": {},
    "the mean of one": {"avg_fn": swa_utils.get_swa_avg_fn()},
    "the mean of lists": {"multi_avg_fn": lambda a, c, n: swa_utils.get_swa_multi_avg_fn()(a, c, n)},
}


def values(tensor):
    return tensor.detach().cpu().numpy().copy()


def weights(model):
    return [values(p) for p in model.parameters()]


def small(dtype=ampkit.float32):
    ampkit.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to(dtype)


def train(model, optimizer, k):
    optimizer.zero_grad()
    x = ampkit.tensor(np.sin(np.arange(15.0) + k).reshape(5, 3).astype(np.float32))
    ops.sum(ops.square(model(x.to(next(model.parameters()).dtype)).float())).backward()
    optimizer.step()


def expected(rule, rows):
    found = rows[0].astype(np.float64)
    for n, row in enumerate(rows[1:], 1):
        found = found * EMA + row * (1 - EMA) if "ema" in rule or "own" in rule else (found * n + row) / (n + 1)
    return found


@pytest.mark.parametrize("rule", RULES)
def test_an_average_follows_its_formula_and_takes_the_first_weights_whole(rule):
    model = small()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    average, seen = AveragedModel(model, **RULES[rule]), []
    for k in range(5):
        train(model, optimizer, k)
        average.update_parameters(model)
        seen.append(weights(model))
        if not k:
            assert all(map(np.array_equal, weights(average), seen[0]))
    assert average.n_averaged.item() == 5
    for found, *rows in zip(weights(average), *seen, strict=True):
        assert np.allclose(found, expected(rule, rows), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("rule", RULES)
def test_a_skipped_step_advances_no_average(rule):
    p = nn.Parameter(ampkit.tensor([4.0, -4.0]))
    model = nn.ParameterList([p])
    optimizer, scaler = optim.SGD([p], lr=1.0), ampkit.GradScaler()
    average, real = AveragedModel(model, **RULES[rule]), []
    for k, gradient in enumerate((float("inf"), 1.0, float("nan"), 2.0, float("inf"))):
        optimizer.zero_grad()
        scaler.scale(ops.sum(p * gradient)).backward()
        scaler.step(optimizer)
        scaler.update()
        average.update_parameters(model)
        if k in (1, 3):
            real.append(values(p))
        assert average.n_averaged.item() == len(real)
        assert real or weights(average)[0].tolist() == [4.0, -4.0]
    assert np.allclose(weights(average)[0], expected(rule, real))
    p.data = ampkit.tensor([float("inf"), float("nan")])
    average.update_parameters(model)  # no step since the last call
    assert average.n_averaged.item() == 2
    assert np.allclose(weights(average)[0], expected(rule, real))


def test_without_an_optimizer_every_call_counts():
    model = nn.Linear(2, 2)
    average = AveragedModel(model)
    for _ in range(3):
        average.update_parameters(model)
    assert average.n_averaged.item() == 3


@pytest.mark.parametrize("dtype", [ampkit.float16, ampkit.bfloat16], ids=str)
def test_of_16_bit_parameters_the_float32_masters_are_averaged(dtype):
    p = nn.Parameter(ampkit.ones(4, dtype=dtype))
    model = nn.ParameterList([p])
    optimizer = optim.SGD([p], lr=1e-5)  # too small for 16 bits
    average = AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.5))
    for _ in range(2):
        optimizer.zero_grad()
        ops.sum(p.float()).backward()
        optimizer.step()
        average.update_parameters(model)
    (found,) = weights(average)
    assert found.dtype == np.float32
    assert np.allclose(found, 1 - 1.5e-5, rtol=0, atol=1e-7)


@pytest.mark.parametrize("use_buffers", [False, True])
def test_buffers_are_the_models_own_or_averaged_too(use_buffers):
    model = small()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    average, seen = AveragedModel(model, use_buffers=use_buffers), []
    for k in range(3):
        train(model, optimizer, k)
        average.update_parameters(model)
        seen.append(values(model[1].running_mean))
    want = np.mean(seen, axis=0) if use_buffers else seen[-1]
    assert np.allclose(values(average.module[1].running_mean), want, rtol=1e-6)
    assert average.module[1].num_batches_tracked.item() == 3


def test_an_average_goes_on_bit_for_bit_from_its_state():
    model = small()
    optimizer = optim.Adam(model.parameters(), lr=0.1)
    one = AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    for k in range(3):
        train(model, optimizer, k)
        one.update_parameters(model)
    state = {name: ampkit.tensor(values(t)) for name, t in one.state_dict().items()}
    assert set(state) == {"n_averaged", *(f"module.{name}" for name in model.state_dict())}
    two = AveragedModel(small(), multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    two.load_state_dict(state)
    three = copy.deepcopy(one)
    train(model, optimizer, 3)
    for average in (one, two, three):
        average.update_parameters(model)
    assert [w.tobytes() for w in weights(one)] == [w.tobytes() for w in weights(two)]
    assert [w.tobytes() for w in weights(one)] == [w.tobytes() for w in weights(three)]
    assert one.n_averaged.item() == two.n_averaged.item() == three.n_averaged.item() == 4


def test_the_averaged_model_answers_with_its_own_weights():
    model = nn.Linear(2, 1, bias=False)
    average = AveragedModel(model)
    model.weight.data = ampkit.tensor([[3.0, 5.0]])
    average.update_parameters(model)
    model.weight.data = ampkit.tensor([[0.0, 0.0]])
    assert average(ampkit.ones(1, 2)).tolist() == [[8.0]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: AveragedModel(m, avg_fn=max, multi_avg_fn=max), "needs avg_fn or multi_avg_fn, got both"),
        (lambda m: AveragedModel(m).update_parameters(nn.Linear(3, 1)), "or other shapes"),
        (lambda m: swa_utils.get_ema_multi_avg_fn(1.5), r"needs decay in \[0, 1\], got 1.5"),
    ],
)
def test_what_cannot_be_averaged_is_refused(call, message):
    with pytest.raises(ArgumentError, match=message):
        call(nn.Linear(2, 1))


def test_update_bn_takes_the_statistics_of_the_averaged_weights_anew():
    average = AveragedModel(small())
    norm = average.module[1]
    batches = [ampkit.tensor(np.cos(np.arange(15.0) * (k + 1)).reshape(5, 3).astype(np.float32)) for k in range(3)]
    average.eval()
    swa_utils.update_bn([(batch, None) for batch in batches], average)
    rows = [values(average.module[0](batch)) for batch in batches]
    assert np.allclose(values(norm.running_mean), np.mean([r.mean(0) for r in rows], axis=0), atol=1e-6)
    assert np.allclose(values(norm.running_var), np.mean([r.var(0, ddof=1) for r in rows], axis=0), atol=1e-6)
    assert norm.momentum == 0.1 and not norm.training and norm.num_batches_tracked.item() == 3
    swa_utils.update_bn([], nn.Linear(2, 2))  # nothing to do


@pytest.mark.cpu  # from_numpy shares the CPU's memory
@pytest.mark.parametrize("turn", [lambda a: a.T, lambda a: np.repeat(a, 2, 1)[:, ::2], lambda a: a[::-1]])
def test_averages_of_any_strides_are_written_in_place(turn):
    average = ampkit.from_numpy(turn(np.zeros((4, 3), np.float32)))
    new = ampkit.tensor(np.arange(12, dtype=np.float32).reshape(average.shape))
    swa_utils.get_ema_multi_avg_fn(0.75)([average], [new], 1)
    assert (average.numpy() == 0.25 * new.numpy()).all()


def test_averages_of_integers_are_float32_and_in_place_rounded_towards_zero():
    averaged, current = ampkit.tensor([5, 10, 1]), ampkit.tensor([10, -10, -1])
    for single, several, want in (
        (swa_utils.get_ema_avg_fn(0.5), swa_utils.get_ema_multi_avg_fn(0.5), [7.5, 0, 0]),
        (swa_utils.get_swa_avg_fn(), swa_utils.get_swa_multi_avg_fn(), [6.25, 5, 0.5]),
    ):
        made, held = single(averaged, current, ampkit.tensor(3)), averaged.clone()
        several([held], [current], ampkit.tensor(3))
        assert made.dtype == ampkit.float32 and made.tolist() == want
        assert held.dtype == ampkit.int64 and held.tolist() == [int(value) for value in want]
