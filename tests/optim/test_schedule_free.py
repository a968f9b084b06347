"""AdamWScheduleFree: its formula in float64, the values of its authors' package, its two modes, its state."""

import copy
from contextlib import nullcontext

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, optim
from ampkit.base.errors import ArgumentError, StateError
from ampkit.core.dispatch import reference_only

OPTIONS = {"lr": 0.05, "betas": (0.8, 0.95), "weight_decay": 0.1, "warmup_steps": 10, "r": 0.5, "weight_lr_power": 1.0}
SHAPES = [(7, 5), (5,), (), (260, 270)]
# of the options above after 50 steps by schedulefree 1.4.1 on PyTorch 2.13, float32: in train mode, in eval mode
PEER_Y = [-0.833905041217804, -0.4308251738548279, -0.02257232367992401, 0.4261837303638458, 0.8785924315452576]
PEER_X = [-0.8602227568626404, -0.4291044771671295, -0.011623574420809746, 0.4259822964668274, 0.8832316398620605]


def values(tensor):
    return tensor.detach().cpu().numpy().copy()


def bits(optimizer):
    """Of the parameters and of all that the state holds."""
    state = optimizer.state_dict()
    arrays = [(name, values(entry[name]).tobytes()) for entry in state["state"].values() for name in sorted(entry)]
    counts = [group[key] for group in state["param_groups"] for key in ("k", "lr_max", "weight_sum", "train_mode")]
    return arrays, counts, [values(p).tobytes() for group in optimizer.param_groups for p in group["params"]]


def step(optimizer, k):
    for group in optimizer.param_groups:
        for p in group["params"]:
            count = p.numel()
            p.grad = ampkit.tensor(np.cos(np.arange(count) * 1.5 + k).reshape(p.shape), dtype=p.dtype, device=p.device)
    optimizer.step()


def ramp(dtype=ampkit.float32, size=5, **options):
    p = nn.Parameter(ampkit.tensor(np.linspace(-1, 1, size), dtype=dtype))
    return p, optim.AdamWScheduleFree([p], **{**OPTIONS, **options})


def formula(p, gradients, lr=2.5e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, warmup_steps=0, r=0.0, power=2.0):
    """The three sequences of algorithm 1 in float64; None is a step in which the parameter took no part. -> y, x"""
    x, z, v, total, taken = p.astype(np.float64), p.astype(np.float64), 0.0, 0.0, 0
    for k, g in enumerate(gradients, 1):
        y = (1 - betas[0]) * z + betas[0] * x
        rate = lr * (min(1, k / warmup_steps) if warmup_steps else 1)
        weight = k**r * rate**power  # the learning rate rises alone, so that it is the largest
        total += weight
        if g is None:
            continue
        taken += 1
        v = betas[1] * v + (1 - betas[1]) * g * g
        z = z - rate * (g / (np.sqrt(v / (1 - betas[1] ** taken)) + eps) + weight_decay * y)
        x = x + (z - x) * (weight / total)
    return (1 - betas[0]) * z + betas[0] * x, x


@pytest.mark.parametrize("options", [{}, {**OPTIONS, "eps": 1e-3}], ids=["plain", "all"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("maximize", [False, True])
def test_it_follows_its_formula(options, dtype, maximize):
    rng = np.random.default_rng(0)
    starts = [rng.standard_normal(s).astype(dtype) for s in SHAPES]
    gradients = [
        [None if i == 1 and k % 3 == 1 else (rng.standard_normal(s) * 10).astype(dtype) for k in range(7)]
        for i, s in enumerate(SHAPES)
    ]
    parameters = [nn.Parameter(ampkit.tensor(start)) for start in starts]
    optimizer = optim.AdamWScheduleFree(parameters, **options, maximize=maximize)
    for row in zip(*gradients, strict=True):
        for p, g in zip(parameters, row, strict=True):
            p.grad = None if g is None else ampkit.tensor(-g if maximize else g, device=p.device)
        optimizer.step()
    named = {("power" if key == "weight_lr_power" else key): value for key, value in options.items()}
    wanted = [formula(start, rows, **named) for start, rows in zip(starts, gradients, strict=True)]
    atol = 2e-6 if dtype is np.float32 else 1e-13
    for number in (0, 1):
        for p, want in zip(parameters, wanted, strict=True):
            assert np.allclose(values(p), want[number], rtol=0, atol=atol * max(1.0, np.abs(want[number]).max()))
        optimizer.eval()


def test_it_has_the_values_of_its_authors_package():
    p, optimizer = ramp()
    for k in range(50):
        step(optimizer, k)
    assert np.allclose(values(p), PEER_Y, rtol=0, atol=1e-6)
    optimizer.eval()
    assert np.allclose(values(p), PEER_X, rtol=0, atol=1e-6)
    group = optimizer.param_groups[0]
    assert group["k"] == 50 and group["scheduled_lr"] == group["lr_max"] == 0.05
    assert group["weight_sum"] == pytest.approx(11.541737674209616, rel=1e-12)


def test_a_state_of_its_authors_package_goes_on():
    p, optimizer = ramp()
    for k in range(3):
        step(optimizer, k)
    state = optimizer.state_dict()
    for entry in state["state"].values():
        del entry["step"]
    q, other = ramp()
    q.data = p.detach().clone()
    other.load_state_dict(state)
    for each in (optimizer, other):
        step(each, 3)
    assert bits(optimizer) == bits(other)


@pytest.mark.parametrize("dtype", [ampkit.float32, ampkit.float64, ampkit.bfloat16], ids=str)
@pytest.mark.parametrize("stochastic", [False, True])
def test_an_evaluation_between_two_steps_leaves_no_trace(dtype, stochastic):
    found = []
    for evaluates in (False, True):
        ampkit.manual_seed(0)
        # enough elements that some would be rounded to another neighbour on the way back
        optimizer = ramp(dtype, 999, stochastic_rounding=stochastic and dtype == ampkit.bfloat16)[1]
        for k in range(6):
            step(optimizer, k)
            if evaluates:
                before = bits(optimizer)
                optimizer.eval()
                assert bits(optimizer) != before
                optimizer.eval()
                optimizer.train()
        found.append(bits(optimizer))
    assert found[0] == found[1]


def test_before_the_first_step_both_modes_are_the_weights_that_it_began_with():
    p, optimizer = ramp()
    before = values(p)
    for switch in (optimizer.eval, optimizer.train, optimizer.eval):
        switch()
        assert np.array_equal(values(p), before)


def test_weights_that_were_changed_in_eval_mode_are_kept():
    p, optimizer = ramp()
    step(optimizer, 0)
    step(optimizer, 1)
    y = values(p)
    optimizer.eval()
    with ampkit.no_grad():
        p[0] = 3.0
    optimizer.train()
    z = values(optimizer.state[p]["z"])
    assert np.array_equal(values(p)[1:], y[1:])
    assert values(p)[0] == pytest.approx(0.2 * z[0] + 0.8 * 3.0)


def test_a_step_in_eval_mode_is_refused():
    p, optimizer = ramp()
    optimizer.eval()
    before = bits(optimizer)
    scaler = ampkit.GradScaler()
    scaler.scale(ops.sum(p * 2)).backward()
    with pytest.raises(StateError, match=r"needs train mode, got eval mode.*\nhelp: call optimizer.train\(\)"):
        scaler.step(optimizer)
    with pytest.raises(StateError, match="needs train mode"):
        step(optimizer, 0)
    assert bits(optimizer) == before


@pytest.mark.parametrize("reference", [False, True])
def test_a_skipped_step_advances_no_count(reference):
    p, optimizer = ramp()
    scaler = ampkit.GradScaler(init_scale=4.0)

    def scaled(size):
        optimizer.zero_grad()
        scaler.scale(ops.sum(p * size)).backward()
        scaler.step(optimizer)
        scaler.update()

    with reference_only() if reference else nullcontext():
        for size in (float("inf"), 0.5, float("nan")):
            before = bits(optimizer)
            scaled(size)
            assert (bits(optimizer) == before) == (size != 0.5)
    assert optimizer.param_groups[0]["k"] == 1


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("dtype", [ampkit.float32, ampkit.float16], ids=str)
def test_it_resumes_from_a_state_of_either_mode_bit_for_bit(dtype, mode):
    p, optimizer = ramp(dtype)
    for k in range(4):
        step(optimizer, k)
    getattr(optimizer, mode)()
    q, other = ramp(dtype, lr=0.7)
    q.data = p.detach().clone()
    other.load_state_dict(optimizer.state_dict())
    twin = copy.deepcopy(optimizer)
    assert bits(other) == bits(optimizer) == bits(twin)
    for each in (optimizer, other, twin):
        each.train()
        for k in range(4, 7):
            step(each, k)
    assert bits(optimizer) == bits(other) == bits(twin)


def test_a_16_bit_copy_follows_the_mode():
    ampkit.manual_seed(0)
    layer = nn.Linear(4, 3)
    optimizer = optim.AdamWScheduleFree(layer.parameters(), lr=0.5)
    x = ampkit.ones(2, 4)

    def outputs():
        with ampkit.no_grad(), ampkit.autocast(dtype=ampkit.bfloat16):
            cached = layer(x)
            fresh = ops.linear(x.bfloat16(), layer.weight.detach().clone().bfloat16(), layer.bias.detach().clone())
        assert cached.tolist() == fresh.tolist()
        return cached.tolist()

    found = []
    for k in range(2):
        outputs()
        step(optimizer, k)
    for switch in (optimizer.train, optimizer.eval, optimizer.train):
        switch()
        found.append(outputs())
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"betas": (0.0, 0.9)}, r"AdamWScheduleFree: needs betas\[0\] in \(0, 1\), got 0.0"),
        ({"warmup_steps": -1}, "AdamWScheduleFree: needs warmup_steps in .*, got -1"),
        ({"r": "x"}, "AdamWScheduleFree: needs r >= 0, got 'x'"),
    ],
    ids=str,
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ArgumentError, match=message):
        ramp(**options)


@pytest.mark.parametrize("change", [{"train_mode": 3}, {"k": "many"}, {"weight_sum": -1.0}], ids=str)
def test_a_state_with_counts_that_are_none_is_refused_and_nothing_changes(change):
    optimizer = ramp()[1]
    step(optimizer, 0)
    before, state = bits(optimizer), optimizer.state_dict()
    state["param_groups"][0] |= change
    with pytest.raises(ArgumentError, match=f"AdamWScheduleFree.*{next(iter(change))}"):
        optimizer.load_state_dict(state)
    assert bits(optimizer) == before


@pytest.mark.parametrize("state", [np.int8(-1), [], {"param_groups": [{}], "state": 3}], ids=str)
def test_what_is_no_state_is_refused(state):
    with pytest.raises(ArgumentError, match="AdamWScheduleFree.load_state_dict"):
        ramp()[1].load_state_dict(state)


def test_a_state_without_z_is_refused():
    optimizer = ramp()[1]
    step(optimizer, 0)
    state = optimizer.state_dict()
    del state["state"][0]["z"]
    with pytest.raises(ArgumentError, match="needs the whole state of parameter 0 .*, got one without z"):
        optimizer.load_state_dict(state)


def test_a_recorded_step_follows_the_mode():
    found = []
    for records in (False, True):
        p, optimizer = ramp()

        def train(x, p=p, optimizer=optimizer):
            optimizer.zero_grad()
            ops.sum(p * p * x).backward()
            optimizer.step()

        run = ampkit.compile(train) if records else train
        for k in range(6):
            run(ampkit.tensor(np.cos(np.arange(5) + k), dtype="float32"))
            if k == 3:
                optimizer.eval()
                optimizer.train()
        found.append(bits(optimizer))
    assert found[0] == found[1]
