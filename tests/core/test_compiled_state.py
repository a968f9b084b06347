"""ampkit.compile: after a change on the host a compiled step does what an eager one does, and records nothing twice."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from cuda_on_cpu import memory

import ampkit
from ampkit import nn, ops, optim
from ampkit.base.errors import StateError

FACTOR = 1.0
MEAN_OF_TWO, SLOW = (optim.swa_utils.get_ema_multi_avg_fn(decay) for decay in (0.5, 0.9))
RELU, SIGMOID = nn.ReLU(), nn.Sigmoid()
SETTINGS = {"shift": 0.0, "list": [1.0, 2.0]}


@pytest.fixture(autouse=True)
def device(gpu):
    """A GPU as the backend "cuda"."""
    yield gpu
    memory.hooks.clear()


class Net(nn.Module):
    """Layers, numbers of its own, and a number in an object that it holds."""

    def __init__(self):
        super().__init__()
        self.norm, self.bn = nn.LayerNorm(6), nn.BatchNorm1d(6)
        self.drop, self.leaky = nn.Dropout(0.5), nn.LeakyReLU(0.1)
        self.blocks = nn.Sequential(nn.Tanh())
        self.alpha, self.residual, self.act = 1.0, True, "relu"
        self.cfg = SimpleNamespace(temperature=1.0)

    def forward(self, x):
        y = self.blocks(self.drop(self.leaky(self.bn(self.norm(x))))) * self.alpha / self.cfg.temperature
        y = y + x if self.residual else y
        return ops.relu(y) if self.act == "relu" else ops.gelu(y)


class Predict:
    """A forward without a tape that reads numbers from everywhere."""

    limit = 4.0

    def __init__(self, compiled):
        ampkit.manual_seed(0)
        self.model = Net().to("cuda")
        self.weight, self.extra, self.losses, self.number = 0.5, None, {"scale": 1.0}, 0
        self.held = ampkit.ones(4, 6, device="cuda")
        bias = 0.25

        def shifted(y):
            return y * bias * FACTOR + SETTINGS["shift"] + SETTINGS["list"][1]

        def set_bias(value):
            nonlocal bias
            bias = value

        self.shifted, self.set_bias = shifted, set_bias
        self.step = ampkit.compile(self._step, warmup=1) if compiled else self._step

    @ampkit.no_grad()
    def _step(self, x):
        y = self.shifted(self.model(x).clamp(max=self.limit) * self.weight) * self.losses["scale"]
        return y if self.extra is None else y + self.extra

    def state(self):
        return [t.numpy(force=True).copy() for t in self.model.buffers()]


class Train:
    """A training step: a model, an optimizer, a scaler and an average."""

    def __init__(self, compiled):
        ampkit.manual_seed(0)
        self.model = nn.Linear(6, 2).to("cuda")
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.1, momentum=0.5, weight_decay=0.0)
        self.scaler = ampkit.GradScaler("cuda", init_scale=4.0, growth_interval=1000)
        self.average = optim.swa_utils.AveragedModel(self.model, multi_avg_fn=MEAN_OF_TWO)
        self.step = ampkit.compile(self._step, warmup=1) if compiled else self._step

    def _step(self, x):
        loss = self.model(x).square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.average.update_parameters(self.model)
        self.optimizer.zero_grad()
        return loss.detach()

    def state(self):
        tensors = (*self.model.parameters(), *self.average.parameters())
        return [*(t.numpy(force=True).copy() for t in tensors), np.array(self.scaler.get_scale())]


def assign(owner, name, value):
    """A change that sets an attribute, found by dotted name from the run, and one that sets it back."""

    def change(run):
        *path, last = (f"{owner}.{name}" if owner else name).split(".")
        held = run
        for part in path:
            held = held[int(part)] if part.isdigit() else getattr(held, part)
        before = getattr(held, last)
        setattr(held, last, value(run) if callable(value) else value)
        return lambda: setattr(held, last, before)

    return change


def item(find, key, value):
    """A change that sets an item."""

    def change(run):
        held = find(run)
        before = held[key]
        held[key] = value
        return lambda: held.__setitem__(key, before)

    return change


def call(method, value, before):
    """A change that calls a setter with a value."""

    def change(run):
        method(run)(value)
        return lambda: method(run)(before)

    return change


def evaluate(run):
    run.model.eval()
    return run.model.train


def evaluate_a_part(run):
    run.model.drop.eval()
    return run.model.drop.train


def freeze(run):
    run.model.weight.requires_grad_(False)
    return run.model.weight.requires_grad_


def hook_a_module(run):
    return run.model.norm.register_forward_hook(lambda module, args, out: out * 2).remove


def hook_a_parameter(run):
    return run.model.weight.register_hook(lambda gradient: gradient * 3).remove


def hook_all_modules(run):
    hook = lambda module, args, out: out * 0.5 if isinstance(module, nn.Tanh) else None  # noqa: E731
    return nn.modules.module.register_module_forward_hook(hook).remove


def set_global(name, value):
    def change(run):
        before = globals()[name]
        globals()[name] = value
        return lambda: globals().__setitem__(name, before)

    return change


def shadow_the_class(run):
    run.limit = 0.5
    return lambda: delattr(run, "limit")


def change_the_class(run):
    Predict.limit = 0.25
    return lambda: setattr(Predict, "limit", 4.0)


def use_a_tensor(run):
    run.extra = run.held
    return lambda: setattr(run, "extra", None)


def count_outside(run):
    run.number += 1  # which the step does not read
    return lambda: None


def replace_a_layer(run):
    before, run.model.leaky = run.model.leaky, RELU
    return lambda: setattr(run.model, "leaky", before)


def replace_in_a_container(run):
    before, run.model.blocks[0] = run.model.blocks[0], SIGMOID
    return lambda: run.model.blocks.__setitem__(0, before)


def setting(choose, value, usual):
    def change(run):
        choose(value)
        return lambda: choose(usual)

    return change


def group(run):
    return run.optimizer.param_groups[0]


def add_a_layer(run):
    run.model.blocks.append(SIGMOID)
    return lambda: run.model.blocks.__delitem__(1)


def double(y):
    return y * 2


PREDICT = {
    "eval": evaluate,
    "eval of a submodule": evaluate_a_part,
    "training of a submodule": assign("model.bn", "training", False),
    "p of Dropout": assign("model.drop", "p", 0.1),
    "eps of LayerNorm": assign("model.norm", "eps", 0.5),
    "momentum of BatchNorm": assign("model.bn", "momentum", 0.7),
    "negative_slope": assign("model.leaky", "negative_slope", 0.5),
    "number of a module": assign("model", "alpha", 2.0),
    "sign of zero of a module": assign("model", "alpha", -0.0),
    "bool of a module": assign("model", "residual", False),
    "text of a module": assign("model", "act", "gelu"),
    "object of a module": assign("model.cfg", "temperature", 3.0),
    "layer": replace_a_layer,
    "layer of a container": replace_in_a_container,
    "another layer": add_a_layer,
    "hook of a module": hook_a_module,
    "hook of all modules": hook_all_modules,
    "closure": call(lambda run: run.set_bias, 0.75, 0.25),
    "global": set_global("FACTOR", 2.0),
    "item of a global": item(lambda run: SETTINGS, "shift", 0.5),
    "item of a list": item(lambda run: SETTINGS["list"], 1, 0.5),
    "item of an attribute": item(lambda run: run.losses, "scale", 2.0),
    "attribute of the object of a bound method": assign("", "weight", 0.125),
    "attribute of a class, hidden": shadow_the_class,
    "attribute of a class": change_the_class,
    "function": assign("", "shifted", lambda run: double),
    "tensor": use_a_tensor,
    "matmul precision": setting(ampkit.set_float32_matmul_precision, "high", "highest"),
    "determinism": setting(ampkit.use_deterministic_algorithms, False, True),
    "default dtype": setting(ampkit.set_default_dtype, ampkit.float64, ampkit.float32),
    "number that is not read": count_outside,
}
TRAIN = {
    "requires_grad_": freeze,
    "weight_decay": item(group, "weight_decay", 0.5),
    "maximize": item(group, "maximize", True),
    "nesterov": item(group, "nesterov", True),
    "dampening": item(group, "dampening", 0.25),
    "no momentum": item(group, "momentum", 0.0),
    "lr": item(group, "lr", 0.02),
    "momentum": item(group, "momentum", 0.9),
    "growth_interval": call(lambda run: run.scaler.set_growth_interval, 1, 1000),
    "growth_factor": call(lambda run: run.scaler.set_growth_factor, 4.0, 2.0),
    "scale loaded": lambda run: run.scaler.load_state_dict({**run.scaler.state_dict(), "scale": 8.0}) or (lambda: None),
    "EMA": assign("average", "multi_avg_fn", lambda run: SLOW),
    "hook of a parameter": hook_a_parameter,
}
CHANGES = {
    **{name: (Predict, change) for name, change in PREDICT.items()},
    **{name: (Train, c) for name, c in TRAIN.items()},
}
NEW_VALUES = {"lr", "momentum", "scale loaded", "number that is not read"}  # which one recording takes


def trained(compiled, kind, change):
    """What each call returns and leaves: two calls as it is, two changed, one as before, and one changed again."""
    run, states, rng = kind(compiled), [], np.random.default_rng(1)

    def calls(count):
        for _ in range(count):
            x = ampkit.tensor(rng.normal(size=(4, 6)).astype("f"), device="cuda")
            states.append([run.step(x).numpy(force=True), *run.state()])

    calls(2)
    for count in (2, 1):
        undo = change(run)
        try:
            calls(count)
        finally:
            undo()
        calls(1)
    return run, states


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_on_the_host_does_to_a_compiled_step_what_it_does_to_an_eager_one(name):
    _, want = trained(False, *CHANGES[name])
    run, got = trained(True, *CHANGES[name])
    for number, (one, other) in enumerate(zip(want, got, strict=True)):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=f"call {number}")
    recorded = [kind.graph.recording is not None for kind in run.step._variants.values()]
    hook = "hook" in name  # a new one at each change
    split = name == "requires_grad_"  # from then on the parameters have taken different numbers of steps
    third = [False] if hook else [True] if split else []
    assert recorded == ([True] if name in NEW_VALUES else [True, True, *third])


def test_gradients_that_a_step_leaves_are_those_of_eager_calls_whether_it_finds_some_or_none():
    results = []
    for compiled in (False, True):
        ampkit.manual_seed(0)
        model = nn.Linear(6, 2).to("cuda")
        optimizer = optim.SGD(model.parameters(), lr=0.1)

        def accumulate(x, model=model):
            loss = model(x).square().mean()
            loss.backward()
            return loss.detach()

        step = ampkit.compile(accumulate, warmup=1) if compiled else accumulate
        rng = np.random.default_rng(1)
        for number in range(9):
            step(ampkit.tensor(rng.normal(size=(4, 6)).astype("f"), device="cuda"))
            if number % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
        results.append([p.numpy(force=True) for p in model.parameters()])
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)
    assert [kind.graph.recording is not None for kind in step._variants.values()] == [True, True]


@pytest.mark.filterwarnings("ignore:compile. runs eagerly")
def test_gradients_of_leaves_that_no_optimizer_holds_are_those_of_eager_calls():
    x = ampkit.ones(3, device="cuda").requires_grad_()

    def double(y):
        loss = (x * y).sum()
        loss.backward()
        return loss.detach()

    step = ampkit.compile(double, warmup=1)
    found = []
    for number in range(4):
        step(ampkit.full((3,), float(number), device="cuda"))
        found.append(x.grad.numpy().tolist())
        x.grad = None
    assert found == [[number] * 3 for number in range(4)]


@pytest.mark.filterwarnings("ignore:compile. runs eagerly")
def test_a_step_that_changes_at_every_call_runs_eagerly_and_keeps_few_kinds():
    cfg = {"factor": 0.0}
    step = ampkit.compile(lambda x: x * cfg["factor"], warmup=1)
    x = ampkit.ones(2, device="cuda")
    with ampkit.no_grad():
        for number in range(90):
            cfg["factor"] = float(number)
            assert step(x).numpy()[0] == number
    assert len(step._variants) <= 8
    assert all(kind.graph.recording is None for kind in step._variants.values())


@pytest.mark.filterwarnings("ignore:compile. runs eagerly")
def test_the_report_says_how_many_kinds_are_recorded_and_why_others_run_eagerly():
    x = ampkit.ones(3, device="cuda")
    compiled = ampkit.compile(lambda x: x * 2.0, warmup=1)
    compiled(x)
    assert str(compiled.report()) == "kinds of calls: no call is recorded yet"
    for _ in range(2):
        compiled(x)
    report = compiled.report()
    assert (report.device.partition(":")[0], report.graphs, report.bytes_before) == ("cuda", 1, 0)
    first, second, *_ = str(report).splitlines()
    assert first == "kinds of calls: 1 recorded, each launched as one graph"
    assert second == "no elementwise launches fused"
    forward = ampkit.compile(nn.Linear(3, 2).to("cuda"))
    forward(x)
    assert "eager: its result is still on the tape" in str(forward.report())


def test_with_fullgraph_a_step_that_would_run_eagerly_raises():
    forward = ampkit.compile(nn.Linear(3, 2).to("cuda"), fullgraph=True)
    for _ in range(2):
        with pytest.raises(
            StateError, match="recorded whole, with fullgraph=True, got its result is still on the tape"
        ):
            forward(ampkit.ones(3, device="cuda"))
