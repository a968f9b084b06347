"""Faults of learning rates, growing residual streams, scalar roots and constants: the first cure that is named works.

Each fault is a function of a `Knobs`, the places that a cure can change. The cure is read from the finding, word for
word, applied there, and the step and some that follow succeed.
"""

import math
import re
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import pytest

import ampkit
from ampkit import Policy, autocast, debug, nn, ops, optim
from ampkit.distributed import world

F16, BF16, F32 = ampkit.float16, ampkit.bfloat16, ampkit.float32
RNG = np.random.default_rng(0)
X = ampkit.tensor(RNG.standard_normal((32, 8)).astype(np.float32))
Y = ampkit.tensor(X.numpy() @ RNG.standard_normal((8, 4)).astype(np.float32))


@pytest.fixture(autouse=True)
def _data_on_the_device(monkeypatch):
    for name in ("X", "Y"):
        monkeypatch.setitem(globals(), name, globals()[name].to(ampkit.get_default_device()))


@dataclass(frozen=True)
class Knobs:
    """What a cure can change. constants: in place of the program's. inside: the eps or clamp in front of an op."""

    dtype: object = F32
    lr: float | None = None  # the fault's own
    policy: object = None
    constants: dict = field(default_factory=dict)
    inside: object = None
    normalize: bool = False

    def region(self):
        if self.dtype is F32:
            return nullcontext()
        return autocast(policy=self.policy) if self.policy is not None else autocast(dtype=self.dtype)

    def constant(self, number):
        return self.constants.get(number, number)

    def edge(self, x):
        return x if self.inside is None else self.inside(x)


def number(text):
    found = re.fullmatch(r"ampkit\.finfo\(ampkit\.(\w+)\)\.(min|max)", text)
    return float(getattr(ampkit.finfo(getattr(ampkit, found[1])), found[2])) if found else float(text)


def applied(cure, knobs):
    """The knobs with the first of the cures in the text."""
    first = cure.split(", or ")[0]
    if found := re.match(r"lower the learning rate, from \S+ to ([^ ,]+)", first):
        return replace(knobs, lr=float(found[1]))
    if found := re.fullmatch(r"use (.+) instead of (.+)", first):
        now, before = (list(map(number, text.split(" and "))) for text in found.groups())
        wanted = {given: value for given in knobs.constants or KNOWN for old, value in zip(before, now, strict=True)
                  if math.isclose(given, old, rel_tol=1e-12)}  # fmt: skip
        return replace(knobs, constants=wanted)
    if first == "train in bfloat16":
        return replace(knobs, dtype=BF16)
    if found := re.search(r"Policy\(.*\)", cure):
        return replace(knobs, policy=eval(found[0], {"Policy": Policy}))
    if first.startswith("normalize what goes into"):
        return replace(knobs, normalize=True)
    found = re.search(r"\bx (\+ \S+?)\)|\bx(\.clamp\(.*?\))", first)
    assert found, cure
    return replace(knobs, inside=lambda x: eval("x" + (found[1] or found[2]), {"x": x}))


KNOWN = [
    1 - 1e-6, 1 - 1e-9, -1 + 1e-9, 1e-8, 1e-12, 1e-50, -1e9, -1e40, 1e39, 1e-46, 1e-10, 0.9999, -0.9999, 1e-20,
]  # fmt: skip


def trained(model, optimizer, loss, knobs):
    """A step that trains, with a scaler in float16."""
    scaler = ampkit.GradScaler(enabled=knobs.dtype is F16)

    def step():
        optimizer.zero_grad()
        with knobs.region():
            value = loss(model)
        scaler.scale(value.float()).backward()
        scaler.step(optimizer)
        scaler.update()
        return value

    return step


def network(knobs, width=32):
    ampkit.manual_seed(0)
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))


def too_high(kind, lr, **options):
    def fault(knobs):
        model = network(knobs)
        rate = lr if knobs.lr is None else knobs.lr
        return trained(model, kind(model.parameters(), lr=rate, **options), lambda m: ops.mse_loss(m(X), Y), knobs)

    return fault


class Block(nn.Module):
    def __init__(self, weight, normalize):
        super().__init__()
        self.linear, self.normalize = nn.Linear(8, 8), normalize
        with ampkit.no_grad():
            self.linear.weight.fill_(weight)

    def forward(self, x):
        return x + self.linear(ops.layer_norm(x, x.shape[-1:]) if self.normalize else x)


class Gated(Block):
    def forward(self, x):
        return super().forward(x) * 1.5


def growing(count, weight, kind=Block):
    def fault(knobs):
        ampkit.manual_seed(0)
        blocks = [kind(weight, knobs.normalize) for _ in range(count)]
        model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(*blocks), nn.Linear(8, 4))
        optimizer = optim.AdamW(model.parameters(), lr=1e-3)
        return trained(model, optimizer, lambda m: ops.mse_loss(m(X), Y), knobs)

    return fault


def of_weight(function):
    """A penalty of a weight of zeros beside a loss."""

    def fault(knobs):
        ampkit.manual_seed(0)
        model, weight = nn.Linear(8, 4), nn.Parameter(ampkit.zeros(5))
        optimizer = optim.SGD([*model.parameters(), weight], lr=0.01)
        return trained(model, optimizer, lambda m: ops.mse_loss(m(X), Y) + function(weight, knobs.edge).float(), knobs)

    return fault


def of_output(function):
    """A loss of a layer's output, whose values are large."""

    def fault(knobs):
        ampkit.manual_seed(0)
        model = nn.Linear(8, 8)
        with ampkit.no_grad():
            model.weight.fill_(10.0)
        return trained(model, optim.SGD(model.parameters(), lr=1e-6), lambda m: function(m(X), knobs), knobs)

    return fault


def mask(x):
    return ops.triu(ampkit.ones(32, 8), 1).to(x.dtype)


def low(x):
    return x.abs().neg() * 9


FAULTS = {
    "SGD at 5 with momentum": (too_high(optim.SGD, 5.0, momentum=0.9), (F16, BF16, F32)),
    "SGD at 300": (too_high(optim.SGD, 300.0), (F16, BF16, F32)),
    "AdamW at 30": (too_high(optim.AdamW, 30.0), (F16,)),
    "RMSprop at 100": (too_high(optim.RMSprop, 100.0), (F16,)),
    "12 blocks": (growing(12, 0.5), (F16,)),
    "8 blocks, gated": (growing(8, 0.5, Gated), (F16,)),
    "60 blocks": (growing(60, 0.9), (F32, BF16)),
    "sqrt": (of_weight(lambda w, e: e(w.square().sum()).sqrt()), (F16, BF16, F32)),
    "** 0.5": (of_weight(lambda w, e: e((w * w).sum()) ** 0.5), (F16, F32)),
    "** (1 / 3)": (of_weight(lambda w, e: e(w.abs().mean()) ** (1 / 3)), (F32,)),
    "rsqrt": (of_weight(lambda w, e: (e(w.square().sum()).rsqrt() * w).sum()), (BF16, F32)),
    "w / sqrt": (of_weight(lambda w, e: (w / e(w.square().sum()).sqrt()).sum()), (F32,)),
    "std by hand": (of_weight(lambda w, e: e((w - w.mean()).square().mean()).sqrt()), (F32,)),
    "log": (of_weight(lambda w, e: e(w.square().sum()).log() * 1e-3), (F32,)),
    "sqrt in half": (of_weight(lambda w, e: e(w.half().square().sum()).sqrt()), (F32,)),
    "clamp(max=1 - 1e-6)": (
        of_output(lambda p, k: -(-ops.sigmoid(p).clamp(max=k.constant(1 - 1e-6))).log1p().mean()), (F16, BF16)
    ),
    "clamp(max=1 - 1e-9)": (
        of_output(lambda p, k: -(1 - ops.sigmoid(p).clamp(max=k.constant(1 - 1e-9))).log().mean()), (F16, BF16, F32)
    ),
    "two bounds of acos": (
        of_output(lambda p, k: ops.acos(ops.tanh(p).clamp(k.constant(-1 + 1e-9), k.constant(1 - 1e-9))).mean()),
        (F16, BF16, F32),
    ),
    "two bounds of atanh": (
        of_output(lambda p, k: ops.atanh(ops.tanh(p).clamp(k.constant(-0.9999), k.constant(0.9999))).mean()),
        (F16, BF16),
    ),
    "a factor below 1": (
        of_output(lambda p, k: ops.atanh(ops.tanh(p) * k.constant(1 - 1e-9)).mean()), (F16, BF16, F32)
    ),
    "an eps of 1e-8 in log": (of_output(lambda p, k: -(ops.sigmoid(low(p)) + k.constant(1e-8)).log().mean()), (F16,)),
    "an eps of 1e-12 in log": (
        of_output(lambda p, k: -(ops.relu(low(p)) + k.constant(1e-12)).log().mean()), (F16,)
    ),
    "an eps of 1e-50 in log": (
        of_output(lambda p, k: -(ops.relu(low(p)) + k.constant(1e-50)).log().mean()), (F16, BF16, F32)
    ),
    "an eps of 1e-8 in a quotient": (
        of_output(lambda p, k: ((p - p) / ((p - p).abs() + k.constant(1e-8))).mean()), (F16,)
    ),
    "an eps of 1e-46 in a quotient": (
        of_output(lambda p, k: ((p - p) / ((p - p).abs() + k.constant(1e-46))).mean()), (F16, BF16, F32)
    ),
    "a mask of -1e40": (
        of_output(lambda p, k: ops.softmax(p + mask(p) * k.constant(-1e40), -1).square().mean()), (F16, BF16, F32)
    ),
    "acos": (of_output(lambda p, k: ops.acos(k.edge(ops.tanh(p))).mean()), (F16, BF16, F32)),
    "asin": (of_output(lambda p, k: ops.asin(k.edge(ops.tanh(p))).mean()), (F16, F32)),
    "atanh": (of_output(lambda p, k: ops.atanh(k.edge(ops.tanh(p))).mean()), (F16, BF16, F32)),
    "logit": (of_output(lambda p, k: ops.logit(k.edge(ops.sigmoid(p))).mean()), (F16, F32)),
}  # fmt: skip
CASES = [(name, dtype) for name, (_, dtypes) in FAULTS.items() for dtype in dtypes]


def first_fault(step, most=60):
    return next((found for found in (debug.explain(step) for _ in range(most)) if found is not None), None)


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=[f"{name}, {dtype.name}" for name, dtype in CASES])
def test_the_first_cure_that_is_named_works(name, dtype):
    knobs, fault = Knobs(dtype), FAULTS[name][0]
    found = first_fault(fault(knobs))
    assert found is not None and found.tried
    step = fault(applied(found.cure, knobs))
    losses = [step().item() for _ in range(8)]
    assert first_fault(step, 3) is None
    assert np.isfinite(losses).all() and losses[-1] <= 1.01 * max(losses[0], 1e-3)


@pytest.mark.parametrize("name", ["SGD at 5 with momentum", "12 blocks", "sqrt", "clamp(max=1 - 1e-6)"])
def test_the_step_leaves_the_state_of_one_run(name):
    """The repetitions leave no trace, of weights, moments, gradients, the loss scale and random numbers."""
    states = []
    for repeat in (True, False):
        step = FAULTS[name][0](Knobs(F16))
        next(found for found in (debug.explain(step, repeat=repeat) for _ in range(60)) if found is not None)
        cells = dict(zip(step.__code__.co_freevars, step.__closure__, strict=True))
        model, optimizer, scaler = (cells[n].cell_contents for n in ("model", "optimizer", "scaler"))
        arrays = [p.detach().numpy() for p in model.parameters()]
        arrays += [p.grad.numpy() for p in model.parameters() if p.grad is not None]
        states.append((arrays, optimizer.state_dict(), scaler.state_dict(), ampkit.get_rng_state()))
    (a, one, scale, stream), (b, other, its_scale, its_stream) = states
    assert len(a) == len(b) and all(np.array_equal(x, y, equal_nan=True) for x, y in zip(a, b, strict=True))
    assert (scale, stream) == (its_scale, its_stream)
    for number_, entry in one["state"].items():
        for key, value in entry.items():
            assert np.array_equal(value.numpy(), other["state"][number_][key].numpy(), equal_nan=True), key


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), "each Linear of the model"),
        (lambda: nn.Sequential(nn.ReLU(), nn.Linear(8, 8)), "Linear 1"),
        (lambda: nn.Sequential(*[Block(1.0, False) for _ in range(2)]), r"\*.linear"),
        (lambda: nn.Sequential(Block(1.0, False)), "0.linear"),
    ],
)
def test_a_norm_names_the_modules_that_it_goes_before(model, named):
    net = model()
    with ampkit.no_grad():
        for parameter in net.parameters():
            parameter.fill_(1e30)
    found = debug.explain(lambda: net(net(X.abs())).sum())
    assert re.match(rf"normalize what goes into {named}: ops.layer_norm\(", found.cure), found


def test_on_several_ranks_a_step_runs_once(monkeypatch):
    # What one rank repeats alone would wait for the collectives of the others.
    calls = []

    def step():
        calls.append(1)
        return ops.log(ampkit.tensor([0.0]) * -1 - 1).sum()

    assert debug.explain(step).tried
    assert len(calls) > 1
    calls.clear()
    monkeypatch.setattr(world.group, "WORLD", SimpleNamespace(size=lambda: 2))
    assert not debug.explain(step).tried
    assert calls == [1]
